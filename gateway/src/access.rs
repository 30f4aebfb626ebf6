//! Who may use how much: API keys, their rate limits and budgets.

pub mod keys;
