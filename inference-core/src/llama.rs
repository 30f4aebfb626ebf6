//! Safe wrapper of llama.cpp, and the only unsafe code of the workspace.
//!
//! It uses raw bindings (llama-cpp-sys-2) instead of a safe crate because the engine needs what
//! none of them offers: choosing the CPU kernels, limiting the output rows, attaching a thread
//! pool. llama.cpp aborts on misuse and may throw, so inputs are checked before they reach it, and
//! the whole module runs in a process that may be restarted.

#![expect(unsafe_code, reason = "the binding to llama.cpp")]

mod attention;
mod batch;
mod context;
mod device;
mod draft;
mod embedder;
mod kernel;
mod kv_type;
mod load_error;
mod loading;
mod log;
mod mapped;
mod mtp_head;
mod numa;
mod output_rows;
mod peak;
mod probe;
mod product;
mod quantize;
mod stop;
mod text_rules;
mod threads;
mod tokenizer;
mod trial_error;
mod weights;
mod workers;

#[cfg(test)]
mod element_tests;
#[cfg(test)]
mod recurrent_tests;
#[cfg(test)]
mod test_graph;
#[cfg(test)]
mod tokenizer_tests;

pub use context::{BATCH_ROWS, ContextOptions, FlashAttention, LlamaModel, POLL};
pub use draft::draft_model;
pub use embedder::{EmbedOptions, LlamaEmbedder};
pub use kernel::{register, trial};
pub use kv_type::KvType;
pub use load_error::LoadError;
pub use loading::Loading;
pub use mapped::MappedFiles;
pub use mtp_head::mtp_head;
pub use numa::spread_memory;
pub use peak::products_per_second;
pub use probe::{is_claimed, probe};
pub(crate) use quantize::{quantize, row_bytes};
pub use tokenizer::LlamaTokenizer;
pub use trial_error::TrialError;
pub use weights::{Pooling, Weights};
