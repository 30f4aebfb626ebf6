//! What the engine's process is told on its command line.

use std::path::PathBuf;

use inference_core::hardware::Kernel;
use inference_core::llama::{FlashAttention, KvType, Pooling};
use inference_core::model_file::memory_plan::LoadMode;
use serde::{Deserialize, Serialize};

use crate::engine::model_files::digest::Fingerprint;
use crate::engine::sandbox::Choice;

/// What the engine's process is told on its command line, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EngineOptions {
    /// The model file: an argument of its own, because JSON holds no path that is not text.
    #[serde(skip)]
    pub model: PathBuf,
    /// Which weights the file holds: an engine that finds others does not begin.
    pub digest: Fingerprint,
    /// Whether it confines itself before it parses the file.
    pub sandbox: Choice,
    /// The CPU kernels, proven by the agent.
    pub kernel: Kernel,
    /// Sequences side by side.
    pub slots: u32,
    /// Tokens of one sequence.
    pub context_tokens: u32,
    /// Tokens of all sequences together, live and kept.
    pub kv_cells: u32,
    /// Whether prompts that begin alike share that.
    pub prefix_cache: bool,
    /// For a model whose file does not say how it makes vectors.
    pub pooling: Option<Pooling>,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Whether attention is computed in tiles.
    pub flash_attention: FlashAttention,
    /// How the weights come into memory.
    pub load: LoadMode,
    /// Whether the kernel is asked for huge pages.
    pub huge_pages: bool,
    /// CPUs that compute.
    pub cpus: Option<Vec<u32>>,
    /// Threads that compute.
    pub threads: u32,
    /// Most rows of one batch.
    pub batch_rows: u32,
    /// How long threads look for work before they sleep, 0 to 100.
    pub poll: u32,
    /// What the memory plan says that all this takes, in bytes; nothing without a plan.
    pub planned_bytes: Option<u64>,
}
