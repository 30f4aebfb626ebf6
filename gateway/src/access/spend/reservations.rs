//! PURE. Reserves what requests may use of monthly budgets while they run, so that requests side by
//! side cannot exceed a budget together.
//!
//! A request reserves as much as it can use. Nodes hold it to that. Beside others it gets no large
//! part of what is free: most use far less than they can. When less is left, it gets what is left,
//! and its response ends there; unless other requests have reserved so much that too little remains
//! for a usual response: then it is refused until one of them ends.
//!
//! Gateways with a store divide what is left of a tenant's budget among them: each grants no more
//! than its allotment, and asks for more when it needs it. A gateway alone does so, too, so that
//! what was granted outlives it.

use std::collections::HashMap;

use super::Ledger;
use crate::types::limits::LimitScope;
use crate::types::user::UserId;

/// Beside others, a request gets at most one of so many parts of what is free,
const PARTS: u64 = 8;
/// but always so many times what it is likely to need.
const LIKELY: u64 = 4;

/// Tokens of budgets that running requests have reserved.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Reservations {
    tenants: HashMap<String, u64>,
    users: HashMap<(String, UserId), u64>,
}

/// What this gateway may grant of a tenant's budget.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Allotment {
    /// Tokens, what running requests have reserved included.
    tokens: u64,
    /// True if a request has needed it since it was last looked at.
    is_needed: bool,
}

/// Who pays for a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Payer<'a> {
    /// The tenant.
    pub tenant: &'a str,
    /// Its user, if requests name users.
    pub user: Option<UserId>,
}

/// How many tokens a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Need {
    /// By estimate, with a response of usual length.
    pub likely: u64,
    /// At most.
    pub most: u64,
}

/// Why a request gets no tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The budget is used up.
    UsedUp,
    /// Running requests have reserved what is left, or other gateways were allotted it.
    Reserved,
    /// So many tokens more than this gateway was allotted are needed: it should ask for them.
    Unallotted(u64),
}

impl Ledger {
    /// Reserves tokens of the monthly budgets of a tenant and its user, which are these. Once
    /// `has_asked`, the gateway makes do with its allotment.
    ///
    /// # Errors
    /// Whose budget has too few left, and why.
    pub(crate) fn reserve(
        &mut self,
        payer: Payer<'_>,
        (of_tenant, of_user): (Option<u64>, Option<u64>),
        need: Need,
        has_asked: bool,
    ) -> Result<u64, (Shortage, LimitScope)> {
        let Payer { tenant, user } = payer;
        let mut tokens = need.most;
        if let (Some(budget), Some(user)) = (of_user, user) {
            let left = budget.saturating_sub(self.user_usage(tenant, user).tokens);
            let reserved = self.reserved.users.get(&(tenant.into(), user)).copied().unwrap_or(0);
            let granted = grant(left, left, reserved, need.beside(reserved, left));
            tokens = granted.map_err(|shortage| (shortage, LimitScope::User))?;
        }
        if let Some(budget) = of_tenant {
            let left = budget.saturating_sub(self.month_usage(tenant).tokens);
            let reserved = self.reserved.tenants.get(tenant).copied().unwrap_or(0);
            let need = Need { likely: need.likely.min(tokens), most: tokens };
            let need = need.beside(reserved, left);
            let (allotted, lacks) = self.allotted_of(tenant, left, reserved + need.most);
            let granted = match lacks {
                1.. if left > 0 && !has_asked => Err(Shortage::Unallotted(lacks)),
                _ => grant(left, allotted, reserved, need),
            };
            tokens = granted.map_err(|shortage| (shortage, LimitScope::Key))?;
            self.keep_allotment(tenant);
        }
        self.reserved.add(payer, tokens);
        Ok(tokens)
    }

    /// What this gateway may grant of the rest of a tenant's budget, and how many of `needed`
    /// tokens that lacks.
    fn allotted_of(&mut self, tenant: &str, left: u64, needed: u64) -> (u64, u64) {
        let Some(allotments) = &mut self.allotments else { return (left, 0) };
        if !allotments.contains_key(tenant) {
            allotments.insert(tenant.into(), Allotment::default());
        }
        let Some(allotment) = allotments.get_mut(tenant) else { return (0, needed) };
        (left.min(allotment.tokens), needed.saturating_sub(allotment.tokens))
    }

    /// True if no request has reserved anything.
    pub(crate) fn has_no_reservations(&self) -> bool {
        self.reserved.tenants.is_empty() && self.reserved.users.is_empty()
    }

