//! Reserves what a request can use of monthly budgets, so that requests side by side cannot exceed
//! them together. If other gateways count on the same budget, this one may have to ask the store
//! for a larger part of it first.

use std::num::NonZeroU64;
use std::time::Duration;

use tokio::time::timeout;

use super::admit::Admitted;
use crate::access::keys::Caller;
use crate::context::Gateway;
use crate::dispatcher::{BudgetReservation, Shortfall};
use crate::store::Ask;
use crate::types::error::Error;
use crate::types::usage::Date;

/// How long a request waits for the store to say what is left of its budget.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

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
    let shortfall = match try_reserve(gateway, caller, admitted, false) {
        Ok(reserved) => return Ok(reserved),
        Err(shortfall) => shortfall,
    };
    if shortfall.unallotted().is_none() {
        return Err(shortfall.error());
    }
    let asked = timeout(ASK_TIMEOUT, ask(gateway, caller, admitted)).await;
    asked.unwrap_or(Err(Error::StoreUnavailable))?;
    try_reserve(gateway, caller, admitted, true).map_err(Shortfall::error)
}

fn try_reserve(
    gateway: &Gateway,
    caller: &Caller,
    admitted: &Admitted,
    has_asked: bool,
) -> Result<Option<BudgetReservation>, Shortfall> {
    let Admitted { tenant, user, model, usage, .. } = admitted;
    let budgets = (&caller.key.budget, &caller.key.users.budget);
    let need = usage.need(gateway.dispatcher.context_tokens(model));
    let reserved = gateway.dispatcher.reserve_budget((tenant, *user), budgets, need, has_asked)?;
    Ok(reserved.map(|mut reserved| {
        let store = gateway.store.as_ref().filter(|_| caller.key.budget.tokens.is_some());
        reserved.set_mark(store.and_then(|store| store.mark(tenant, Date::today().month)));
        reserved
    }))
}

/// Asks for a larger allotment, unless an earlier request has got enough meanwhile.
async fn ask(gateway: &Gateway, caller: &Caller, admitted: &Admitted) -> Result<(), Error> {
    let _alone = gateway.allotting.lock().await;
    let lacks = match try_reserve(gateway, caller, admitted, false) {
        Err(shortfall) => shortfall.unallotted(),
        Ok(_) => None,
    };
    let budget = caller.key.budget.tokens.map(NonZeroU64::get);
    let (Some(store), Some(tokens), Some(budget)) = (&gateway.store, lacks, budget) else {
        return Ok(());
    };
    let (tenant, month) = (&*admitted.tenant, Date::today().month);
    let ask = Ask { tenant: tenant.into(), budget, tokens, month };
    let allotted = store.allot(ask).await.map_err(|error| error.of(""))?;
    gateway.dispatcher.set_allotment(tenant, allotted, || gateway.usage.tokens_of(tenant));
    Ok(())
}
