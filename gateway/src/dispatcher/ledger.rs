//! Usage and budgets of tenants and their users.

use inference_protocol::resume::Usage;

use super::Dispatcher;
use crate::access::spend::{Budget, Totals};
use crate::types::error::Error;
use crate::types::limits::LimitScope;
use crate::types::usage::{Date, Used};
use crate::types::user::UserId;

impl Dispatcher {
    /// Books the token usage of a tenant and its user, and what an external endpoint was paid for
    /// it. The user comes with the most users that the ledger keeps for the tenant.
    pub(crate) fn book_usage(
        &self,
        tenant: &str,
        user: Option<(UserId, usize)>,
        usage: Usage,
        paid: Option<(&str, f64)>,
    ) {
        let mut core = self.lock();
        let ledger = &mut core.scheduler.ledger;
        ledger.book_usage(tenant, usage, paid);
        if let Some(user) = user {
            ledger.book_user_usage(tenant, user, usage, paid.map_or(0.0, |(_, amount)| amount));
        }
    }

    /// Sets usage of this month and spend of today, as all gateways have counted it.
    /// `totals` is called while nothing can be booked here.
    pub(crate) fn set_totals(&self, date: Date, totals: impl FnOnce() -> Totals) {
        self.lock().scheduler.ledger.set_totals(date, totals());
    }

    /// What tenants have used this month, and its date.
    pub(crate) fn month_totals(&self) -> (Vec<(String, Used)>, Date) {
        self.lock().scheduler.ledger.month_totals()
    }

    /// Checks the tenant's monthly budget.
    pub(crate) fn check_budget(&self, tenant: &str, budget: &Budget) -> Result<(), Error> {
        match budget.is_set() {
            true => {
                let checked = self.lock().scheduler.ledger.check_budget(tenant, budget);
                checked.map_err(|limit| Error::Quota(limit, LimitScope::Key))
            }
            false => Ok(()),
        }
    }

    /// Checks the monthly budget of a user of the tenant.
    pub(crate) fn check_user_budget(
        &self,
        tenant: &str,
        user: UserId,
        budget: &Budget,
    ) -> Result<(), Error> {
        match budget.is_set() {
            true => {
                let checked = self.lock().scheduler.ledger.check_user_budget(tenant, user, budget);
                checked.map_err(|limit| Error::Quota(limit, LimitScope::User))
            }
            false => Ok(()),
        }
    }

    /// The users of a tenant who used the most tokens this month, most first.
    pub(crate) fn heaviest_users(&self, tenant: &str, count: usize) -> Vec<(UserId, Used)> {
        self.lock().scheduler.ledger.heaviest_users(tenant, count)
    }
}
