//! Reserves what a request can use of monthly budgets, so that requests side by side cannot exceed
//! them together. If other gateways count on the same budget, this one may have to ask the store
//! for a larger part of it first.

use super::admit::Admitted;
use crate::access::keys::Caller;
use crate::access::spend::Shortage;
use crate::context::Gateway;
use crate::dispatcher::{BudgetReservation, Lease};
use crate::types::error::Error;
use crate::types::usage::Date;

/// Reserves what an admitted request can use of the budgets of its key and user. Without such
/// budgets, there is nothing to reserve.
///
/// # Errors
/// Too little is left, or the store cannot say how much.
pub(super) async fn reserve(
    gateway: &Gateway,
    caller: &Caller,
    admitted: &Admitted,
) -> Result<Option<BudgetReservation>, Error> {
    let reserve = |has_asked| try_reserve(gateway, caller, admitted, has_asked);
    match reserve(false) {
        Err(Shortage::Unallotted(_)) => {}
        reserved => return reserved.map_err(Shortage::error),
    }
    // What an earlier request has got may be enough meanwhile.
    gateway.allot(|| reserve(false).err().map(Shortage::asks).unwrap_or_default()).await?;
    reserve(true).map_err(Shortage::error)
}

fn try_reserve(
    gateway: &Gateway,
    caller: &Caller,
    admitted: &Admitted,
    has_asked: bool,
) -> Result<Option<BudgetReservation>, Shortage> {
    let Admitted { tenant, user, model, usage, .. } = admitted;
    let budgets = (&caller.key.budget, &caller.key.users.budget);
    let need = usage.need(gateway.dispatcher.context_tokens(model));
    let reserved = gateway.dispatcher.reserve_budget((tenant, *user), budgets, need, has_asked)?;
    Ok(reserved.map(|mut reserved| {
        if let Some(store) = &gateway.store {
            reserved.set_marks(store.marks(reserved.budgets(), Date::today()));
        }
        reserved
    }))
}

/// Writes down what a request may cost at an external endpoint, for the case that this gateway is
/// killed.
pub(super) fn follow_payment(gateway: &Gateway, lease: &mut Lease) {
    if let Some(store) = &gateway.store {
        lease.set_marks(store.marks(lease.budgets(), Date::today()));
    }
}
