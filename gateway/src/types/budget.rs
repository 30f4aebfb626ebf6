//! Budgets: what each is of, and how much of it there is.
//!
//! Amounts are whole numbers, so that they add up exactly: tokens, or billionths of the currency's
//! unit.

use super::limits::LimitScope;
use super::usage::Date;
use super::user::UserId;

/// Billionths of the currency's unit.
const BILLION: f64 = 1e9;

/// Money in billionths of the currency's unit.
pub(crate) fn billionths(money: f64) -> u64 {
    (money * BILLION).round() as u64
}

/// The same, rounded up.
pub(crate) fn billionths_up(money: f64) -> u64 {
    (money * BILLION).ceil() as u64
}

/// Billionths of the currency's unit as money.
pub(crate) fn money(billionths: u64) -> f64 {
    billionths as f64 / BILLION
}

/// What a budget is of.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum BudgetId {
    /// Tokens of a tenant in a month.
    Tokens(String),
    /// Spend of a tenant in a month.
    Spend(String),
    /// Spend at an external endpoint on a day.
    EndpointSpend(String),
    /// Tokens of a tenant's user in a month.
    UserTokens(String, UserId),
    /// Spend of a tenant's user in a month.
    UserSpend(String, UserId),
}

impl BudgetId {
    /// The kind, in tables and files.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Tokens(_) => "tokens",
            Self::Spend(_) => "spend",
            Self::EndpointSpend(_) => "endpoint_spend",
            Self::UserTokens(..) => "user_tokens",
            Self::UserSpend(..) => "user_spend",
        }
    }

    /// Who has it, in tables and files.
    pub(crate) fn owner(&self) -> String {
        match self {
            Self::Tokens(name) | Self::Spend(name) | Self::EndpointSpend(name) => name.clone(),
            Self::UserTokens(tenant, user) | Self::UserSpend(tenant, user) => {
                user_name(tenant, *user)
            }
        }
    }

    /// The budget of this kind and owner. `None` if there is no such kind.
    pub(crate) fn of(kind: &str, owner: &str) -> Option<Self> {
        let user = || {
            let (tenant, user) = owner.split_once('/')?;
            Some((tenant.to_string(), UserId::try_from(user.to_string()).ok()?))
        };
        match kind {
            "tokens" => Some(Self::Tokens(owner.into())),
            "spend" => Some(Self::Spend(owner.into())),
            "endpoint_spend" => Some(Self::EndpointSpend(owner.into())),
            "user_tokens" => user().map(|(tenant, user)| Self::UserTokens(tenant, user)),
            "user_spend" => user().map(|(tenant, user)| Self::UserSpend(tenant, user)),
            _ => None,
        }
    }

    /// The day or the month that it lasts.
    pub(crate) fn period(&self, date: Date) -> u64 {
        if self.is_daily() { date.day } else { date.month }
    }

    /// True if it lasts a day, not a month.
    pub(crate) fn is_daily(&self) -> bool {
        matches!(self, Self::EndpointSpend(_))
    }

    /// True if it is money, not tokens.
    pub(crate) fn is_money(&self) -> bool {
        matches!(self, Self::Spend(_) | Self::EndpointSpend(_) | Self::UserSpend(..))
    }

    /// Whose limit it is.
    pub(crate) fn scope(&self) -> LimitScope {
        match self {
            Self::UserTokens(..) | Self::UserSpend(..) => LimitScope::User,
            Self::Tokens(_) | Self::Spend(_) | Self::EndpointSpend(_) => LimitScope::Key,
        }
    }
}

/// A user in tables and files. No name of a tenant has a slash.
pub(crate) fn user_name(tenant: &str, user: UserId) -> String {
    format!("{tenant}/{user}")
}

/// What a gateway needs of a budget beyond its allotment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ask {
    /// The budget.
    pub id: BudgetId,
    /// How much it is for all gateways.
    pub budget: u64,
    /// How much more is needed.
    pub amount: u64,
    /// How much more is of any use, as long as other gateways have a part of the budget.
    pub least: u64,
}

/// What a gateway may grant of a budget, after it has asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allotted {
    /// The budget.
    pub id: BudgetId,
    /// How much of it, including what it has used and not stored.
    pub amount: u64,
    /// How much all gateways have used and stored.
    pub used: u64,
    /// True if nothing is left to ask for.
    pub is_exhausted: bool,
    /// True if no other gateway has been allotted any of it.
    pub is_sole: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::secret::KeyDigest;

    #[test]
    fn each_budget_is_found_again_by_kind_and_owner() {
        let user = UserId::new(&KeyDigest::of("key"), b"x");
        let all = [
            BudgetId::Tokens("ada".into()),
            BudgetId::Spend("ada".into()),
            BudgetId::EndpointSpend("external:gpu".into()),
            BudgetId::UserTokens("ada".into(), user),
            BudgetId::UserSpend("ada".into(), user),
        ];
        for id in all {
            assert_eq!(BudgetId::of(id.kind(), &id.owner()), Some(id));
        }
        assert_eq!(BudgetId::of("user_tokens", "ada"), None);
        assert_eq!(BudgetId::of("user_spend", "ada/x"), None);
        assert_eq!(BudgetId::of("other", "ada"), None);
    }

    #[test]
    fn money_is_exact_to_a_billionth() {
        assert_eq!(billionths(0.1) + billionths(0.2), billionths(0.3));
        assert_eq!((money(1_500_000_000), billionths(-1.0)), (1.5, 0));
        assert_eq!((billionths(1.2e-9), billionths_up(1.2e-9)), (1, 2));
    }
}
