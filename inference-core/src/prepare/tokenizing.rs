//! PURE. Tokenizes texts part by part, and stops when the request is canceled or has too many
//! tokens.

use super::bounds::{Bounds, solid_bytes};
use crate::types::model::Tokenizer;
use crate::types::request::{Failure, Token};

/// False once the request is canceled.
pub type IsWanted<'a> = &'a dyn Fn() -> bool;

/// Why a request was not prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PrepareError {
    /// The caller canceled it.
    Cancelled,
    /// The request is invalid or cannot be served.
    Failed(Failure),
}

impl From<Failure> for PrepareError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Why tokenizing stopped early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TokenizeError {
    /// The request was canceled.
    Cancelled,
    /// There are at least this many tokens, which is too many.
    TooLong(usize),
    Failed(Failure),
}

impl From<Failure> for TokenizeError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl TokenizeError {
    /// Converts it for the caller; `too_long` turns a number of tokens into a failure.
    pub(super) fn into_error(self, too_long: impl FnOnce(u32) -> Failure) -> PrepareError {
        match self {
            Self::Cancelled => PrepareError::Cancelled,
            Self::TooLong(tokens) => {
                PrepareError::Failed(too_long(u32::try_from(tokens).unwrap_or(u32::MAX)))
            }
            Self::Failed(failure) => PrepareError::Failed(failure),
        }
    }
}

/// State of tokenizing the texts of a request.
pub(super) struct PromptTokenizer<'a> {
    pub(super) tokenizer: &'a dyn Tokenizer,
    pub(super) bounds: &'a Bounds,
    pub(super) is_wanted: IsWanted<'a>,
    pub(super) tokens_max: usize,
    pub(super) tokens: Vec<Token>,
}

impl PromptTokenizer<'_> {
    /// Fails before any tokenizing if `texts` certainly have too many tokens. If they have only
    /// slightly too many, tokenizing continues to the end to report the exact number.
    pub(super) fn check_min_tokens<'t>(
        &self,
        texts: impl Iterator<Item = &'t str>,
    ) -> Result<(), TokenizeError> {
        let solid = texts.map(|text| solid_bytes(text.as_bytes())).sum();
        let fewest = self.bounds.tokens_min(solid);
        if fewest > self.tokens_max { Err(TokenizeError::TooLong(fewest)) } else { Ok(()) }
    }

    /// Tokenizes a text. With `control`, the texts of control tokens become those tokens.
    pub(super) fn push_text(&mut self, text: &str, control: bool) -> Result<(), TokenizeError> {
        for part in self.bounds.parts(text) {
            if !(self.is_wanted)() {
                return Err(TokenizeError::Cancelled);
            }
            self.tokens.extend(self.tokenizer.tokenize(part, control)?);
            if self.tokens.len() > self.tokens_max.saturating_mul(2) {
                return Err(TokenizeError::TooLong(self.tokens.len()));
            }
        }
        Ok(())
    }
}
