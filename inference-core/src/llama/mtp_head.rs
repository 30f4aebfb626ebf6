//! MTP heads: a layer in the file of a model that drafts what the model may say, from the model's
//! own hidden states. Source: DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 2.2.
//!
//! A head has a context of its own, on the same weights. Each of its rows is a token and the hidden
//! state of the model before it, and tells the next token, and a hidden state to go on with.

use std::ffi::c_int;

use llama_cpp_sys_2 as sys;

use super::{ContextOptions, LlamaModel, LoadError};
use crate::model_file::memory_plan::draft;
use crate::types::model::{Model, Undo};

// See inference-core/memory/staging.cpp.
unsafe extern "C" {
    fn flotilla_tell_hidden_states(context: *mut sys::llama_context, told: bool);
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
    // A model with a recurrent state gets drafts only for a response that is alone.
    let alone = model.shape().undo == Undo::WholeBatch;
    let options = ContextOptions {
        slots: if alone { 1 } else { options.slots.min(draft::SEQUENCES) },
        kv_cells: if alone { options.context_tokens } else { options.kv_cells },
        prefix_cache: false,
        saved_prefix_bytes: 0,
        batch_rows: draft::BATCH_ROWS,
        whole_windows: true,
        ..options
    };
    let head = LlamaModel::head_of(model, options);
    head.map(Some).map_err(|error| LoadError::MtpHead(Box::new(error)))
}

/// Lets batches of a context tell the hidden state of every row, or of none.
///
/// # Safety
/// The context is valid.
pub(super) unsafe fn tell_hidden_states(context: *mut sys::llama_context, told: bool) {
    // SAFETY: as above.
    unsafe { flotilla_tell_hidden_states(context, told) };
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
