//! PURE. Reserves what requests may use of budgets while they run, so that requests side by side
//! cannot exceed a budget together.
//!
//! A request reserves as many tokens as it can use. Nodes hold it to that. Beside others it gets no
//! large part of what is free: most use far less than they can. When less is left, it gets what is
//! left, and its response ends there; unless other requests have reserved so much that too little
//! remains for a usual response: then it is refused until one of them ends.

use std::collections::HashMap;
use std::time::Duration;

use super::Ledger;
use crate::types::budget::{Ask, BudgetId, billionths};
use crate::types::error::Error;
use crate::types::limits::{BudgetLimit, LimitScope, RateLimit};

/// Beside others, a request gets at most one of so many parts of what is free,
const PARTS: u64 = 8;
/// but always so many times what it is likely to need.
const LIKELY: u64 = 4;

/// When to try again, if running requests have reserved what is left.
const RETRY: Duration = Duration::from_secs(1);

/// What running requests have reserved of budgets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Reservations(HashMap<BudgetId, u64>);

/// How many tokens a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// By estimate, with a response of usual length.
    pub likely: u64,
    /// At most.
    pub most: u64,
}

/// Why a request gets no tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// A budget is used up.
    UsedUp(LimitScope),
    /// Running requests have reserved what is left, or other gateways were allotted it.
    Reserved(LimitScope),
    /// More than this gateway was allotted is needed: it should ask for it.
    Unallotted(Vec<Ask>),
}

impl Ledger {
    /// Reserves tokens of budgets, of each the same. Once `has_asked`, the gateway makes do with
    /// its allotments.
    ///
    /// # Errors
    /// One of them has too few left.
    pub(crate) fn reserve(
        &mut self,
        budgets: &[(BudgetId, u64)],
        need: Need,
        has_asked: bool,
    ) -> Result<u64, Shortage> {
        let mut tokens = need.most;
        let mut asks = Vec::new();
        for (id, budget) in budgets {
            let left = self.left(id, *budget);
            let reserved = self.reserved.of(id);
            let need = Need { likely: need.likely.min(tokens), most: tokens };
            let need = need.beside(reserved, left);
            let allotted = self.allotment(id).map_or(left, |allotment| allotment.amount);
            let lacks = |needed| reserved.saturating_add(needed).saturating_sub(allotted);
            let (amount, least) = (lacks(need.most), lacks(need.likely.max(1)));
            if self.allotments.is_some() && amount > 0 && left > 0 && !has_asked {
                asks.push(Ask { id: id.clone(), budget: *budget, amount, least });
                tokens = tokens.min(need.most);
                continue;
            }
            tokens = match grant(left, left.min(allotted), reserved, need) {
                Granted::Tokens(granted) => granted,
                Granted::UsedUp => return Err(Shortage::UsedUp(id.scope())),
                Granted::Reserved => return Err(Shortage::Reserved(id.scope())),
            };
        }
        if !asks.is_empty() {
            return Err(Shortage::Unallotted(asks));
        }
        for (id, _) in budgets {
            self.keep_allotment(id);
            self.reserved.add(id, tokens);
        }
        Ok(tokens)
    }

    /// True if no request has reserved anything.
    pub(crate) fn has_no_reservations(&self) -> bool {
        self.reserved.0.is_empty()
    }

    /// Releases what [`Ledger::reserve`] returned, once what was used of it is booked.
    pub(crate) fn release(&mut self, ids: &[BudgetId], amount: u64) {
        ids.iter().for_each(|id| self.reserved.remove(id, amount));
    }

    /// What is left of a budget, reserved or not.
    pub(super) fn left(&self, id: &BudgetId, budget: u64) -> u64 {
        let booked = match id {
            BudgetId::Tokens(tenant) => self.month_usage(tenant).tokens,
            BudgetId::Spend(tenant) => billionths(self.month_usage(tenant).spend),
            BudgetId::EndpointSpend(endpoint) => billionths(self.spent_today(endpoint)),
            BudgetId::UserTokens(tenant, user) => self.user_usage(tenant, *user).tokens,
            BudgetId::UserSpend(tenant, user) => billionths(self.user_usage(tenant, *user).spend),
        };
        let known = self.allotment(id).map_or(0, |allotment| allotment.used);
        budget.saturating_sub(booked.max(known))
    }
}

impl Shortage {
    /// What the gateway should ask for.
    pub(crate) fn asks(self) -> Vec<Ask> {
        match self {
            Self::Unallotted(asks) => asks,
            Self::UsedUp(_) | Self::Reserved(_) => Vec::new(),
        }
    }

    /// The error that the client receives.
    pub(crate) fn error(self) -> Error {
        let (limit, wait) = (RateLimit::Budget, RETRY);
        match self {
            Self::UsedUp(scope) => Error::Quota(BudgetLimit::Tokens, scope),
            Self::Reserved(scope) => Error::RateLimited { limit, scope, wait },
            Self::Unallotted(asks) => {
                let scope = asks.first().map(|ask| ask.id.scope()).unwrap_or_default();
                Error::RateLimited { limit, scope, wait }
            }
        }
    }
}

