//! What every parser of untrusted bytes must do, whatever the bytes: one function for each parser.
//!
//! A function panics where a property does not hold. libFuzzer calls it with bytes that it
//! invents (`libfuzzer/`, `make fuzz`); `tests/corpus.rs` calls the same function with the bytes
//! in `corpus/`, so that `make test` replays every finding without a fuzzer.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a property that does not hold must stop the fuzzer"
)]

mod chat_template;
mod config;
mod gguf;
mod grammar;
mod http;
mod input;
mod message_batch;
mod prefix_file;
mod request;
mod resume;
mod sse;
mod tool_calls;

pub use chat_template::chat_template;
pub use config::config;
pub use gguf::gguf;
pub use grammar::{gbnf, json_schema, lark};
pub use http::http;
pub use message_batch::message_batch;
pub use prefix_file::prefix_file;
pub use request::request;
pub use resume::resume;
pub use sse::sse;
pub use tool_calls::tool_calls;

/// A fuzz target.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also the name of its binary and of its corpus.
pub const TARGETS: [(&str, Target); 13] = [
    ("http", http),
    ("request", request),
    ("message_batch", message_batch),
    ("sse", sse),
    ("resume", resume),
    ("gguf", gguf),
    ("prefix_file", prefix_file),
    ("gbnf", gbnf),
    ("json_schema", json_schema),
    ("lark", lark),
    ("tool_calls", tool_calls),
    ("chat_template", chat_template),
    ("config", config),
];
