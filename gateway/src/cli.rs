//! Commands of `flotilla-gateway` beside `run` and `check`.

pub mod keys;
pub mod nodes;
pub mod top;
