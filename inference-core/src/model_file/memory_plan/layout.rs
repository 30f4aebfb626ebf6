//! PURE. Reads from the header what a model stores per token and per sequence.
//!
//! The keys and their interpretation are those of llama.cpp's `llama-hparams.cpp` and of the
//! `load_arch_hparams` of each architecture.

use super::PlanError;
use crate::model_file::gguf::Header;
use crate::model_file::mtp_head;

/// Maximum number of layers; the same as llama.cpp's limit.
const LAYERS_MAX: u64 = 512;

/// Architectures whose caches these formulas describe.
const KNOWN: &[&str] = &[
    "bert",
    "nomic-bert",
    "jina-bert-v2",
    "llama",
    "mistral3",
    "qwen2",
    "qwen2moe",
    "qwen3",
    "qwen3moe",
    "phi2",
    "phi3",
    "phimoe",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3n",
    "gemma4",
    "gpt-oss",
    "stablelm",
    "starcoder",
    "starcoder2",
    "falcon",
    "gptneox",
    "gpt2",
    "olmo",
    "olmo2",
    "olmoe",
    "granite",
    "granitemoe",
    "granitehybrid",
    "command-r",
    "cohere2",
    "internlm2",
    "smollm3",
    "exaone",
    "exaone4",
    "glm4",
    "chatglm",
    "deepseek",
    "deepseek2",
    "baichuan",
    "mamba",
    "mamba2",
    "rwkv6",
    "rwkv6qwen2",
    "rwkv7",
    "arwkv7",
    "jamba",
    "falcon-h1",
    "lfm2",
    "lfm2moe",
    "nemotron",
    "nemotron_h",
    "qwen3next",
    "qwen35",
    "qwen35moe",
    "hunyuan-dense",
    "ernie4_5",
    "minicpm",
    "minicpm3",
    "bailingmoe",
    "seed_oss",
    "apertus",
    "arcee",
    "llama4",
    "afmoe",
    "mpt",
];
/// Architectures with a recurrent state instead of KV cells in every layer.
const RECURRENT: &[&str] = &["mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"];
/// Embedding architectures without KV cells, in addition to all kinds of BERT.
const ENCODERS: &[&str] = &["t5encoder", "eurobert", "gemma-embedding", "wavtokenizer-dec"];
/// `pooling_type` of a generative model, and of last-token pooling.
const POOLING_NONE: u64 = 0;
const POOLING_LAST: u64 = 3;
/// Architectures in which every fourth layer has attention, unless the file says otherwise.
const EVERY_FOURTH: &[&str] = &["qwen3next", "qwen35", "qwen35moe"];
/// Keys of caches that these formulas do not describe.
const UNKNOWN_CACHES: &[&str] =
    &["attention.indexer.key_length", "attention.indexer.head_count", "kda.head_dim"];
/// Sliding windows if the file gives no pattern: all but every n-th layer have one.
const WINDOW_PATTERNS: &[(&str, u64)] = &[
    ("gemma2", 2),
    ("gemma3", 6),
    ("gemma3n", 5),
    ("cohere2", 4),
    ("gpt-oss", 2),
    ("llama4", 4),
    ("olmo2", 4),
    ("exaone4", 4),
    ("afmoe", 4),
];

/// How embeddings are computed, as far as memory depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingBatching {
    /// The whole text at once.
    WholeText,
    /// In ubatches, because only the last token counts.
    Ubatches,
}

/// True for architectures that process a text at once with bidirectional attention and have no KV
/// cells.
pub(crate) fn is_encoder(architecture: &str) -> bool {
    architecture.contains("bert") || ENCODERS.contains(&architecture)
}

/// What one layer stores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layer {
    /// Elements of one head's key; 0 if the layer has no KV cells.
    pub(crate) key_width: u64,
    /// Elements of one head's value; 0 if it is part of the key.
    pub(crate) value_width: u64,
    /// Number of key and value heads.
    pub(crate) kv_heads: u64,
    /// True if the layer has a sliding window.
    pub(crate) windowed: bool,
    /// Elements of the recurrent state of one sequence.
    pub state: u64,
}

/// The dimensions of a model that its memory depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Layout {
    /// True if the formulas describe this architecture; if not, figures are those of a plain
    /// transformer with these dimensions.
    pub known: bool,
    /// Elements of the hidden state (embedding length).
    pub width: u64,
    /// Elements inside the feed-forward block of the widest layer, including shared experts.
    pub hidden: u64,
    /// Elements inside one expert.
    pub(crate) expert_hidden: u64,
    /// Number of experts; 0 without.
    pub(crate) experts: u64,
    /// Experts that each token uses; 0 without.
    pub(crate) experts_used: u64,
    /// Maximum number of query heads of any layer.
    pub(crate) heads: u64,
    /// Elements of all queries of a layer.
    pub(crate) query_width: u64,
    /// Number of tokens in the vocabulary.
    pub vocabulary: u64,
    /// Number of merges of the vocabulary.
    pub(crate) merges: u64,
    /// Context length that the model was trained for, in tokens; 0 if not given.
    pub(crate) trained_tokens: u64,
    /// Tokens of the sliding window; 0 without.
    pub window: u64,
    /// True if it processes a text at once and has no KV cells.
    pub(crate) is_encoder: bool,
    /// How it computes embeddings, if the file says that it does.
    pub embedding_batching: Option<EmbeddingBatching>,
    /// What each layer stores.
    pub layers: Vec<Layer>,
    /// What the layers of an MTP head store, if the file has one.
    pub(crate) head_layers: Vec<Layer>,
}

