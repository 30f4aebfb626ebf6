//! `flotilla-gateway top`: the fleet in a terminal, drawn anew every second. What is drawn is
//! [`frame`], pure; the terminal is [`screen`], what is asked of the gateway [`super::nodes`].

pub mod frame;
pub mod keys;
pub mod run;
pub mod screen;

pub use run::{once, run};
