//! PURE. What a model will take on a machine, before it is loaded: weights, cells, buffers
//! and the rest against the memory that there is; and what would fit if it does not.
//!
//! Figures are upper bounds, by a little: a plan that fits is safe to load.

pub mod context;
pub mod layout;
pub mod report;
pub mod search;
pub mod weights;

use serde::{Deserialize, Serialize};

use crate::model_file::gguf::Header;
use context::{ContextBytes, Sizes, cache_kind, context_bytes, sequence_bytes};
use layout::{Layout, Vectors};
pub use search::{Advice, NoPlan, Refusal, guard, plan};
use weights::{Repacking, Weights};

/// Slots where none are asked for, if they fit.
pub const SLOTS_DEFAULT: u64 = 4;
/// Most slots; the command line has the same bound.
pub const SLOTS_MAX: u64 = 64;
/// Finished sequences that the engine keeps for prompts that begin like them.
pub const KEPT_SEQUENCES: u32 = 32;
/// Most sequences of a context: llama.cpp's own bound.
pub const SEQUENCES_MAX: u32 = 256;
/// Inputs of a batch of a model that makes vectors.
pub const EMBED_TRACKS: u32 = 64;
/// Rows of a batch of such a model, unless one input needs more.
pub const EMBED_BATCH_ROWS: u32 = 512;
/// Most cells of a pool.
pub const CELLS_MAX: u64 = 4 * 1024 * 1024;
/// The engine's and the agent's programs, heaps and stacks, without a model.
const PROCESS_BYTES: u64 = 24 << 20;
/// What llama.cpp and we keep for a token of the vocabulary: its text, in several tables.
const TOKEN_BYTES: u64 = 200;
/// The same for a model that keeps no cells: it has no merges, and writes no token's text.
const ENCODER_TOKEN_BYTES: u64 = 136;
/// What llama.cpp keeps for a merge.
const MERGE_BYTES: u64 = 160;
/// What llama.cpp keeps for a cell of the pool beside its keys and values.
const CELL_BYTES: u64 = 96;
/// Left free for the system: this, or a share of what there is.
const RESERVE_BYTES: u64 = 128 << 20;
const RESERVE_SHARE: u64 = 32;

/// How the weights come into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoadMode {
    /// The file is mapped; what is not used may leave memory again.
    Mmap,
    /// The file is mapped and may not leave memory.
    Mlock,
    /// Weights are read into memory of the process.
    None,
}

impl std::str::FromStr for LoadMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "mmap" => Ok(Self::Mmap),
            "mlock" => Ok(Self::Mlock),
            "none" => Ok(Self::None),
            _ => Err(format!("unknown load mode '{name}'; one of: mmap, mlock, none")),
        }
    }
}

/// What a plan has to know of the machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// Memory that this process may take, in bytes.
    pub available_bytes: u64,
    /// Memory that may be locked, in bytes; `None`: without a bound.
    pub lockable_bytes: Option<u64>,
    /// Threads that compute.
    pub threads: u64,
    /// Weights that the kernels copy into another layout.
    pub repacking: Repacking,
    /// What those threads read from memory, in bytes per second, where it was measured.
    pub bandwidth: Option<f64>,
    /// Prompt tokens per second, where they were measured.
    pub prefill_rate: Option<f64>,
}

/// What is asked for. `None`: the best that fits.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// Requests side by side.
    pub slots: Option<u64>,
    /// Tokens of one request.
    pub context_tokens: Option<u64>,
    /// Tokens of the pool; otherwise slots x context.
    pub kv_cells: Option<u64>,
    /// How keys are stored, such as `f16`.
    pub key_kind: String,
    /// How values are stored.
    pub value_kind: String,
    /// Whether attention is computed in tiles.
    pub flash_attention: bool,
    /// How the weights come into memory.
    pub load: LoadMode,
    /// Rows of the largest batch.
    pub batch_rows: u64,
    /// Whether prompts that begin alike share that, where the model allows it.
    pub prefix_cache: bool,
    /// How the model is to make vectors, whatever its file says.
    pub vectors: Option<Vectors>,
}

impl Default for Wanted {
    /// What the engine does unless it is told otherwise.
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
            vectors: None,
        }
    }
}

/// Where the memory goes, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// Weights in the mapped file that computing uses.
    pub weights_mapped: u64,
    /// Weights in the process's own memory, as they are in the file.
    pub weights_resident: u64,
    /// Weights copied into a layout that is faster.
    pub weights_repacked: u64,
    /// Cells, states and buffers.
    #[serde(flatten)]
    pub context: ContextBytes,
    /// The programs, the vocabulary and the pool's book.
    pub process: u64,
}