/// One number per layer, from a list or from one number for all; `otherwise` where the key is
/// missing.
fn each(header: &Header, key: &str, layers: u64, otherwise: u64) -> Vec<u64> {
    let list = header.list(key).unwrap_or_default();
    let at = |i: u64| match list {
        [] => otherwise,
        [one] => *one,
        _ => usize::try_from(i).ok().and_then(|i| list.get(i)).copied().unwrap_or(otherwise),
    };
    (0..layers).map(at).collect()
}

fn most(all: &[u64]) -> u64 {
    all.iter().copied().max().unwrap_or(0)
}

impl Layout {
    /// Reads a header; the error names the key that is missing or not understood.
    pub fn read(header: &Header) -> Result<Self, PlanError> {
        let architecture = header.architecture.as_str();
        let is_encoder = is_encoder(architecture);
        if let Some(key) = UNKNOWN_CACHES.iter().find(|k| header.list(k).is_some()) {
            return Err(PlanError::UnknownCache(format!("{architecture}.{key}")));
        }
        let need = |key: &str| {
            let missing = || PlanError::MissingKey(format!("{architecture}.{key}"));
            header.number(key).filter(|n| *n > 0).ok_or_else(missing)
        };
        let count = need("block_count")?;
        if count > LAYERS_MAX {
            return Err(PlanError::Impossible(format!("{count} layers")));
        }
        let width = need("embedding_length")?;
        let heads = each(header, "attention.head_count", count, 0);
        let attends = most(&heads) > 0;
        if !attends && !RECURRENT.contains(&architecture) {
            return Err(PlanError::MissingKey(format!("{architecture}.attention.head_count")));
        }
        let key_width = header
            .number("attention.key_length")
            .unwrap_or_else(|| width.checked_div(most(&heads)).unwrap_or(0));
        let expert_hidden = most(&each(header, "expert_feed_forward_length", count, 0));
        let hidden = most(&each(header, "feed_forward_length", count, 0));
        let shared = header.number("expert_shared_feed_forward_length").unwrap_or_else(|| {
            expert_hidden.saturating_mul(header.number("expert_shared_count").unwrap_or(0))
        });
        let embeddings = header.tensor_list.iter().find(|t| t.name == "token_embd.weight");
        let rows = embeddings.and_then(|t| t.dimensions.get(1)).copied().unwrap_or(0);
        let vocabulary = header.vocabulary.max(header.number("vocab_size").unwrap_or(0)).max(rows);
        if vocabulary == 0 {
            return Err(PlanError::MissingKey("tokenizer.ggml.tokens".into()));
        }
        let embedding_batching = match header.number("pooling_type").unwrap_or(POOLING_NONE) {
            _ if is_encoder => Some(EmbeddingBatching::WholeText),
            POOLING_NONE => None,
            POOLING_LAST => Some(EmbeddingBatching::Ubatches),
            _ => Some(EmbeddingBatching::WholeText),
        };
        let mut layers = if is_encoder { Vec::new() } else { layers(header, &heads, key_width) };
        let own = mtp_head::model_layers(header).min(layers.len() as u64) as usize;
        let head_layers = layers.split_off(own);
        Ok(Self {
            known: KNOWN.contains(&architecture),
            width,
            hidden: hidden.max(shared),
            expert_hidden: if expert_hidden > 0 { expert_hidden } else { hidden },
            experts: header.number("expert_count").unwrap_or(0),
            experts_used: header.number("expert_used_count").unwrap_or(0),
            heads: most(&heads),
            query_width: most(&heads).saturating_mul(key_width),
            vocabulary,
            merges: header.merges,
            trained_tokens: u64::from(header.context_tokens),
            window: header.number("attention.sliding_window").unwrap_or(0),
            is_encoder,
            embedding_batching,
            layers,
            head_layers,
        })
    }

    /// True if any layer has a sliding window.
    pub(crate) fn has_windows(&self) -> bool {
        self.layers.iter().any(|l| l.windowed)
    }

    /// True if sequences may share the KV cells of a common prefix. False for sliding windows,
    /// which drop old cells, and for recurrent states; the engine then keeps no finished sequences.
    pub(crate) fn can_share_prefixes(&self) -> bool {
        !self.has_windows() && self.state() == 0
    }

    /// Elements of a token's keys in the layer with the most.
    pub(crate) fn kv_width(&self) -> u64 {
        let widths = self.layers.iter().map(|l| l.kv_heads.saturating_mul(l.key_width));
        widths.max().unwrap_or(0)
    }

