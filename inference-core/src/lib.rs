//! The inference engine of a node, as a library: no network, no async runtime, no metrics.
//!
//! Modules are layers, and a layer imports only the layers below it. From the top:
//!
//! - [`tools`]: benchmarks, tuning, and model files with random weights.
//! - [`llama`]: llama.cpp: weights, contexts, the tokenizer, CPU kernels. The only unsafe code.
//! - [`prepare`]: turns a request into a job: its tokens, and the grammar they must follow.
//! - [`scheduler`]: the engine thread and its step: queue, KV pool, batches, sampling.
//! - [`text`]: chat templates, grammars, and the parser of model output.
//! - [`model_file`]: the header of a GGUF file, and the plan of the memory the model takes.
//! - [`hardware`]: CPUs, memory, and control groups of this machine, and its instruction sets.
//! - [`types`]: types that all layers share: requests, events, and the traits of a model.
//!
//! [`prepare`] turns a request into a [`scheduler::sequence::Job`]. The thread of
//! [`scheduler::engine_thread`] drives [`scheduler::step::Engine`]: commands -> plan
//! ([`scheduler::queue`], [`scheduler::kv_pool`], [`scheduler::step_pace`],
//! [`scheduler::planning`]) -> decode ([`types::model::Model`]) -> sample ([`scheduler::sampler`])
//! -> emit ([`text::utf8`], [`text::stop`]). Everything except [`llama`] and that thread is pure.
//! Start reading with [`scheduler::step`].

#![warn(unreachable_pub)]

pub mod hardware;
pub mod llama;
pub mod model_file;
pub mod prepare;
pub mod scheduler;
pub mod text;
pub mod tools;
pub mod types;
