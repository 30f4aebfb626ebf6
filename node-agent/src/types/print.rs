//! Writes the answer of a command.

use std::io::Write;

/// How an error begins that is about what is printed: it has an exit code of its own.
pub const UNWRITTEN: &str = "the answer cannot be written";

/// Writes text and a newline.
pub fn say(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.map_err(|e| format!("{UNWRITTEN}: {e}"))
}
