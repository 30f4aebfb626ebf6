//! PURE. Keeps requests within what is left of the budget of their tenant.

use crate::types::request::{Failure, Options, Token};

/// Maximum tokens of each of `choices` choices after a prompt of `prompt` tokens.
pub(super) fn max_tokens(
    options: &Options,
    prompt: usize,
    choices: usize,
) -> Result<Option<u32>, Failure> {
    let Some(usage_max) = options.usage_max else { return Ok(options.max_tokens) };
    let tokens = prompt as u64;
    let room = usage_max.saturating_sub(tokens);
    let each = u32::try_from(room / choices.max(1) as u64).unwrap_or(u32::MAX);
    let is_refused = tokens > usage_max || (each == 0 && options.max_tokens != Some(0));
    match is_refused {
        true => Err(Failure::BudgetExceeded { tokens, usage_max }),
        false => Ok(Some(options.max_tokens.map_or(each, |asked| asked.min(each)))),
    }
}

/// Refuses inputs that have more tokens together.
pub(super) fn check(inputs: &[Vec<Token>], usage_max: Option<u64>) -> Result<(), Failure> {
    let tokens = inputs.iter().map(|input| input.len() as u64).sum();
    match usage_max.filter(|max| tokens > *max) {
        Some(usage_max) => Err(Failure::BudgetExceeded { tokens, usage_max }),
        None => Ok(()),
    }
}