/// What a model takes on a machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// `general.architecture`
    pub architecture: String,
    /// `general.name`
    pub name: Option<String>,
    /// Whether the architecture's caches are known; if not, they are taken for those of a
    /// plain transformer.
    pub known_architecture: bool,
    /// Numbers in all tensors.
    pub parameters: u64,
    /// Requests side by side.
    pub slots: u64,
    /// Tokens of one request.
    pub context_tokens: u64,
    /// Tokens of the pool.
    pub kv_cells: u64,
    /// Whether it makes vectors.
    pub embeds: bool,
    /// How keys and values are stored.
    pub key_kind: String,
    /// See `key_kind`.
    pub value_kind: String,
    /// How the weights come into memory.
    pub load: LoadMode,
    /// Keys and values of one token, in bytes.
    pub kv_bytes_per_token: u64,
    /// Where the memory goes.
    pub parts: Parts,
    /// What must stay in memory: the sum of the parts.
    pub needed_bytes: u64,
    /// Pages of the mapped file that stay only while nothing else wants the memory.
    pub reclaimable_bytes: u64,
    /// What the process may take on this machine.
    pub available_bytes: u64,
    /// Left free for everything else.
    pub reserve_bytes: u64,
    /// What is free after that; 0 if it does not fit.
    pub headroom_bytes: u64,
    /// What is missing; 0 if it fits.
    pub missing_bytes: u64,
    /// Whether it fits.
    pub fits: bool,
    /// What a token reads of the weights, in bytes.
    pub read_bytes_per_token: u64,
    /// Estimate, from the memory's speed: tokens per second of one request at its start.
    pub decode_estimate: Option<f64>,
    /// The same with a full context.
    pub decode_estimate_full: Option<f64>,
    /// Seconds until the first token of a full context, from a measured rate.
    pub prefill_seconds_full: Option<f64>,
    /// Things to know.
    pub notes: Vec<String>,
}

/// Why a model cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanError {
    /// A key that every such model has is missing.
    MissingKey(String),
    /// A number in the header cannot be.
    Impossible(String),
    /// A tensor's size is not known.
    UnknownTensor {
        /// Its name.
        name: String,
        /// Its type.
        kind: String,
    },
    /// A key stands for a cache whose size is not known here.
    UnknownCache(String),
    /// The model is split into this many files.
    Split(u64),
    /// What is asked for contradicts itself or the model.
    Wanted(String),
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
            Self::Wanted(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for PlanError {}

/// A model and a machine, and what was asked for.
struct Case<'a> {
    header: &'a Header,
    layout: Layout,
    weights: Weights,
    facts: &'a Facts,
    wanted: Wanted,
}

impl<'a> Case<'a> {
    fn new(header: &'a Header, facts: &'a Facts, wanted: &Wanted) -> Result<Self, PlanError> {
        let files = header.numbers.get("split.count").and_then(|list| list.first()).copied();
        if let Some(files) = files.filter(|n| *n > 1) {
            return Err(PlanError::Split(files));
        }
        let layout = Layout::read(header)?;
        let weights = Weights::read(header, &layout, facts.repacking)?;
        Ok(Self { header, layout, weights, facts, wanted: wanted.clone() })
    }

    fn vectors(&self) -> Option<Vectors> {
        let wanted = self.wanted.vectors.or(self.layout.vectors);
        wanted.map(|vectors| if self.layout.encodes { Vectors::Whole } else { vectors })
    }

    fn embeds(&self) -> bool {
        self.vectors().is_some()
    }

    fn sizes(&self, slots: u64, context: u64) -> Result<Sizes, PlanError> {
        let embeds = self.embeds();
        let shares = self.wanted.prefix_cache && self.layout.shares_prefixes();
        let kept = if shares { u64::from(KEPT_SEQUENCES) } else { 0 };
        let text = context.max(u64::from(EMBED_BATCH_ROWS));
        let batch_rows = match self.vectors() {
            Some(Vectors::Whole) => text,
            Some(Vectors::Parts) => u64::from(EMBED_BATCH_ROWS),
            None => self.wanted.batch_rows,
        };
        let tracks = match embeds {
            true => u64::from(EMBED_TRACKS),
            false => slots.saturating_add(kept).min(SEQUENCES_MAX.into()),
        };
        Ok(Sizes {
            cells: if embeds { text } else { self.cells(slots, context) },
            tracks,
            batch_rows,
            threads: self.facts.threads,
            key_kind: cache_kind(&self.wanted.key_kind)?,
            value_kind: cache_kind(&self.wanted.value_kind)?,
            flash_attention: self.wanted.flash_attention,
            embeds,
        })
    }

