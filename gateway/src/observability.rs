//! What the gateway reports about itself: Prometheus metrics, OpenTelemetry traces, and the history
//! of the last minutes.

pub(crate) mod history;
pub mod metrics;
pub mod traces;
