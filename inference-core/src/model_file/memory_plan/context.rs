//! PURE. Memory of a context: KV cells, recurrent states, the compute buffer and the rest.
//!
//! The compute buffer follows the graphs that llama.cpp reserves. At the widest point of a layer,
//! its allocator holds the masks, five hidden states and the inside of a block; at the end, the
//! logits instead of the latter. Each case was measured with llama.cpp 0.6.0-dev.

use super::layout::{Layer, Layout};
use super::{LOGITS_ROWS_MIN, PlanError, draft};
use crate::model_file::gguf::kinds::{self, Kind};

/// llama.cpp rounds the number of KV cells up to a multiple of this.
pub(crate) const CELLS_MULTIPLE: u64 = 256;
/// Bytes per row for inputs (positions, indices, lengths) and the allocator's padding.
const INPUT_BYTES: u64 = 64;
/// Bytes per thread for kernels with tiles.
const THREAD_BYTES: u64 = 512 * 1024;
/// Rows and columns of a flash attention tile.
const TILE: u64 = 64;

/// Memory of a context by part, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ContextBytes {
    /// Keys and values of all cells.
    pub kv: u64,
    /// Recurrent states of all sequences.
    pub state: u64,
    /// Activations of the largest batch.
    pub compute: u64,
    /// Logits of all sequences, or embeddings of all rows.
    pub output: u64,
    /// Scratch memory of the compute threads.
    pub(crate) scratch: u64,
}

/// Parameters of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContextSizes {
    /// KV cells of the pool, before rounding up.
    pub(crate) kv_cells: u64,
    /// Sequence ids of the context: those of the slots, and kept ones.
    pub(crate) seq_ids: u64,
    /// Rows of the largest batch.
    pub(crate) batch_rows: u64,
    /// Number of compute threads.
    pub(crate) threads: u64,
    /// Storage type of keys.
    pub(crate) key_kind: Kind,
    /// Storage type of values.
    pub(crate) value_kind: Kind,
    /// True for flash attention, which needs no matrix of all scores.
    pub(crate) flash_attention: bool,
    /// True if every row yields an embedding and none yields logits.
    pub(crate) embeds: bool,
    /// True if cells that have left a sliding window are not reused.
    pub(crate) whole_windows: bool,
}

/// The storage type for keys and values with this name.
pub(crate) fn cache_kind(name: &str) -> Result<Kind, PlanError> {
    const NAMES: [&str; 9] =
        ["f16", "f32", "bf16", "q8_0", "q5_0", "q5_1", "q4_0", "q4_1", "iq4_nl"];
    let known = NAMES.contains(&name).then(|| kinds::named(name)).flatten().copied();
    known.ok_or_else(|| {
        PlanError::Settings(format!("KV type '{name}' is unknown; one of: {}", NAMES.join(", ")))
    })
}

impl ContextSizes {
    /// KV cells of the pool, rounded up.
    pub(crate) fn padded_cells(&self) -> u64 {
        self.kv_cells.checked_next_multiple_of(CELLS_MULTIPLE).unwrap_or(u64::MAX)
    }

    /// KV cells of a layer: a sliding window reuses its cells once they have left it.
    fn layer_cells(&self, layer: &Layer, window: u64) -> u64 {
        match layer.windowed {
            true => self.window_cells(window),
            false => self.padded_cells(),
        }
    }

    /// KV cells of a layer with a sliding window: each sequence's window, and a batch.
    fn window_cells(&self, window: u64) -> u64 {
        if self.whole_windows {
            return self.padded_cells();
        }
        let seen = window.saturating_mul(self.seq_ids).saturating_add(self.batch_rows);
        let seen = seen.min(self.padded_cells());
        seen.checked_next_multiple_of(CELLS_MULTIPLE).unwrap_or(u64::MAX)
    }

    /// Rows of a batch that may have logits.
    fn logits_rows(&self) -> u64 {
        self.seq_ids.max(LOGITS_ROWS_MIN.into())
    }

    /// Rows of the reserved graph: a batch, rounded up to a multiple of all sequences. An upper
    /// bound, so that more slots never need less.
    fn graph_rows(&self) -> u64 {
        self.batch_rows.min(self.padded_cells()).saturating_add(self.seq_ids)
    }
}

/// Bytes of keys and values per token in one layer.
fn token_bytes(layer: &Layer, sizes: &ContextSizes) -> Result<u64, PlanError> {
    let bytes = |kind: &Kind, what: &str, width: u64| {
        let row = kind.row_bytes(width).and_then(|bytes| bytes.checked_mul(layer.kv_heads));
        row.ok_or_else(|| {
            let name = kind.name;
            PlanError::Settings(format!(
                "{what} heads of {width} elements cannot be stored as {name}"
            ))
        })
    };
    let key = bytes(&sizes.key_kind, "key", layer.key_width)?;
    Ok(key.saturating_add(bytes(&sizes.value_kind, "value", layer.value_width)?))
}

/// Bytes of keys and values of `tokens` tokens of one sequence, over all layers; sliding windows
/// hold fewer tokens.
pub(crate) fn sequence_bytes(
    layout: &Layout,
    sizes: &ContextSizes,
    tokens: u64,
) -> Result<u64, PlanError> {
    layout.layers.iter().try_fold(0u64, |sum, layer| {
        let seen = if layer.windowed { tokens.min(layout.window) } else { tokens };
        Ok(sum.saturating_add(token_bytes(layer, sizes)?.saturating_mul(seen)))
    })
}

