//! Programs of this machine that tests use.

use std::path::PathBuf;
use std::process::Command;

/// Whether a tool is in the path; says so where it is not.
pub fn has(tool: &str, package: &str) -> bool {
    has_in(&std::env::var("PATH").unwrap_or_default(), tool, package)
}

/// As [`has`], for another path.
pub fn has_in(path: &str, tool: &str, package: &str) -> bool {
    let found = path.split(':').any(|folder| PathBuf::from(folder).join(tool).exists());
    if !found {
        skipped(&format!("this test needs {tool} (apt-get install {package})"));
    }
    found
}

/// Says why a test is skipped; fails with `FLOTILLA_NO_SKIP`.
pub fn skipped(why: &str) {
    assert!(std::env::var_os("FLOTILLA_NO_SKIP").is_none(), "not skipped: {why}");
    eprintln!("skipped: {why}");
}

/// What a program prints, error output included; it must succeed.
pub fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let printed = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {printed}");
    printed
}
