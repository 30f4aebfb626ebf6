//! PURE. Computes, before loading, how much memory a model takes on a machine (weights, KV cells,
//! buffers and the rest) compared with the available memory, and what would fit if it does not.
//!
//! Figures are slight overestimates: a plan that fits is safe to load.

pub(crate) mod context;
pub mod draft;
pub mod layout;
pub(crate) mod report;
pub mod search;
pub mod weights;

use serde::{Deserialize, Serialize};

use crate::model_file::gguf::Header;
use crate::types::unknown_name::UnknownName;
use context::{ContextBytes, ContextSizes, cache_kind, context_bytes, head_bytes, sequence_bytes};
use layout::{EmbeddingBatching, Layout};
pub use search::{PlanFailure, PlanRefusal, plan};
use weights::{Repacking, WeightBytes};

/// Default number of slots, if they fit.
pub(crate) const SLOTS_DEFAULT: u64 = 4;
/// Maximum number of slots; the command line has the same limit.
pub const SLOTS_MAX: u64 = 64;
/// Finished sequences that the engine keeps for prompts with the same prefix.
pub(crate) const KEPT_SEQUENCES: u32 = 32;
/// Rows of a batch that may have logits, if there are fewer sequences: drafts need them.
pub(crate) const LOGITS_ROWS_MIN: u32 = 16;
/// llama.cpp's maximum number of sequences.
pub(crate) const SEQUENCES_MAX: u32 = 256;
/// Maximum inputs in a batch of an embedding model.
pub(crate) const EMBED_BATCH_INPUTS: u32 = 64;
/// Rows of a batch of an embedding model, unless one input needs more.
pub(crate) const EMBED_BATCH_ROWS: u32 = 512;
/// Maximum KV cells of a pool.
pub(crate) const CELLS_MAX: u64 = 4 * 1024 * 1024;
/// Programs, heaps and stacks of engine and agent, without a model.
const PROCESS_BYTES: u64 = 24 << 20;
/// Memory that llama.cpp and we use per vocabulary token: its text, in several tables.
const TOKEN_BYTES: u64 = 200;
/// The same for an encoder: it has no merges and never detokenizes.
const ENCODER_TOKEN_BYTES: u64 = 136;
/// Memory that llama.cpp uses per merge.
const MERGE_BYTES: u64 = 160;
/// Memory that llama.cpp uses per KV cell in addition to keys and values.
const CELL_BYTES: u64 = 96;
/// Memory left free for the system: this, or a fraction of the available memory.
const RESERVE_BYTES: u64 = 128 << 20;
const RESERVE_SHARE: u64 = 32;
/// Memory for saved prefixes unless more is requested.
const SAVED_PREFIX_BYTES_MAX: u64 = 4 << 30;
/// The same for models whose sequences share KV cells: only what the pool evicts is saved.
const SAVED_EVICTED_BYTES_MAX: u64 = 1 << 30;

/// How the weights are loaded into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadMode {
    /// Map the file; the kernel may evict unused pages.
    Mmap,
    /// Map the file and lock its pages in memory.
    Mlock,
    /// Read the weights into memory of the process.
    None,
}

impl std::str::FromStr for LoadMode {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "mmap" => Ok(Self::Mmap),
            "mlock" => Ok(Self::Mlock),
            "none" => Ok(Self::None),
            _ => Err(UnknownName::new("load mode", name, &["mmap", "mlock", "none"])),
        }
    }
}

/// What a plan needs to know about the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineFacts {
    /// Memory that this process may use, in bytes.
    pub available_bytes: u64,
    /// Memory that may be locked, in bytes; `None` is unlimited.
    pub lockable_bytes: Option<u64>,
    /// Number of compute threads.
    pub threads: u64,
    /// Which weights the kernels copy into another layout.
    pub repacking: Repacking,
    /// Memory bandwidth of those threads in bytes per second, if measured.
    pub bandwidth: Option<f64>,
    /// Prompt tokens per second, if measured.
    pub prefill_rate: Option<f64>,
}

/// Requested settings. `None` means the best value that fits.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestedSettings {
    /// Number of parallel requests.
    pub slots: Option<u64>,
    /// Maximum tokens of one request.
    pub context_tokens: Option<u64>,
    /// KV cells of the pool; `None` is slots x context.
    pub kv_cells: Option<u64>,
    /// Storage type of keys, such as `f16`.
    pub key_kind: String,
    /// Storage type of values.
    pub value_kind: String,
    /// Use flash attention.
    pub flash_attention: bool,
    /// How the weights are loaded.
    pub load: LoadMode,
    /// Rows of the largest batch.
    pub batch_rows: u64,
    /// Share cached prefixes, if the model allows it.
    pub prefix_cache: bool,
    /// Memory for saved prefixes; `None` is a part of what is left.
    pub saved_prefix_bytes: Option<u64>,
    /// How the model computes embeddings, overriding its file.
    pub embedding_batching: Option<EmbeddingBatching>,
    /// Keep what has left a sliding window.
    pub whole_windows: bool,
    /// Use the MTP head, which the file must have.
    pub mtp_head: bool,
}