impl Need {
    /// What a request needs of a budget of which `left` are left, and `reserved` by others.
    fn beside(self, reserved: u64, left: u64) -> Self {
        let part = left.saturating_sub(reserved) / PARTS;
        let fair = part.max(self.likely.saturating_mul(LIKELY));
        Self { most: if reserved > 0 { self.most.min(fair) } else { self.most }, ..self }
    }
}

/// What a request gets of a budget.
enum Granted {
    Tokens(u64),
    UsedUp,
    Reserved,
}

/// How many tokens a request gets of a budget, of which `left` are left, and `allotted` to this
/// gateway.
fn grant(left: u64, allotted: u64, reserved: u64, need: Need) -> Granted {
    let free = allotted.saturating_sub(reserved);
    let are_others = reserved > 0 || allotted < left;
    match () {
        () if left == 0 => Granted::UsedUp,
        () if need.most <= free => Granted::Tokens(need.most),
        () if are_others && free < need.likely.max(1) => Granted::Reserved,
        () => Granted::Tokens(free),
    }
}

impl Reservations {
    /// What is reserved of a budget.
    pub(super) fn of(&self, id: &BudgetId) -> u64 {
        self.0.get(id).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, id: &BudgetId, amount: u64) {
        let sum = self.0.entry(id.clone()).or_default();
        *sum = sum.saturating_add(amount);
    }

