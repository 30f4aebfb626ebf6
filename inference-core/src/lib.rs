//! The engine of a node, as a library: no network, no async runtime, no metrics.
//!
//! A request's way: [`prepare`] turns it into tokens (through [`chat_template`]), a
//! [`sequence::Job`] goes to the [`engine`]'s thread, which drives [`step::Engine`]:
//! commands -> plan ([`queue`], [`pool`], [`pace`],
//! [`scheduler`]) -> decode ([`model::Model`]) -> sample ([`sampler`])
//! -> emit ([`utf8`], [`stop`]). Before all that, [`gguf`] checks the model file and
//! [`hardware`] proves which CPU kernels run on this machine.
//!
//! Everything but [`llama`] and the thread in [`engine`] is pure; `llama` holds the only
//! unsafe code of the workspace.

pub mod answer;
pub mod bench;
pub mod chat_template;
pub mod embed;
pub mod engine;
pub mod fake;
pub mod gguf;
pub mod grammar;
pub mod hardware;
pub mod llama;
pub mod model;
pub mod pace;
pub mod plan;
pub mod pool;
pub mod prepare;
pub mod queue;
pub mod request;
pub mod sampler;
pub mod scheduler;
pub mod sequence;
pub mod step;
pub mod stop;
pub mod synth;
pub mod tune;
pub mod types;
pub mod units;
pub mod utf8;
