//! Coding agents, as they come from npm, before a real gateway (`make test-clients`). A scripted
//! node plays a model that calls the right tools; a real node runs next to it. Nothing leaves this
//! machine: the programs find a proxy at which nobody listens.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod claude_code;
mod codex;
mod program;
mod script;
