//! Background tasks that run as long as the gateway. [`crate::app`] starts them.

pub(crate) mod acme;
mod asking;
pub(crate) mod background;
pub(crate) mod batches;
pub(crate) mod deletions;
pub(crate) mod external_endpoints;
pub(crate) mod hourly_cost;
pub(crate) mod maintenance;
pub(crate) mod presence;
pub(crate) mod probes;
pub(crate) mod reconcile;
pub mod reload;
mod room;
pub(crate) mod shared_settings;
pub(crate) mod state_file;
pub(crate) mod systemd;
pub(crate) mod trace_export;
pub(crate) mod usage;
pub(crate) mod webhooks;
