//! A draft model: a small model in a context beside that of a large one.

use super::weights::Weights;
use super::{ContextOptions, KvType, LlamaModel, LoadError};
use crate::model_file::memory_plan::draft;

/// As many tokens of a family's models may differ in number: large ones have padded tables.
const VOCABULARY_PADDING: u32 = 128;
/// One of so many tokens may have another text: those that are reserved get names later.
const RENAMED_SHARE: u32 = 100;

/// Creates the context of a draft model for `large`, on its threads. `options` are those of
/// `large`.
///
/// # Errors
/// The models have different tokens, or there is too little memory.
pub fn draft_model(
    large: &LlamaModel,
    weights: Weights,
    options: ContextOptions,
) -> Result<LlamaModel, LoadError> {
    if weights.pooling().is_some() {
        return Err(LoadError::Draft(Box::new(LoadError::NotGenerative)));
    }
    compare_vocabularies(large.weights(), &weights).map_err(LoadError::DraftVocabulary)?;
    let context_tokens = draft::context_tokens(weights.sizes().context_trained);
    let options = ContextOptions {
        slots: options.slots.min(draft::SEQUENCES),
        context_tokens,
        kv_cells: draft::KV_CELLS,
        prefix_cache: false,
        saved_prefix_bytes: 0,
        kv_type: KvType::F16,
        batch_rows: draft::BATCH_ROWS,
        whole_windows: true,
        ..options
    };
    let model = LlamaModel::beside(large, weights, options);
    model.map_err(|error| LoadError::Draft(Box::new(error)))
}

/// Checks that tokens mean the same in both models. Nothing but the speed depends on it.
fn compare_vocabularies(large: &Weights, small: &Weights) -> Result<(), String> {
    let (all, ours) = (large.vocabulary(), small.vocabulary());
    if all.abs_diff(ours) > VOCABULARY_PADDING {
        return Err(format!("{ours} tokens instead of {all}"));
    }
    let common = all.min(ours);
    let texts = |id: &u32| (large.text(*id as i32), small.text(*id as i32));
    let mut others = (0..common).filter(|id| {
        let (theirs, ours) = texts(id);
        theirs != ours
    });
    match others.nth((common / RENAMED_SHARE) as usize) {
        None => Ok(()),
        Some(id) => {
            let (theirs, ours) = texts(&id);
            Err(format!("token {id} is {ours:?} instead of {theirs:?}"))
        }
    }
}
