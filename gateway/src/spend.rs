//! PURE. What was used and spent: of external endpoints today, by tenants this month.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use inference_protocol::resume::Usage;
use serde::{Deserialize, Serialize};

const MILLION: f64 = 1e6;

/// What an external endpoint costs, in whatever currency the operator thinks in.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Prices {
    /// For a million tokens of prompts.
    pub prompt: f64,
    /// For a million generated tokens.
    pub completion: f64,
    /// For an hour, used or not.
    pub hour: f64,
    /// Most that may be spent on tokens in a day (UTC).
    pub day_max: Option<f64>,
}

impl Prices {
    /// Of an answer's tokens.
    pub fn of(&self, usage: Usage) -> f64 {
        (usage.prompt as f64 * self.prompt + usage.completion as f64 * self.completion) / MILLION
    }

    /// Whether tokens cost anything.
    pub fn are_by_token(&self) -> bool {
        self.prompt > 0.0 || self.completion > 0.0
    }
}

/// What a tenant may use in a month (UTC). Absent is unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Budget {
    /// Tokens of prompts and answers.
    pub tokens: Option<NonZeroU64>,
    /// What external endpoints are paid for its tokens.
    pub spend: Option<f64>,
}

impl Budget {
    /// Whether there is one.
    pub fn is_set(&self) -> bool {
        *self != Self::default()
    }
}

/// What of its budget a tenant has used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exhausted {
    /// Tokens.
    Tokens,
    /// Spend.
    Spend,
}

/// What a tenant has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Used {
    /// Tokens of prompts and answers.
    pub tokens: u64,
    /// What external endpoints were paid for them.
    pub spend: f64,
}

/// A day, and the month that it is in; both counted from wherever.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Date {
    /// The day.
    pub day: u64,
    /// The month.
    pub month: u64,
}

/// What was spent today, by endpoint, and used this month, by tenant. Both are names of the
/// configuration, so that this cannot grow without end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ledger {
    date: Date,
    spent: BTreeMap<String, f64>,
    used: BTreeMap<String, Used>,
}

impl Ledger {
    /// It is that day now. A new day, and a new month, begin with nothing.
    pub fn turn(&mut self, date: Date) {
        if self.date.day != date.day {
            self.spent.clear();
        }
        if self.date.month != date.month {
            self.used.clear();
        }
        self.date = date;
    }

    /// A tenant has used tokens, and an endpoint was paid so much for them.
    pub fn account(&mut self, tenant: &str, usage: Usage, paid: Option<(&str, f64)>) {
        let amount = paid.map_or(0.0, |(_, amount)| amount);
        let tokens = usage.prompt.saturating_add(usage.completion);
        change(&mut self.used, tenant, |used: &mut Used| {
            used.tokens = used.tokens.saturating_add(tokens);
            used.spend += amount;
        });
        if let Some((endpoint, amount)) = paid {
            change(&mut self.spent, endpoint, |spent| *spent += amount);
        }
    }

    /// What an endpoint was paid today.
    pub fn spent(&self, endpoint: &str) -> f64 {
        self.spent.get(endpoint).copied().unwrap_or(0.0)
    }

    /// Whether an endpoint may be used today.
    pub fn has_room(&self, endpoint: &str, prices: &Prices) -> bool {
        prices.day_max.is_none_or(|max| self.spent(endpoint) < max)
    }

    /// What a tenant has used this month.
    pub fn used(&self, tenant: &str) -> Used {
        self.used.get(tenant).copied().unwrap_or_default()
    }

    /// Whether a tenant may use more this month.
    ///
    /// # Errors
    /// What it has used up.
    pub fn allows(&self, tenant: &str, budget: &Budget) -> Result<(), Exhausted> {
        let used = self.used(tenant);
        if budget.tokens.is_some_and(|max| used.tokens >= max.get()) {
            return Err(Exhausted::Tokens);
        }
        match budget.spend.is_some_and(|max| used.spend >= max) {
            true => Err(Exhausted::Spend),
            false => Ok(()),
        }
    }
}

/// Changes the value of a name; the name is copied only where it is new.
fn change<V: Default>(map: &mut BTreeMap<String, V>, name: &str, change: impl FnOnce(&mut V)) {
    match map.get_mut(name) {
        Some(value) => change(value),
        None => change(map.entry(name.to_string()).or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Date = Date { day: 7, month: 3 };

    fn tokens(count: u64) -> Usage {
        Usage { prompt: count / 2, completion: count - count / 2, cached: 0 }
    }

    #[test]
    fn tokens_cost_what_their_kind_does() {
        let prices = Prices { prompt: 1.0, completion: 4.0, ..Prices::default() };
        let usage = Usage { prompt: 500_000, completion: 250_000, cached: 0 };
        assert_eq!(prices.of(usage), 1.5);
    }

    #[test]
    fn what_is_spent_today_is_spent_until_tomorrow() {
        let prices = Prices { day_max: Some(2.0), ..Prices::default() };
        let mut ledger = Ledger::default();
        ledger.turn(DAY);
        ledger.account("ada", tokens(1), Some(("gpu", 1.9)));
        assert!(ledger.has_room("gpu", &prices));
        ledger.account("bob", tokens(1), Some(("gpu", 0.2)));
        assert!(!ledger.has_room("gpu", &prices) && ledger.has_room("other", &prices));
        assert!(ledger.has_room("gpu", &Prices::default()), "no limit");
        ledger.turn(DAY);
        assert!(!ledger.has_room("gpu", &prices));
        ledger.turn(Date { day: 8, ..DAY });
        assert!(ledger.has_room("gpu", &prices));
    }

    #[test]
    fn a_budget_lasts_until_the_month_is_over() {
        let budget = Budget { tokens: NonZeroU64::new(100), spend: Some(2.0) };
        let mut ledger = Ledger::default();
        ledger.turn(DAY);
        ledger.account("ada", tokens(99), None);
        assert_eq!(ledger.allows("ada", &budget), Ok(()));
        ledger.account("ada", tokens(1), None);
        ledger.account("bob", tokens(9), Some(("gpu", 2.0)));
        assert_eq!(ledger.allows("ada", &budget), Err(Exhausted::Tokens));
        assert_eq!(ledger.allows("bob", &budget), Err(Exhausted::Spend));
        assert_eq!(ledger.allows("ada", &Budget::default()), Ok(()));
        ledger.turn(Date { day: 8, ..DAY });
        assert_eq!(ledger.used("bob"), Used { tokens: 9, spend: 2.0 });
        ledger.turn(Date { day: 40, month: 4 });
        assert_eq!(ledger.used("bob"), Used::default());
    }
}
