//! The node as gateways and clients see it: [`listener`] and [`join`] accept requests, [`api`]
//! handles them, [`stream`] writes what the engine generates, [`status`] and [`metrics`] report
//! load and speed.

pub mod api;
pub mod join;
pub mod listener;
pub mod metrics;
pub mod node;
mod request_id;
pub mod status;
pub mod stream;
pub mod vitals;