    /// Keeps no entry of which nothing is reserved, so that there are no more entries than running
    /// requests have budgets.
    pub(super) fn remove(&mut self, id: &BudgetId, amount: u64) {
        if let Some(sum) = self.0.get_mut(id) {
            *sum = sum.saturating_sub(amount);
            if *sum == 0 {
                self.0.remove(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use inference_protocol::resume::Usage;

    use super::*;
    use crate::types::budget::Allotted;
    use crate::types::secret::KeyDigest;
    use crate::types::user::UserId;

    /// A budget of this many tokens.
    fn ada(budget: u64) -> [(BudgetId, u64); 1] {
        [(BudgetId::Tokens("ada".into()), budget)]
    }

    const NEED: Need = Need { likely: 30, most: 100 };

    fn uses(ledger: &mut Ledger, tokens: u64) {
        let usage = Usage { prompt: tokens, ..Usage::default() };
        ledger.book_usage("ada", usage, None);
    }

    #[test]
    fn requests_side_by_side_never_get_more_than_the_budget() {
        let mut ledger = Ledger::default();
        let mut reserve = || ledger.reserve(&ada(250), NEED, false);
        assert_eq!([reserve(), reserve(), reserve()], [Ok(100), Ok(100), Ok(50)]);
        let reserved = Err(Shortage::Reserved(LimitScope::Key));
        assert_eq!(reserve(), reserved);
        uses(&mut ledger, 60);
        ledger.release(&[ada(0)[0].0.clone()], 100);
        assert_eq!(ledger.reserve(&ada(250), NEED, false), Ok(40), "what the first left");
        for (reserved, used) in [(100, 100), (50, 50), (40, 40)] {
            uses(&mut ledger, used);
            ledger.release(&[ada(0)[0].0.clone()], reserved);
        }
        let used_up = Err(Shortage::UsedUp(LimitScope::Key));
        assert_eq!(ledger.reserve(&ada(250), NEED, false), used_up);
        assert_eq!(ledger.reserved, Reservations::default());
    }

    #[test]
    fn many_requests_run_side_by_side_although_each_could_use_a_large_part() {
        let mut ledger = Ledger::default();
        let need = Need { likely: 300, most: 12_000 };
        let mut reserve = || ledger.reserve(&ada(100_000), need, false);
        assert_eq!([reserve(), reserve()], [Ok(12_000), Ok(88_000 / PARTS)]);
        let granted: Vec<u64> = std::iter::from_fn(|| reserve().ok()).collect();
        assert!(granted.len() > 20, "{granted:?}");
        assert!(granted[..granted.len() - 1].iter().all(|tokens| *tokens >= 300 * LIKELY));
        assert!(granted.iter().sum::<u64>() <= 100_000 - 12_000 - 11_000);
    }

    #[test]
    fn the_last_request_of_a_month_gets_what_is_left_if_it_is_alone() {
        let mut ledger = Ledger::default();
        uses(&mut ledger, 249);
        assert_eq!(ledger.reserve(&ada(250), NEED, false), Ok(1));
        let reserved = Err(Shortage::Reserved(LimitScope::Key));
        assert_eq!(ledger.reserve(&ada(250), NEED, false), reserved);
    }

    #[test]
    fn a_user_gets_what_both_budgets_have_left() {
        let of = |user: &str, budget| {
            let user = UserId::new(&KeyDigest::of("key"), user.as_bytes());
            [
                (BudgetId::Tokens("ada".into()), 500),
                (BudgetId::UserTokens("ada".into(), user), budget),
            ]
        };
        let ids = |user| of(user, 0).map(|(id, _)| id);
        let mut ledger = Ledger::default();
        assert_eq!(ledger.reserve(&of("x", 40), NEED, false), Ok(40));
        assert_eq!(ledger.reserve(&of("y", 90), NEED, false), Ok(90));
        let refused = ledger.reserve(&of("x", 40), NEED, false);
        assert_eq!(refused, Err(Shortage::Reserved(LimitScope::User)));
        ledger.release(&ids("x"), 40);
        ledger.release(&ids("y"), 90);
        assert_eq!(ledger.reserved, Reservations::default());
    }

    #[test]
    fn a_gateway_asks_for_all_budgets_at_once_and_learns_what_others_have_used() {
        let user = UserId::new(&KeyDigest::of("key"), b"x");
        let (of_key, of_user) =
            (BudgetId::Tokens("ada".into()), BudgetId::UserTokens("ada".into(), user));
        let budgets = [(of_key.clone(), 500), (of_user.clone(), 150)];
        let mut ledger = Ledger::default();
        ledger.share_budgets();
        let ask = |(id, budget): &(BudgetId, u64)| Ask {
            id: id.clone(),
            budget: *budget,
            amount: 100,
            least: 30,
        };
        let asks = Err(Shortage::Unallotted(budgets.iter().map(ask).collect()));
        assert_eq!(ledger.reserve(&budgets, NEED, false), asks);
        let allotted = |id: &BudgetId, amount, used| {
            let id = id.clone();
            Allotted { id, amount, used, is_exhausted: false, is_sole: false }
        };
        let answer = vec![allotted(&of_key, 500, 0), allotted(&of_user, 100, 80)];
        ledger.set_allotted(answer, &[(of_user.clone(), 30)].into());
        // 80 and 30 of the user's 150 are used, so that 40 are left of what was allotted.
        assert_eq!(ledger.reserve(&budgets, NEED, true), Ok(40));
        ledger.release(&[of_key, of_user.clone()], 40);
        let usage = Usage { prompt: 40, ..Usage::default() };
        ledger.book_user_usage("ada", (user, 9), usage, 0.0);
        let used_up = Err(Shortage::UsedUp(LimitScope::User));
        assert_eq!(ledger.reserve(&budgets, NEED, false), used_up);
    }

    #[test]
    fn a_gateway_grants_what_it_was_allotted_and_asks_for_the_rest() {
        let mut ledger = Ledger::default();
        ledger.share_budgets();
        let [(id, _)] = ada(0);
        let reserve = |ledger: &mut Ledger, has_asked| ledger.reserve(&ada(250), NEED, has_asked);
        let ask = |amount, least| {
            let [(id, budget)] = ada(250);
            Err(Shortage::Unallotted(vec![Ask { id, budget, amount, least }]))
        };
        let reserved = Err(Shortage::Reserved(LimitScope::Key));
        let allot =
            |ledger: &mut Ledger, amount| ledger.set_allotments([(id.clone(), amount)].into());
        let release =
            |ledger: &mut Ledger, amount| ledger.release(std::slice::from_ref(&id), amount);
        assert_eq!(reserve(&mut ledger, false), ask(100, 30));
        allot(&mut ledger, 170);
        assert_eq!(reserve(&mut ledger, false), Ok(100));
        assert_eq!(reserve(&mut ledger, false), ask(30, 0));
        assert_eq!(reserve(&mut ledger, true), Ok(70), "others have the rest");
        assert_eq!(reserve(&mut ledger, true), reserved);
        uses(&mut ledger, 60);
        release(&mut ledger, 100);
        assert_eq!(reserve(&mut ledger, true), Ok(40), "what the first left of the allotment");
        assert!(ledger.give_back().is_empty(), "a request has needed it");
        release(&mut ledger, 40);
        assert_eq!(ledger.give_back(), [(id.clone(), 40)]);
        assert_eq!(ledger.give_back(), [(id.clone(), 0)], "70 of 70 are reserved");
        allot(&mut ledger, 90);
        assert_eq!(reserve(&mut ledger, true), reserved, "20 would be too few");
        assert_eq!(ledger.give_back(), [(id.clone(), 20)], "for a request elsewhere");
        ledger.set_allotments(HashMap::new());
        uses(&mut ledger, 190);
        assert_eq!(reserve(&mut ledger, false), Err(Shortage::UsedUp(LimitScope::Key)));
        release(&mut ledger, 70);
        ledger.give_back();
        assert!(ledger.give_back().is_empty(), "it is forgotten");
    }
}