/// Computes the memory of a context.
pub(crate) fn context_bytes(
    layout: &Layout,
    sizes: &ContextSizes,
) -> Result<ContextBytes, PlanError> {
    if !sizes.flash_attention && sizes.value_kind.block_elements > 1 {
        return Err(PlanError::Settings(
            "values can only be quantised with flash attention".into(),
        ));
    }
    let kv = layout.layers.iter().try_fold(0u64, |sum, layer| {
        let kv_cells = sizes.layer_cells(layer, layout.window);
        Ok(sum.saturating_add(token_bytes(layer, sizes)?.saturating_mul(kv_cells)))
    })?;
    Ok(ContextBytes {
        kv,
        state: layout.state().saturating_mul(4).saturating_mul(sizes.seq_ids),
        compute: compute_bytes(layout, sizes),
        output: output_bytes(layout, sizes),
        scratch: scratch_bytes(layout, sizes),
    })
}

impl std::ops::Add for ContextBytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            kv: self.kv.saturating_add(other.kv),
            state: self.state.saturating_add(other.state),
            compute: self.compute.saturating_add(other.compute),
            output: self.output.saturating_add(other.output),
            scratch: self.scratch.saturating_add(other.scratch),
        }
    }
}

/// Computes the memory of the context of an MTP head, beside that of its model, of whose sequences
/// each has at most `context_tokens`.
pub(crate) fn head_bytes(
    layout: &Layout,
    sizes: &ContextSizes,
    context_tokens: u64,
) -> Result<ContextBytes, PlanError> {
    let of_model = (sizes.seq_ids, sizes.kv_cells);
    let (seq_ids, kv_cells) = draft::head_sizes(layout.state() > 0, of_model, context_tokens);
    let own = ContextSizes {
        kv_cells,
        seq_ids,
        batch_rows: draft::BATCH_ROWS.into(),
        whole_windows: true,
        ..*sizes
    };
    let head = layout.head();
    // Batches of both output hidden states, which are copied for the rows of the head.
    let states = sizes.batch_rows.saturating_add(own.batch_rows).saturating_mul(2);
    let bytes = context_bytes(&head, &own)?;
    let output = states.saturating_mul(layout.width).saturating_mul(4);
    Ok(ContextBytes { output: bytes.output.saturating_add(output), ..bytes })
}

fn output_bytes(layout: &Layout, sizes: &ContextSizes) -> u64 {
    // Recurrent layers compute a batch in several parts, whose logits are put together here. Others
    // leave them where they were computed.
    let has_parts = layout.layers.iter().any(|layer| layer.state > 0);
    let (rows, width) = match sizes.embeds {
        // Of the whole text, even if it is processed in ubatches.
        true => (sizes.kv_cells, layout.width),
        false if has_parts => (sizes.logits_rows(), layout.vocabulary),
        false => (0, 0),
    };
    rows.saturating_mul(width).saturating_mul(4)
}

/// Bytes of the masks per row: of all cells, and of those of a window.
fn mask_bytes(layout: &Layout, sizes: &ContextSizes) -> u64 {
    let window = if layout.has_windows() { sizes.window_cells(layout.window) } else { 0 };
    let each = if sizes.flash_attention { 2 } else { 4 };
    sizes.padded_cells().saturating_add(window).saturating_mul(each)
}

fn compute_bytes(layout: &Layout, sizes: &ContextSizes) -> u64 {
    let sum = |parts: &[u64]| parts.iter().fold(0u64, |sum, n| sum.saturating_add(*n));
    let kv_cells = sizes.padded_cells();
    let mask = mask_bytes(layout, sizes);
    let scores = if sizes.flash_attention { 0 } else { kv_cells.saturating_mul(layout.heads) };
    let queries = layout.query_width.saturating_add(layout.kv_width()).saturating_mul(2);
    let block = layout.hidden.saturating_mul(3);
    let used = layout.experts_used;
    let experts = layout.expert_hidden.saturating_mul(3).saturating_add(layout.width);
    // A recurrent layer's convolution and state, if any: input, output, gate and their sums.
    let state = layout.layers.iter().map(|l| l.state).max().unwrap_or(0);
    let recurrent = if state > 0 { layout.width.saturating_mul(16) } else { 0 };
    let inside =
        block.max(experts.saturating_mul(used)).max(sum(&[queries, scores])).max(recurrent);
    // The recurrent states of one layer for all sequences, before and after a batch.
    let states = state.saturating_mul(sizes.seq_ids).saturating_mul(2 * 4);
    let hidden = layout.width.saturating_mul(5 * 4);
    let rows = sizes.graph_rows();
    let outer = sum(&[mask, hidden, INPUT_BYTES]).saturating_mul(rows);
    let layer = inside.saturating_mul(4).saturating_mul(rows).saturating_add(states);
    // A generative model computes logits even if no row asks for them.
    let last = match (layout.is_encoder, sizes.embeds) {
        (true, _) => 0,
        (false, true) => rows,
        (false, false) => sizes.logits_rows(),
    };
    let logits = last.saturating_mul(layout.vocabulary).saturating_mul(4);
    outer.saturating_add(layer.max(logits))
}

/// The input of the widest multiplication in the type that its weights require, or the attention
/// tiles, plus the tiles of each thread.
fn scratch_bytes(layout: &Layout, sizes: &ContextSizes) -> u64 {
    let widest = layout.hidden.max(layout.query_width).max(layout.width);
    let experts = layout.expert_hidden.saturating_mul(layout.experts_used);
    let input = widest.max(experts).saturating_mul(2).saturating_mul(sizes.graph_rows());
    let head = layout.layers.iter().map(|l| l.key_width.max(l.value_width)).max().unwrap_or(0);
    let tiles = head.saturating_mul(4 * TILE).saturating_add(2 * TILE * TILE).saturating_mul(4);
    input.saturating_add(tiles.saturating_add(THREAD_BYTES).saturating_mul(sizes.threads))
}

#[cfg(test)]
mod tests;
