//! The log of a program.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Logs to stderr from here on: text on a terminal, otherwise JSON lines. `RUST_LOG` chooses the
/// lines; the default is `info`.
pub fn start_log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // Otherwise a log line that cannot be written (full disk) causes a panic.
    let log = tracing_subscriber::fmt().log_internal_errors(false);
    let log = log.with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        log.init();
    } else {
        log.json().flatten_event(true).with_current_span(false).init();
    }
}
