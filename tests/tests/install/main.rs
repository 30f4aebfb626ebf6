//! A release, from the folder that is published to a fleet on a clean system: archives, install.sh
//! and container images, made of the binaries that the tests run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stderr, reason = "skipped tests say so")]

mod fresh;
mod images;
mod release;
mod script;
mod system;

use std::path::PathBuf;
use std::process::Command;

use rustix::process::geteuid;

/// Whether a tool is here; says so where it is not.
fn has(tool: &str, package: &str) -> bool {
    let path = std::env::var("PATH").unwrap_or_default();
    let found = path.split(':').any(|folder| PathBuf::from(folder).join(tool).exists());
    if !found {
        eprintln!("skipped: this test needs {tool} (apt-get install {package})");
    }
    found
}

/// Whether this is root; says so where it is not.
fn is_root() -> bool {
    let root = geteuid().is_root();
    if !root {
        eprintln!("skipped: this test needs root");
    }
    root
}

/// What a program prints, error output included; it must succeed.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {printed}");
    printed
}
