//! What was used, and when.

use serde::{Deserialize, Serialize};

/// What a tenant, or one of its users, has used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Used {
    /// Prompt and completion tokens.
    pub tokens: u64,
    /// Spend at external endpoints.
    pub spend: f64,
}

impl Used {
    /// Adds what else was used.
    pub(crate) fn add(&mut self, more: Self) {
        self.tokens = self.tokens.saturating_add(more.tokens);
        self.spend += more.spend;
    }
}

/// A day and its month, as consecutive numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Date {
    /// The day.
    pub day: u64,
    /// The month.
    pub month: u64,
}
