//! Passes the version of the compiler to the code.

use std::process::Command;

fn main() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output();
    let text = output.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    // `rustc 1.95.0 (abc 2026-01-01)`
    let version = text.as_deref().and_then(|text| text.split_whitespace().nth(1));
    let mut out = std::io::stdout();
    let lines = format!(
        "cargo::rustc-env=FLOTILLA_RUSTC={}\ncargo::rerun-if-changed=build.rs\n",
        version.unwrap_or("unknown")
    );
    let _ = std::io::Write::write_all(&mut out, lines.as_bytes());
}
