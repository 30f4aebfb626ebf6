//! `flotilla-gateway top`: shows the fleet in a terminal, refreshed every second. [`frame`] (pure)
//! draws the screen and [`tables`] (pure) its tables, by the settings of a [`view`] that keys
//! change. [`screen`] is the terminal, and [`super::nodes`] asks the gateway.

pub(crate) mod frame;
pub(crate) mod run;
pub mod screen;
pub(crate) mod style;
pub(crate) mod tables;
pub(crate) mod view;

pub use run::once;
pub use run::run;