impl Default for RequestedSettings {
    /// The engine's defaults.
    fn default() -> Self {
        Self {
            slots: None,
            context_tokens: None,
            kv_cells: None,
            key_kind: "f16".into(),
            value_kind: "f16".into(),
            flash_attention: true,
            load: LoadMode::Mmap,
            batch_rows: 512,
            prefix_cache: true,
            saved_prefix_bytes: None,
            embedding_batching: None,
            whole_windows: false,
            mtp_head: false,
        }
    }
}

/// Memory use by part, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MemoryParts {
    /// Weights in the mapped file that computing uses.
    pub weights_mapped: u64,
    /// Weights in the process's own memory, in the file's layout.
    pub(crate) weights_resident: u64,
    /// Weights copied into a faster layout.
    pub(crate) weights_repacked: u64,
    /// KV cells, recurrent states and buffers.
    #[serde(flatten)]
    pub context: ContextBytes,
    /// Prefixes saved outside the pool, if that was requested.
    pub(crate) saved_prefixes: u64,
    /// Programs, vocabulary and the pool's bookkeeping.
    pub process: u64,
}

/// Memory plan of a model on a machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// `general.architecture`
    pub architecture: String,
    /// `general.name`
    pub name: Option<String>,
    /// True if the architecture's caches are known; if not, the plan assumes those of a plain
    /// transformer.
    pub(crate) known_architecture: bool,
    /// Number of parameters in all tensors.
    pub parameters: u64,
    /// Number of parallel requests.
    pub slots: u64,
    /// Maximum tokens of one request.
    pub context_tokens: u64,
    /// KV cells of the pool.
    pub kv_cells: u64,
    /// True for an embedding model.
    pub(crate) embeds: bool,
    /// Storage type of keys.
    pub key_kind: String,
    /// Storage type of values.
    pub value_kind: String,
    /// How the weights are loaded.
    pub load: LoadMode,
    /// Keys and values of one token, in bytes.
    pub(crate) kv_bytes_per_token: u64,
    /// Memory use by part.
    pub parts: MemoryParts,
    /// Memory that must stay resident: the sum of the parts.
    pub needed_bytes: u64,
    /// Pages of the mapped file that the kernel may evict when memory is short.
    pub(crate) reclaimable_bytes: u64,
    /// Memory that the process may use on this machine.
    pub available_bytes: u64,
    /// Memory left free for everything else.
    pub(crate) reserve_bytes: u64,
    /// Free memory after that; 0 if it does not fit.
    pub(crate) headroom_bytes: u64,
    /// Memory that saved prefixes may use: what was requested, or a part of the headroom.
    pub saved_prefix_bytes: u64,
    /// Missing memory; 0 if it fits.
    pub missing_bytes: u64,
    /// True if it fits.
    pub fits: bool,
    /// Weights read per token, in bytes.
    pub(crate) read_bytes_per_token: u64,
    /// Estimate from the memory bandwidth: tokens per second of one request with an empty context.
    pub decode_estimate: Option<f64>,
    /// The same with a full context.
    pub(crate) decode_estimate_full: Option<f64>,
    /// Estimated seconds to the first token of a full context, from a measured rate.
    pub(crate) prefill_seconds_full: Option<f64>,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

/// Why no plan can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanError {
    /// A required key is missing.
    MissingKey(String),
    /// A number in the header is impossible.
    Impossible(String),
    /// The size of a tensor is unknown.
    UnknownTensor {
        /// Tensor name.
        name: String,
        /// Tensor type.
        kind: String,
    },
    /// The key describes a cache whose size is unknown here.
    UnknownCache(String),
    /// The model is split into this many files.
    Split(u64),
    /// The requested settings contradict themselves or the model.
    Settings(String),
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::MissingKey(key) => write!(f, "the model's header has no {key}"),
            Self::Impossible(what) => write!(f, "the model's header says {what}, which cannot be"),
            Self::UnknownTensor { name, kind } => {
                write!(f, "tensor {name} is of type {kind}; its size is not known to this version")
            }
            Self::UnknownCache(key) => {
                write!(f, "the model's cache ({key}) is not known to this version: no plan is made")
            }
            Self::Split(count) => write!(
                f,
                "the model is split into {count} files; join them with llama-gguf-split --merge"
            ),
            Self::Settings(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for PlanError {}

/// A model, a machine, and the requested settings.
struct Case<'a> {
    header: &'a Header,
    layout: Layout,
    weights: WeightBytes,
    facts: &'a MachineFacts,
    requested: RequestedSettings,
}

