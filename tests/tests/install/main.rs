//! A release, from the folder that is published to a fleet on a clean system: archives, install.sh
//! and container images, made of the binaries that the tests run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stderr, reason = "skipped tests say so")]

mod chart;
mod components;
mod fresh;
mod images;
mod release;
mod script;
mod system;

use fleet_tests::tools::skipped;
use rustix::process::geteuid;

/// Whether this is root; says so where it is not.
fn is_root() -> bool {
    let root = geteuid().is_root();
    if !root {
        skipped("this test needs root");
    }
    root
}
