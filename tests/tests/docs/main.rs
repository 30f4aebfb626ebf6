//! The documentation is true: what is made of the code is current, every command is run by a real
//! shell with real programs, every link leads somewhere, and every claim names a test that exists.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stderr, reason = "skipped tests say so")]

mod app_developer;
mod blocks;
mod capacity;
mod claims;
mod clients;
mod config;
mod current;
mod describe;
mod engines;
mod errors;
mod fields;
mod openapi;
mod pages;
mod symptoms;
mod terminal;
mod translated;
mod unsupported;
