//! What was used, and when.

use std::time::SystemTime;

use chrono::{DateTime, Datelike};
use inference_protocol::time::unix_seconds;
use serde::{Deserialize, Serialize};

const DAY_SECONDS: u64 = 24 * 60 * 60;

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

/// A day and its month (UTC), as consecutive numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Date {
    /// Days since 1970.
    pub day: u64,
    /// Months since year 0.
    pub month: u64,
}

impl Date {
    /// The date of a time in seconds since 1970.
    pub(crate) fn at(seconds: u64) -> Self {
        let date = i64::try_from(seconds).ok().and_then(|at| DateTime::from_timestamp(at, 0));
        let month = |date: DateTime<_>| {
            u64::from(date.year().unsigned_abs()) * 12 + u64::from(date.month0())
        };
        Self { day: seconds / DAY_SECONDS, month: date.map_or(0, month) }
    }

    /// Today.
    pub(crate) fn today() -> Self {
        Self::at(unix_seconds(SystemTime::now()))
    }
}