    /// Keeps an allotment for some time: a request got tokens of it. One that is too small for any
    /// is given back, so that the rests of several gateways are enough for a last request.
    fn keep_allotment(&mut self, tenant: &str) {
        let allotments = self.allotments.as_mut();
        if let Some(allotment) = allotments.and_then(|allotments| allotments.get_mut(tenant)) {
            allotment.is_needed = true;
        }
    }

    /// From now on, grants no more than allotments, which outlive this gateway: others may count on
    /// the same budgets, now or after its end.
    pub(crate) fn share_budgets(&mut self) {
        self.allotments.get_or_insert_default();
    }

    /// Sets what this gateway may grant of budgets of this month: nothing of others.
    pub(crate) fn set_allotments(&mut self, allotted: impl IntoIterator<Item = (String, u64)>) {
        let Some(allotments) = &mut self.allotments else { return };
        allotments.values_mut().for_each(|allotment| allotment.tokens = 0);
        for (tenant, tokens) in allotted {
            allotments.entry(tenant).or_default().tokens = tokens;
        }
    }

    /// Sets what this gateway may grant of a tenant's budget.
    pub(crate) fn set_allotment(&mut self, tenant: &str, tokens: u64) {
        if let Some(allotments) = &mut self.allotments {
            allotments.entry(tenant.into()).or_default().tokens = tokens;
        }
    }

    /// Gives back what no request has needed since the last time. Returns how much of which
    /// tenants' budgets.
    pub(crate) fn give_back(&mut self) -> Vec<(String, u64)> {
        let Self { allotments, reserved, .. } = self;
        let Some(allotments) = allotments else { return Vec::new() };
        let unneeded = |(tenant, allotment): (&String, &mut Allotment)| {
            let reserved = reserved.tenants.get(tenant).copied().unwrap_or(0);
            let spare = allotment.tokens.saturating_sub(reserved);
            if std::mem::take(&mut allotment.is_needed) || spare == 0 {
                return None;
            }
            allotment.tokens -= spare;
            Some((tenant.clone(), spare))
        };
        let given = allotments.iter_mut().filter_map(unneeded).collect();
        allotments.retain(|_, allotment| allotment.tokens > 0 || allotment.is_needed);
        given
    }

    /// Takes what was used from a tenant's allotment.
    pub(super) fn use_allotment(&mut self, tenant: &str, tokens: u64) {
        let allotments = self.allotments.as_mut();
        if let Some(allotment) = allotments.and_then(|allotments| allotments.get_mut(tenant)) {
            allotment.tokens = allotment.tokens.saturating_sub(tokens);
        }
    }

