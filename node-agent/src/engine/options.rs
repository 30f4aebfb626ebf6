//! The engine process's options.

use std::path::PathBuf;

use inference_core::hardware::Kernel;
use inference_core::llama::{FlashAttention, KvType, Pooling};
use inference_core::model_file::memory_plan::LoadMode;
use serde::{Deserialize, Serialize};

use crate::engine::model_files::digest::Fingerprint;
use crate::engine::prefix_disk::PrefixDiskOptions;
use crate::engine::sandbox::SandboxMode;
use crate::engine::slot_files::SlotFileOptions;
use crate::engine::template::TemplateChoice;

/// The engine process's options, passed on its command line as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct EngineOptions {
    /// Path of the model file: passed as a separate argument, because JSON cannot hold a path that
    /// is not UTF-8.
    #[serde(skip)]
    pub model: PathBuf,
    /// Fingerprint of the weights: an engine that finds others does not start.
    pub digest: Fingerprint,
    /// Whether the engine confines itself before it parses the file.
    pub sandbox: SandboxMode,
    /// The CPU kernels, tested by the agent.
    pub kernel: Kernel,
    pub slots: u32,
    /// Maximum tokens of one sequence.
    pub context_tokens: u32,
    /// KV cells of all sequences, live and kept.
    pub kv_cells: u32,
    /// Share cached prefixes between prompts.
    pub prefix_cache: bool,
    /// Memory for saved prefixes.
    pub saved_prefix_bytes: u64,
    /// Files of saved prefixes, if there are any.
    pub prefix_disk: Option<PrefixDiskOptions>,
    /// Where what slots hold is saved, if it is.
    pub slot_files: Option<SlotFileOptions>,
    /// Compute draft tokens along with the last one, where that is faster.
    pub speculation: bool,
    /// Path of the draft model's file, if there is one: a separate argument, too.
    #[serde(skip)]
    pub draft_model: Option<PathBuf>,
    /// Use the MTP head, which the model's file has.
    pub mtp_head: bool,
    /// Pooling type for an embedding model whose file does not give it.
    pub pooling: Option<Pooling>,
    /// Storage type of keys and values.
    pub kv_type: KvType,
    /// Whether to use flash attention.
    pub flash_attention: FlashAttention,
    /// How the weights are loaded.
    pub load: LoadMode,
    /// Ask the kernel for huge pages.
    pub huge_pages: bool,
    /// CPUs to compute on; `None` is all.
    pub cpus: Option<Vec<u32>>,
    pub threads: u32,
    pub batch_rows: u32,
    /// How long idle threads poll before they sleep, 0 to 100.
    pub poll: u32,
    /// Memory according to the plan, in bytes; `None` without a plan.
    pub planned_bytes: Option<u64>,
    /// The chat template, if not the model file's.
    pub template: TemplateChoice,
}

#[cfg(test)]
impl EngineOptions {
    /// Options for tests.
    pub(crate) fn made_up() -> Self {
        Self {
            model: PathBuf::from("model.gguf"),
            digest: "0".repeat(64).parse().unwrap(),
            sandbox: SandboxMode::Auto,
            kernel: Kernel::Baseline,
            slots: 4,
            context_tokens: 1024,
            kv_cells: 4096,
            prefix_cache: true,
            saved_prefix_bytes: 1 << 20,
            prefix_disk: None,
            slot_files: None,
            speculation: true,
            draft_model: None,
            mtp_head: false,
            pooling: None,
            kv_type: KvType::F16,
            flash_attention: FlashAttention::Auto,
            load: LoadMode::Mmap,
            huge_pages: false,
            cpus: None,
            threads: 1,
            batch_rows: 512,
            poll: 50,
            planned_bytes: None,
            template: TemplateChoice::default(),
        }
    }
}
