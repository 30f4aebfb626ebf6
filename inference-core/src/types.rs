//! Types that every layer shares: requests and events, constraints, the traits that a model
//! implements, and number formatting. The lowest layer: nothing here imports another folder.

pub mod constraint;
pub(crate) mod embedder;
pub mod model;
pub mod request;
pub mod tool_choice;
pub mod units;
pub mod unknown_name;