impl<'a> Case<'a> {
    fn new(
        header: &'a Header,
        facts: &'a MachineFacts,
        requested: &RequestedSettings,
    ) -> Result<Self, PlanError> {
        let files = header.numbers.get("split.count").and_then(|list| list.first()).copied();
        if let Some(files) = files.filter(|n| *n > 1) {
            return Err(PlanError::Split(files));
        }
        let layout = Layout::read(header)?;
        let head = requested.mtp_head;
        let weights = WeightBytes::read(header, &layout, facts.repacking, head)?;
        Ok(Self { header, layout, weights, facts, requested: requested.clone() })
    }

    fn embedding_batching(&self) -> Option<EmbeddingBatching> {
        let requested = self.requested.embedding_batching.or(self.layout.embedding_batching);
        requested.map(|embedding_batching| {
            if self.layout.is_encoder { EmbeddingBatching::WholeText } else { embedding_batching }
        })
    }

    fn is_embedding_model(&self) -> bool {
        self.embedding_batching().is_some()
    }

    fn sizes(&self, slots: u64, context: u64) -> Result<ContextSizes, PlanError> {
        let embeds = self.is_embedding_model();
        let shares = self.requested.prefix_cache && self.layout.can_share_prefixes();
        // Of a recurrent state, a checkpoint may be kept.
        let checkpoints = u64::from(self.layout.state() > 0);
        let kept = if shares { u64::from(KEPT_SEQUENCES) } else { checkpoints };
        let text = context.max(u64::from(EMBED_BATCH_ROWS));
        let batch_rows = match self.embedding_batching() {
            Some(EmbeddingBatching::WholeText) => text,
            Some(EmbeddingBatching::Ubatches) => u64::from(EMBED_BATCH_ROWS),
            None => self.requested.batch_rows,
        };
        let seq_ids = match embeds {
            true => u64::from(EMBED_BATCH_INPUTS),
            false => slots.saturating_add(kept).min(SEQUENCES_MAX.into()),
        };
        Ok(ContextSizes {
            kv_cells: if embeds { text } else { self.cells(slots, context) },
            seq_ids,
            batch_rows,
            threads: self.facts.threads,
            key_kind: cache_kind(&self.requested.key_kind)?,
            value_kind: cache_kind(&self.requested.value_kind)?,
            flash_attention: self.requested.flash_attention,
            embeds,
            whole_windows: self.requested.whole_windows,
        })
    }

    /// KV cells of the pool, unless requested otherwise.
    fn cells(&self, slots: u64, context: u64) -> u64 {
        let most = slots.saturating_mul(context).min(CELLS_MAX).max(context);
        self.requested.kv_cells.unwrap_or(most)
    }

    fn reserve(&self) -> u64 {
        RESERVE_BYTES.max(self.facts.available_bytes / RESERVE_SHARE)
    }

    fn parts(&self, slots: u64, context: u64) -> Result<MemoryParts, PlanError> {
        let sizes = self.sizes(slots, context)?;
        let mapped = self.requested.load != LoadMode::None;
        let plain = match self.requested.load {
            // The whole file stays resident, including the copied weights.
            LoadMode::Mlock => self.weights.file_bytes,
            LoadMode::Mmap | LoadMode::None => self.weights.plain_bytes,
        };
        let (cells, word) = match self.layout.is_encoder {
            true => (0, ENCODER_TOKEN_BYTES),
            false => (sizes.padded_cells(), TOKEN_BYTES),
        };
        let book = cells.saturating_mul(CELL_BYTES);
        let words = self.layout.vocabulary.saturating_mul(word);
        let merges = self.layout.merges.saturating_mul(MERGE_BYTES);
        Ok(MemoryParts {
            weights_mapped: if mapped { plain } else { 0 },
            weights_resident: if mapped { 0 } else { plain },
            weights_repacked: self.weights.repacked_bytes,
            context: self.context_bytes(&sizes, context)?,
            saved_prefixes: self.saved_prefixes(0),
            process: [book, words, merges].iter().fold(PROCESS_BYTES, |s, n| s.saturating_add(*n)),
        })
    }

    /// The contexts of the model, and of its MTP head if that is used.
    fn context_bytes(&self, sizes: &ContextSizes, context: u64) -> Result<ContextBytes, PlanError> {
        let own = context_bytes(&self.layout, sizes)?;
        match self.requested.mtp_head {
            true => Ok(own + head_bytes(&self.layout, sizes, context)?),
            false => Ok(own),
        }
    }

