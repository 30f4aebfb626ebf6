//! Metrics that gateway and agent share. The Prometheus client library does the counting and the
//! text format; this crate adds a registry that lists its families, so that the reference in
//! docs/metrics.md is generated from the code.
//!
//! - [`MetricsBuilder`]: creates metric families; start reading here. [`MetricsRegistry`] is the
//!   result, with the families of the program and their descriptions.
//! - [`Process`]: CPU time, memory and open files of a process.
//! - [`build_info`]: version, commit and compiler, as labels of a family.
//! - [`encode_text`]: the response to a scrape.

#![warn(unreachable_pub)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")
)]

mod builder;
mod process;

pub use builder::{FamilyDescription, MetricsBuilder, MetricsRegistry, encode_text};
pub use process::Process;

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit of this build, set by `make dist`.
pub const REVISION: &str = match option_env!("FLOTILLA_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};
/// Version of the compiler that built it.
pub const RUSTC: &str = env!("FLOTILLA_RUSTC");

/// Adds a family with this name whose labels describe the build.
///
/// # Errors
/// Another family has that name.
pub fn build_info(builder: &mut MetricsBuilder, name: &str) -> prometheus::Result<()> {
    let help = "Always 1; what the program was built from is in its labels.";
    let build = builder.gauges(name, help, &["version", "revision", "rustc"])?;
    build.with_label_values(&[VERSION, REVISION, RUSTC]).set(1);
    Ok(())
}
