//! PURE. What external endpoints cost, and what is left to spend on them today.

use std::collections::BTreeMap;

use inference_protocol::resume::Usage;

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

/// What was spent on tokens today, by endpoint.
#[derive(Debug, Default)]
pub struct Ledger {
    day: u64,
    spent: BTreeMap<String, f64>,
}

impl Ledger {
    /// It is that day now, counted from wherever. A new day begins with nothing spent.
    pub fn turn(&mut self, day: u64) {
        if self.day != day {
            (self.day, self.spent) = (day, BTreeMap::new());
        }
    }

    /// An endpoint was paid.
    pub fn pay(&mut self, endpoint: &str, amount: f64) {
        match self.spent.get_mut(endpoint) {
            Some(spent) => *spent += amount,
            None => {
                self.spent.insert(endpoint.to_string(), amount);
            }
        }
    }

    /// Whether an endpoint may be used today.
    pub fn has_room(&self, endpoint: &str, prices: &Prices) -> bool {
        let spent = self.spent.get(endpoint).copied().unwrap_or(0.0);
        prices.day_max.is_none_or(|max| spent < max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ledger.turn(7);
        ledger.pay("gpu", 1.9);
        assert!(ledger.has_room("gpu", &prices));
        ledger.pay("gpu", 0.2);
        assert!(!ledger.has_room("gpu", &prices) && ledger.has_room("other", &prices));
        assert!(ledger.has_room("gpu", &Prices::default()), "no limit");
        ledger.turn(7);
        assert!(!ledger.has_room("gpu", &prices));
        ledger.turn(8);
        assert!(ledger.has_room("gpu", &prices));
    }
}
