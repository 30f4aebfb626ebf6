//! Real servers of others as external endpoints before a real gateway (`make test-engines`):
//! llama-server as Debian packages it, llama-cpp-python's server, and vLLM for CPUs. Each serves
//! the demo model, so what they say is known.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod engine;
mod llama_cpp_python;
mod llama_server;
mod speaks;
mod vllm;