    /// Releases what [`Ledger::reserve`] returned, once what was used of it is booked.
    pub(crate) fn release(&mut self, payer: Payer<'_>, tokens: u64) {
        self.reserved.remove(payer, tokens);
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

/// How many tokens a request gets of a budget, of which `left` are left, and `allotted` to this
/// gateway.
fn grant(left: u64, allotted: u64, reserved: u64, need: Need) -> Result<u64, Shortage> {
    let free = allotted.saturating_sub(reserved);
    let are_others = reserved > 0 || allotted < left;
    match () {
        () if left == 0 => Err(Shortage::UsedUp),
        () if need.most <= free => Ok(need.most),
        () if are_others && free < need.likely.max(1) => Err(Shortage::Reserved),
        () => Ok(free),
    }
}

impl Reservations {
    fn add(&mut self, Payer { tenant, user }: Payer<'_>, tokens: u64) {
        let add = |sum: &mut u64| *sum = sum.saturating_add(tokens);
        add(self.tenants.entry(tenant.into()).or_default());
        if let Some(user) = user {
            add(self.users.entry((tenant.into(), user)).or_default());
        }
    }

    /// Keeps no entry of those who have nothing reserved, so that there are no more entries than
    /// running requests.
    fn remove(&mut self, Payer { tenant, user }: Payer<'_>, tokens: u64) {
        if let Some(sum) = self.tenants.get_mut(tenant) {
            *sum = sum.saturating_sub(tokens);
            if *sum == 0 {
                self.tenants.remove(tenant);
            }
        }
        let Some(key) = user.map(|user| (tenant.to_string(), user)) else { return };
        if let Some(sum) = self.users.get_mut(&key) {
            *sum = sum.saturating_sub(tokens);
            if *sum == 0 {
                self.users.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use inference_protocol::resume::Usage;

    use super::*;
    use crate::types::secret::KeyDigest;

    const ADA: Payer<'_> = Payer { tenant: "ada", user: None };
    const NEED: Need = Need { likely: 30, most: 100 };

    fn uses(ledger: &mut Ledger, tokens: u64) {
        let usage = Usage { prompt: tokens, ..Usage::default() };
        ledger.book_usage("ada", usage, None);
    }

    #[test]
    fn requests_side_by_side_never_get_more_than_the_budget() {
        let mut ledger = Ledger::default();
        let mut reserve = || ledger.reserve(ADA, (Some(250), None), NEED, false);
        assert_eq!([reserve(), reserve(), reserve()], [Ok(100), Ok(100), Ok(50)]);
        let reserved = Err((Shortage::Reserved, LimitScope::Key));
        assert_eq!(reserve(), reserved);
        uses(&mut ledger, 60);
        ledger.release(ADA, 100);
        assert_eq!(
            ledger.reserve(ADA, (Some(250), None), NEED, false),
            Ok(40),
            "what the first left"
        );
        for (reserved, used) in [(100, 100), (50, 50), (40, 40)] {
            uses(&mut ledger, used);
            ledger.release(ADA, reserved);
        }
        let used_up = Err((Shortage::UsedUp, LimitScope::Key));
        assert_eq!(ledger.reserve(ADA, (Some(250), None), NEED, false), used_up);
        assert_eq!(ledger.reserved, Reservations::default());
    }

    #[test]
    fn many_requests_run_side_by_side_although_each_could_use_a_large_part() {
        let mut ledger = Ledger::default();
        let need = Need { likely: 300, most: 12_000 };
        let mut reserve = || ledger.reserve(ADA, (Some(100_000), None), need, false);
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
        assert_eq!(ledger.reserve(ADA, (Some(250), None), NEED, false), Ok(1));
        let reserved = Err((Shortage::Reserved, LimitScope::Key));
        assert_eq!(ledger.reserve(ADA, (Some(250), None), NEED, false), reserved);
    }

    #[test]
    fn a_user_gets_what_both_budgets_have_left() {
        let user = UserId::new(&KeyDigest::of("key"), b"x");
        let payer = Payer { tenant: "ada", user: Some(user) };
        let mut ledger = Ledger::default();
        assert_eq!(ledger.reserve(payer, (Some(500), Some(40)), NEED, false), Ok(40));
        let other = Payer { user: Some(UserId::new(&KeyDigest::of("key"), b"y")), ..payer };
        assert_eq!(ledger.reserve(other, (Some(500), Some(90)), NEED, false), Ok(90));
        let refused = ledger.reserve(payer, (Some(500), Some(40)), NEED, false);
        assert_eq!(refused, Err((Shortage::Reserved, LimitScope::User)));
        ledger.release(payer, 40);
        ledger.release(other, 90);
        assert_eq!(ledger.reserved, Reservations::default());
    }

    #[test]
    fn a_gateway_grants_what_it_was_allotted_and_asks_for_the_rest() {
        let mut ledger = Ledger::default();
        ledger.share_budgets();
        let reserve = |ledger: &mut Ledger, has_asked| {
            let granted = ledger.reserve(ADA, (Some(250), None), NEED, has_asked);
            granted.map_err(|(shortage, _)| shortage)
        };
        assert_eq!(reserve(&mut ledger, false), Err(Shortage::Unallotted(100)));
        ledger.set_allotment("ada", 170);
        assert_eq!(reserve(&mut ledger, false), Ok(100));
        assert_eq!(reserve(&mut ledger, false), Err(Shortage::Unallotted(30)));
        assert_eq!(reserve(&mut ledger, true), Ok(70), "others have the rest");
        assert_eq!(reserve(&mut ledger, true), Err(Shortage::Reserved));
        uses(&mut ledger, 60);
        ledger.release(ADA, 100);
        assert_eq!(reserve(&mut ledger, true), Ok(40), "what the first left of the allotment");
        assert!(ledger.give_back().is_empty(), "a request has needed it");
        ledger.release(ADA, 40);
        assert_eq!(ledger.give_back(), [("ada".into(), 40)]);
        assert!(ledger.give_back().is_empty());
        ledger.set_allotments([("ada".into(), 90)]);
        assert_eq!(reserve(&mut ledger, true), Err(Shortage::Reserved), "20 would be too few");
        assert_eq!(ledger.give_back(), [("ada".into(), 20)], "for a request elsewhere");
        ledger.set_allotments([]);
        uses(&mut ledger, 190);
        assert_eq!(reserve(&mut ledger, false), Err(Shortage::UsedUp));
    }
}
