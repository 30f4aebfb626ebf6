//! What the metrics of gateway and agent have in common: families that are made and listed in one
//! place, the process, and the build. The list is what the reference in the docs is made of.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")
)]

mod maker;
mod process;

pub use maker::{Made, Maker, Sheet, text};
pub use process::Process;

/// The version of this build.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit that it was built from; `make dist` tells it.
pub const REVISION: &str = match option_env!("FLOTILLA_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};
/// The compiler that built it.
pub const RUSTC: &str = env!("FLOTILLA_RUSTC");

/// Adds what a program was built from, as a family with that name.
///
/// # Errors
/// Another family has that name.
pub fn build_info(maker: &mut Maker, name: &str) -> prometheus::Result<()> {
    let help = "Always 1; what the program was built from is in its labels.";
    let build = maker.gauges(name, help, &["version", "revision", "rustc"])?;
    build.with_label_values(&[VERSION, REVISION, RUSTC]).set(1);
    Ok(())
}
