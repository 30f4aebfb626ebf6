//! The engine of a node, as a library: no network, no async runtime, no metrics.
//!
//! Modules are layers, and a layer imports only the layers below it. From the top:
//!
//! - [`tools`]: benchmarks, tuning, and model files with random weights.
//! - [`llama`]: llama.cpp: weights, contexts, the tokenizer, CPU kernels. The only unsafe code.
//! - [`prepare`]: turns a request into a job: tokens, and the grammar that they must follow.
//! - [`scheduler`]: the engine's thread and its step: queue, KV pool, batches, sampling.
//! - [`text`]: chat templates, grammars, and the parser of a model's output.
//! - [`model_file`]: the header of a GGUF file, and the plan for the memory that it takes.
//! - [`hardware`]: CPUs, memory, and control groups of this machine, and what instructions it runs.
//! - [`types`]: what every layer shares: requests, events, and the traits of a model.
//!
//! A request becomes a [`scheduler::sequence::Job`] in [`prepare`]. The thread of
//! [`scheduler::engine_thread`] drives [`scheduler::step::Engine`]: commands -> plan
//! ([`scheduler::queue`], [`scheduler::kv_pool`], [`scheduler::pace`], [`scheduler::planning`]) ->
//! decode ([`types::model::Model`]) -> sample ([`scheduler::sampler`]) -> emit ([`text::utf8`],
//! [`text::stop`]). Everything but [`llama`] and that thread is pure.

pub mod hardware;
pub mod llama;
pub mod model_file;
pub mod prepare;
pub mod scheduler;
pub mod text;
pub mod tools;
pub mod types;
