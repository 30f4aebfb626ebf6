//! The node: its API, the listener, links to gateways, status, and metrics.

pub mod node;
