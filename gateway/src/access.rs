//! Access control: API keys, their rate limits, and budgets.

pub mod keys;
pub mod limiter;
pub mod quarantine;
pub mod responses;
pub mod spend;
pub mod users;
