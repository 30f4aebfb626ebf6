//! Background tasks that run as long as the gateway. [`crate::app`] starts them.

pub mod external_endpoints;
pub mod hourly_cost;
pub mod probes;
pub mod reconcile;
pub mod reload;
pub mod state_file;
pub mod systemd;
pub mod trace_export;
