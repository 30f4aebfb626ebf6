//! PURE. Sizes of a draft model's context. They do not depend on the large model's, whose plan has
//! what is left.

use super::{LoadMode, MachineFacts, PlanFailure, RequestedSettings, plan};
use crate::model_file::gguf::Header;

/// Sequences that it drafts for side by side.
pub const SEQUENCES: u32 = 4;
/// KV cells of all of them together.
pub const KV_CELLS: u32 = 8192;
/// Rows of a batch.
pub const BATCH_ROWS: u32 = 128;

/// Sequences and KV cells of an MTP head, whose model has as many. Each draft of a recurrent model
/// needs another sequence id for a checkpoint.
pub(crate) fn head_sizes(
    is_recurrent: bool,
    (sequences, kv_cells): (u64, u64),
    context_tokens: u64,
) -> (u64, u64) {
    let drafted = if is_recurrent { sequences.div_ceil(2) } else { sequences };
    let drafted = drafted.min(SEQUENCES.into());
    (drafted, if drafted == 1 { context_tokens.min(kv_cells) } else { kv_cells })
}

/// Tokens of one sequence, of a model that was trained for as many; 0 is unknown.
pub fn context_tokens(trained: u32) -> u32 {
    if trained == 0 { KV_CELLS } else { trained.min(KV_CELLS) }
}

/// Memory that a draft model takes, in bytes, with keys and values in F16.
///
/// # Errors
/// Its memory is not known to this version.
pub fn bytes(header: &Header, facts: &MachineFacts, load: LoadMode) -> Result<u64, String> {
    let requested = RequestedSettings {
        slots: Some(SEQUENCES.into()),
        context_tokens: Some(context_tokens(header.context_tokens).into()),
        kv_cells: Some(KV_CELLS.into()),
        load,
        batch_rows: BATCH_ROWS.into(),
        prefix_cache: false,
        saved_prefix_bytes: Some(0),
        whole_windows: true,
        ..RequestedSettings::default()
    };
    match plan(header, facts, &requested) {
        Ok(plan) => Ok(plan.needed_bytes),
        Err(PlanFailure::Refused(refusal)) => Ok(refusal.plan.needed_bytes),
        Err(PlanFailure::Error(error)) => Err(error.to_string()),
    }
}
