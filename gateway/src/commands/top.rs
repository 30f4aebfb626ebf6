//! `flotilla-gateway top`: shows the fleet in a terminal, refreshed every second. [`frame`] (pure)
//! renders the lines, [`screen`] is the terminal, and [`super::nodes`] asks the gateway.

pub(crate) mod frame;
pub(crate) mod keys;
pub(crate) mod run;
pub mod screen;

pub use run::{once, run};