    /// Cells of the pool, if it is not asked for another number.
    fn cells(&self, slots: u64, context: u64) -> u64 {
        let most = slots.saturating_mul(context).min(CELLS_MAX).max(context);
        self.wanted.kv_cells.unwrap_or(most)
    }

    fn reserve(&self) -> u64 {
        RESERVE_BYTES.max(self.facts.available_bytes / RESERVE_SHARE)
    }

    fn parts(&self, slots: u64, context: u64) -> Result<Parts, PlanError> {
        let sizes = self.sizes(slots, context)?;
        let mapped = self.wanted.load != LoadMode::None;
        let plain = match self.wanted.load {
            // All of the file stays, also what was copied.
            LoadMode::Mlock => self.weights.file_bytes,
            LoadMode::Mmap | LoadMode::None => self.weights.plain_bytes,
        };
        let (cells, word) = match self.layout.encodes {
            true => (0, ENCODER_TOKEN_BYTES),
            false => (sizes.padded_cells(), TOKEN_BYTES),
        };
        let book = cells.saturating_mul(CELL_BYTES);
        let words = self.layout.vocabulary.saturating_mul(word);
        let merges = self.layout.merges.saturating_mul(MERGE_BYTES);
        Ok(Parts {
            weights_mapped: if mapped { plain } else { 0 },
            weights_resident: if mapped { 0 } else { plain },
            weights_repacked: self.weights.repacked_bytes,
            context: context_bytes(&self.layout, &sizes)?,
            process: [book, words, merges].iter().fold(PROCESS_BYTES, |s, n| s.saturating_add(*n)),
        })
    }

    fn fits(&self, slots: u64, context: u64) -> Result<bool, PlanError> {
        let needed = self.parts(slots, context)?.sum();
        Ok(needed.saturating_add(self.reserve()) <= self.facts.available_bytes)
    }

    fn plan(&self, slots: u64, context: u64) -> Result<Plan, PlanError> {
        let sizes = self.sizes(slots, context)?;
        let parts = self.parts(slots, context)?;
        let needed = parts.sum();
        let wants = needed.saturating_add(self.reserve());
        let missing = wants.saturating_sub(self.facts.available_bytes);
        let mapped = self.wanted.load == LoadMode::Mmap;
        let spare = self.weights.file_bytes.saturating_sub(self.weights.plain_bytes);
        Ok(Plan {
            architecture: self.header.architecture.clone(),
            name: self.header.name.clone(),
            known_architecture: self.layout.known,
            parameters: self.weights.parameters,
            slots,
            context_tokens: context,
            kv_cells: if self.layout.encodes { 0 } else { sizes.padded_cells() },
            embeds: sizes.embeds,
            key_kind: self.wanted.key_kind.clone(),
            value_kind: self.wanted.value_kind.clone(),
            load: self.wanted.load,
            kv_bytes_per_token: sequence_bytes(&self.layout, &sizes, 1)?,
            parts,
            needed_bytes: needed,
            reclaimable_bytes: if mapped { spare } else { 0 },
            available_bytes: self.facts.available_bytes,
            reserve_bytes: self.reserve(),
            headroom_bytes: self.facts.available_bytes.saturating_sub(wants),
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

    /// A token cannot come faster than memory gives what it reads.
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
        if !self.embeds() && !self.layout.shares_prefixes() {
            notes.push("prompts of this model cannot share their beginnings".into());
        }
        let locked = self.weights.file_bytes;
        let lockable = self.facts.lockable_bytes.unwrap_or(u64::MAX);
        if self.wanted.load == LoadMode::Mlock && locked > lockable {
            let (needs, may) =
                (crate::types::units::bytes(locked), crate::types::units::bytes(lockable));
            notes
                .push(format!("mlock needs {needs}, and the limit is {may}: raise RLIMIT_MEMLOCK"));
        }
        notes
    }
}

impl Parts {
    /// All of them together.
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
            self.process,
        ]
        .iter()
        .fold(0, |sum, n| sum.saturating_add(*n))
    }
}
