//! MTP heads: a layer in the file of a model that drafts what the model may say, from the model's
//! own hidden states. Source: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.2.
//!
//! A head has a context of its own, on the same weights. The input of each row is a token and the
//! model's hidden state before it. Its output is the next token's logits, and a hidden state for
//! the next row.

use std::ffi::c_int;

use llama_cpp_sys_2 as sys;

use super::{ContextOptions, LlamaModel, LoadError, Weights};
use crate::model_file::memory_plan::draft;
use crate::types::model::{Model, Undo};

/// The architecture whose head computes its last layer only for rows with logits.
const CUTS_EARLY: &str = "qwen3next";

// See inference-core/memory/staging.cpp.
unsafe extern "C" {
    fn flotilla_output_hidden_states(
        context: *mut sys::llama_context,
        is_on: bool,
        with_logits_alone: bool,
    );
    fn flotilla_hidden_state(context: *mut sys::llama_context, row: c_int) -> *const f32;
}

/// What a context computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The layers of a model.
    Model,
    /// The same, to draft for another one.
    DraftModel,
    /// The MTP head behind them.
    MtpHead,
}

/// Creates the context of a model's MTP head, on the model's threads. `options` are those of the
/// model. `None` if the head was not loaded with the model.
///
/// # Errors
/// There is too little memory.
pub fn mtp_head(
    model: &LlamaModel,
    options: ContextOptions,
) -> Result<Option<LlamaModel>, LoadError> {
    if !model.weights().has_mtp_head() {
        return Ok(None);
    }
    let of_model = (options.slots.into(), options.kv_cells.into());
    let is_recurrent = model.shape().undo == Undo::WholeBatch;
    let (slots, kv_cells) =
        draft::head_sizes(is_recurrent, of_model, options.context_tokens.into());
    let options = ContextOptions {
        // Both are at most what the model has.
        slots: slots as u32,
        kv_cells: kv_cells as u32,
        prefix_cache: false,
        saved_prefix_bytes: 0,
        batch_rows: draft::BATCH_ROWS,
        whole_windows: true,
        ..options
    };
    let head = LlamaModel::head_of(model, options);
    head.map(Some).map_err(|error| LoadError::MtpHead(Box::new(error)))
}

/// Makes batches of a context output the hidden state of every row, or of none. Some heads have no
/// other than those of rows with logits.
///
/// # Safety
/// The context is valid, and of these weights.
pub(super) unsafe fn output_hidden_states(
    context: *mut sys::llama_context,
    weights: &Weights,
    role: Role,
) {
    let cuts_early = weights.metadata("general.architecture").as_deref() == Some(CUTS_EARLY);
    let with_logits_alone = role == Role::MtpHead && cuts_early;
    // SAFETY: as above.
    unsafe { flotilla_output_hidden_states(context, weights.has_mtp_head(), with_logits_alone) };
}

/// The hidden state of `width` elements after a row of the last batch; empty if there is none.
///
/// # Safety
/// The context is valid, its hidden states have as many elements, and it computes no other batch
/// while the result is used.
pub(super) unsafe fn hidden_state<'a>(
    context: *mut sys::llama_context,
    row: usize,
    width: usize,
) -> &'a [f32] {
    // SAFETY: as above; null is checked.
    unsafe {
        let state = flotilla_hidden_state(context, row as c_int);
        if state.is_null() { &[] } else { std::slice::from_raw_parts(state, width) }
    }
}

#[cfg(test)]
mod tests;