    /// Dimensions of the MTP head alone.
    pub(crate) fn head(&self) -> Self {
        Self { layers: self.head_layers.clone(), ..self.clone() }
    }

    /// Elements of the recurrent state of one sequence, over all layers.
    pub fn state(&self) -> u64 {
        self.layers.iter().fold(0, |sum, l| sum.saturating_add(l.state))
    }
}

fn layers(header: &Header, heads: &[u64], key_width: u64) -> Vec<Layer> {
    let architecture = header.architecture.as_str();
    let count = heads.len() as u64;
    let windowed = windows(header, count);
    let recurrent = recurrence(header, heads);
    let state = state(header);
    // Multi-head latent attention stores one latent for keys and values.
    let latent = header.number("attention.key_length_mla").is_some_and(|n| n > 0);
    let value_width = header.number("attention.value_length").unwrap_or(key_width);
    let kv_heads = each(header, "attention.head_count_kv", count, most(heads));
    let with_cells = match architecture {
        "gemma3n" => count.min(20),
        _ => count.saturating_sub(header.number("attention.shared_kv_layers").unwrap_or(0)),
    };
    let own = mtp_head::model_layers(header);
    let wide = |key: &str, otherwise| header.number(key).unwrap_or(otherwise);
    let layer = |(i, kv_heads): (usize, &u64)| {
        let windowed = windowed.get(i).copied().unwrap_or(false);
        // MTP heads have attention.
        let recurrent = (i as u64) < own && recurrent.get(i).copied().unwrap_or(false);
        let both = architecture == "falcon-h1";
        let cells = (!recurrent || both) && (i as u64) < with_cells && *kv_heads > 0;
        let (key, value) = if windowed {
            let value = wide("attention.value_length_swa", value_width);
            (wide("attention.key_length_swa", key_width), value)
        } else {
            (key_width, value_width)
        };
        Layer {
            key_width: if cells { key } else { 0 },
            value_width: if cells && !latent { value } else { 0 },
            kv_heads: if cells { *kv_heads } else { 0 },
            windowed: windowed && cells,
            state: if recurrent || both { state } else { 0 },
        }
    };
    kv_heads.iter().enumerate().map(layer).collect()
}

/// Which layers have a sliding window.
fn windows(header: &Header, count: u64) -> Vec<bool> {
    let all = |value| (0..count).map(move |_| value);
    if header.number("attention.sliding_window").unwrap_or(0) == 0 {
        return all(false).collect();
    }
    let key = "attention.sliding_window_pattern";
    let known = WINDOW_PATTERNS.iter().find(|(name, _)| *name == header.architecture);
    let pattern = header.number(key).or(known.map(|(_, n)| *n));
    match (header.list(key), pattern) {
        (Some(list), _) if list.len() > 1 => list.iter().map(|flag| *flag != 0).collect(),
        (_, Some(0)) => all(true).collect(),
        (_, Some(n)) => (0..count).map(|i| i % n < n - 1).collect(),
        // Full cells in every layer are the upper bound.
        _ => all(false).collect(),
    }
}

/// Which layers have a recurrent state.
fn recurrence(header: &Header, heads: &[u64]) -> Vec<bool> {
    let architecture = header.architecture.as_str();
    let count = heads.len() as u64;
    if RECURRENT.contains(&architecture) {
        return heads.iter().map(|_| true).collect();
    }
    if state(header) == 0 {
        return heads.iter().map(|_| false).collect();
    }
    if let Some(list) = header.list("attention.recurrent_layers").filter(|l| l.len() > 1) {
        return list.iter().map(|flag| *flag != 0).collect();
    }
    if EVERY_FOURTH.contains(&architecture) {
        let interval = header.number("full_attention_interval").unwrap_or(4).max(1);
        return (1..=count).map(|i| !i.is_multiple_of(interval)).collect();
    }
    let hidden = each(header, "feed_forward_length", count, 0);
    let plain = architecture.starts_with("nemotron_h");
    let kv_heads = each(header, "attention.head_count_kv", count, most(heads));
    kv_heads.iter().zip(hidden).map(|(kv, hidden)| *kv == 0 && (hidden == 0 || !plain)).collect()
}

/// Elements of the recurrent state of one sequence in a layer that has one.
fn state(header: &Header) -> u64 {
    let get = |key: &str| header.number(key).unwrap_or(0);
    let width = get("embedding_length");
    let head = get("wkv.head_size");
    if head > 0 {
        let shifts = header.number("token_shift_count").unwrap_or(2);
        return width.saturating_mul(shifts.saturating_add(head));
    }
    let short = get("shortconv.l_cache");
    if short > 0 {
        return width.saturating_mul(short - 1);
    }
    let (inner, state) = (get("ssm.inner_size"), get("ssm.state_size"));
    let groups = get("ssm.group_count").saturating_mul(state).saturating_mul(2);
    let convolution = get("ssm.conv_kernel").saturating_sub(1);
    let rows = inner.saturating_add(groups).saturating_mul(convolution);
    rows.saturating_add(inner.saturating_mul(state))
}

#[cfg(test)]
mod tests;
