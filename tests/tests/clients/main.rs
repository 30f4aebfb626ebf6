//! Coding agents, as they come from npm, and Open WebUI, as it comes from PyPI, before a real
//! gateway (`make test-clients`). Scripted nodes play a model that says what each test needs; a
//! real node runs next to them. Nothing leaves this machine: the programs find a proxy at which
//! nobody listens.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod claude_code;
mod codex;
mod open_webui;
mod program;
mod script;
mod web_page;
