//! What running on Kubernetes asks of the binaries, and the chart, with Helm's own engine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stderr, reason = "skipped tests say so")]

mod certificates;
mod cgroup;
mod chart;
mod replicas;
mod users;
