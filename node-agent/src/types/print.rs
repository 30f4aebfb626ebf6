//! Writes a command's output to stdout.

use std::io::Write;

/// Prefix of an error about writing the output, which has its own exit code.
pub const UNWRITTEN: &str = "the answer cannot be written";

/// Writes text and a newline to stdout.
pub fn say(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(|e| format!("{UNWRITTEN}: {e}"))
}
