//! vLLM's lists of tokens and words.

use inference_core::types::request::{ALLOWED_MAX, LIST_MAX, Token, WORD_BYTES_MAX};

use super::invalid;
use crate::types::error::Error;

pub(super) fn stop_tokens(tokens: Option<&[Token]>) -> Result<Vec<Token>, Error> {
    let tokens = tokens.unwrap_or_default();
    match tokens.len() > LIST_MAX {
        true => {
            let message = format!("stop_token_ids takes at most {LIST_MAX} tokens");
            Err(invalid("stop_token_ids", &message))
        }
        false => Ok(tokens.to_vec()),
    }
}

/// An empty list allows all tokens.
pub(super) fn allowed_tokens(tokens: Option<&[Token]>) -> Result<Option<Vec<Token>>, Error> {
    let tokens = tokens.unwrap_or_default();
    if tokens.len() > ALLOWED_MAX {
        let message = format!("allowed_token_ids takes at most {ALLOWED_MAX} tokens");
        return Err(invalid("allowed_token_ids", &message));
    }
    Ok((!tokens.is_empty()).then(|| tokens.to_vec()))
}

pub(super) fn bad_words(words: Option<&[String]>) -> Result<Vec<String>, Error> {
    let words = words.unwrap_or_default();
    let is_bad = |word: &String| word.trim().is_empty() || word.len() > WORD_BYTES_MAX;
    if words.len() > LIST_MAX || words.iter().any(is_bad) {
        let message = format!(
            "bad_words must be a list of at most {LIST_MAX} words of 1 to {WORD_BYTES_MAX} bytes"
        );
        return Err(invalid("bad_words", &message));
    }
    Ok(words.to_vec())
}
