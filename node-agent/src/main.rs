//! `flotilla-agent`

use std::process::ExitCode;

fn main() -> ExitCode {
    flotilla_agent::commands::run()
}
