//! The node as gateways and clients see it: [`listener`] and [`join`] accept requests, [`api`]
//! handles them, [`stream`] writes what the engine generates, [`status`] and [`metrics`] report
//! load and speed. A node that leaves hands its saved prefixes over ([`hand_over`]).

pub(crate) mod api;
pub(crate) mod hand_over;
pub(crate) mod join;
pub(crate) mod listener;
pub mod metrics;
pub(crate) mod node;
pub(crate) mod request_id;
pub(crate) mod resources;
pub(crate) mod responses;
pub(crate) mod status;
pub(crate) mod stream;