    /// Memory for saved prefixes if `left` bytes may be used for what was not requested.
    fn saved_prefixes(&self, left: u64) -> u64 {
        let requested = self.requested.saved_prefix_bytes;
        // Whether an unknown architecture shares, the engine finds out.
        let shares = self.layout.known && self.layout.can_share_prefixes();
        match self.requested.prefix_cache && !self.is_embedding_model() {
            false => 0,
            true if shares => requested.unwrap_or((left / 4).min(SAVED_EVICTED_BYTES_MAX)),
            true => requested.unwrap_or((left / 2).min(SAVED_PREFIX_BYTES_MAX)),
        }
    }

    fn fits(&self, slots: u64, context: u64) -> Result<bool, PlanError> {
        self.fits_beside(slots, context, self.reserve())
    }

    /// True if it fits, and `free` bytes stay free.
    fn fits_beside(&self, slots: u64, context: u64, free: u64) -> Result<bool, PlanError> {
        let needed = self.parts(slots, context)?.sum();
        Ok(needed.saturating_add(free) <= self.facts.available_bytes)
    }

    fn plan(&self, slots: u64, context: u64) -> Result<Plan, PlanError> {
        let sizes = self.sizes(slots, context)?;
        let parts = self.parts(slots, context)?;
        let needed = parts.sum();
        let wants = needed.saturating_add(self.reserve());
        let missing = wants.saturating_sub(self.facts.available_bytes);
        let headroom_bytes = self.facts.available_bytes.saturating_sub(wants);
        let mapped = self.requested.load == LoadMode::Mmap;
        let spare = self.weights.file_bytes.saturating_sub(self.weights.plain_bytes);
        Ok(Plan {
            architecture: self.header.architecture.clone(),
            name: self.header.name.clone(),
            known_architecture: self.layout.known,
            parameters: self.weights.parameters,
            slots,
            context_tokens: context,
            kv_cells: if self.layout.is_encoder { 0 } else { sizes.padded_cells() },
            embeds: sizes.embeds,
            key_kind: self.requested.key_kind.clone(),
            value_kind: self.requested.value_kind.clone(),
            load: self.requested.load,
            kv_bytes_per_token: sequence_bytes(&self.layout, &sizes, 1)?,
            parts,
            needed_bytes: needed,
            reclaimable_bytes: if mapped { spare } else { 0 },
            available_bytes: self.facts.available_bytes,
            reserve_bytes: self.reserve(),
            headroom_bytes,
            saved_prefix_bytes: self.saved_prefixes(headroom_bytes),
            missing_bytes: missing,
            fits: missing == 0,
            read_bytes_per_token: self.weights.read_bytes,
            decode_estimate: self.decode_estimate(0),
            decode_estimate_full: self.decode_estimate(sequence_bytes(
                &self.layout,
                &sizes,
                context,
            )?),
            prefill_seconds_full: self
                .facts
                .prefill_rate
                .filter(|r| *r > 0.0)
                .map(|r| context as f64 / r),
            notes: self.notes(),
        })
    }

    /// Memory bandwidth limits the decode rate: each token reads this many bytes.
    fn decode_estimate(&self, kv_bytes: u64) -> Option<f64> {
        let state = self.layout.state().saturating_mul(8);
        let read = self.weights.read_bytes.saturating_add(kv_bytes).saturating_add(state);
        let bandwidth = self.facts.bandwidth.filter(|b| b.is_finite() && *b > 0.0)?;
        (read > 0).then(|| bandwidth / read as f64)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if !self.layout.known {
            let name = &self.header.architecture;
            notes.push(format!("architecture '{name}' is planned as a plain transformer"));
        }
        if !self.is_embedding_model() && !self.layout.can_share_prefixes() {
            notes.push("prompts of this model cannot share KV cells, only copy prefixes".into());
        }
        let locked = self.weights.file_bytes;
        let lockable = self.facts.lockable_bytes.unwrap_or(u64::MAX);
        if self.requested.load == LoadMode::Mlock && locked > lockable {
            let (needs, may) =
                (crate::types::units::bytes(locked), crate::types::units::bytes(lockable));
            notes
                .push(format!("mlock needs {needs}, and the limit is {may}: raise RLIMIT_MEMLOCK"));
        }
        notes
    }
}

impl MemoryParts {
    /// Sum of all parts.
    pub fn sum(&self) -> u64 {
        let context = &self.context;
        [
            self.weights_mapped,
            self.weights_resident,
            self.weights_repacked,
            context.kv,
            context.state,
            context.compute,
            context.output,
            context.scratch,
            self.saved_prefixes,
            self.process,
        ]
        .iter()
        .fold(0, |sum, n| sum.saturating_add(*n))
    }
}
