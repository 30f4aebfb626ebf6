//! PURE. Tokenizes texts part by part, and stops when the request is canceled or has too many
//! tokens.

use super::bounds::{Bounds, solid_bytes};
use crate::types::model::Tokenizer;
use crate::types::request::{Failure, Token};

/// False once the request is canceled.
pub type Wanted<'a> = &'a dyn Fn() -> bool;

/// Why a request was not prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The caller canceled it.
    Cancelled,
    /// The request is invalid or cannot be served.
    Failed(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Why tokenizing stopped early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stopped {
    /// The request was canceled.
    Cancelled,
    /// There are at least this many tokens, which is too many.
    TooLong(usize),
    /// The tokenizer failed.
    Failed(Failure),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Stopped {
    /// Converts it for the caller; `too_long` turns a number of tokens into a failure.
    pub(super) fn refusal(self, too_long: impl FnOnce(u32) -> Failure) -> Refusal {
        match self {
            Self::Cancelled => Refusal::Cancelled,
            Self::TooLong(tokens) => {
                Refusal::Failed(too_long(u32::try_from(tokens).unwrap_or(u32::MAX)))
            }
            Self::Failed(failure) => Refusal::Failed(failure),
        }
    }
}

/// State of tokenizing the texts of a request.
pub(super) struct Reading<'a> {
    pub(super) tokenizer: &'a dyn Tokenizer,
    pub(super) bounds: &'a Bounds,
    pub(super) wanted: Wanted<'a>,
    /// Maximum number of tokens.
    pub(super) tokens_max: usize,
    pub(super) tokens: Vec<Token>,
}

impl Reading<'_> {
    /// Fails before any tokenizing if `texts` certainly have too many tokens. If they have only
    /// slightly too many, tokenizing continues to the end to report the exact number.
    pub(super) fn announce<'t>(&self, texts: impl Iterator<Item = &'t str>) -> Result<(), Stopped> {
        let solid = texts.map(|text| solid_bytes(text.as_bytes())).sum();
        let fewest = self.bounds.tokens_min(solid);
        if fewest > self.tokens_max { Err(Stopped::TooLong(fewest)) } else { Ok(()) }
    }

    /// Tokenizes a text. With `control`, the texts of control tokens become those tokens.
    pub(super) fn text(&mut self, text: &str, control: bool) -> Result<(), Stopped> {
        for part in self.bounds.parts(text) {
            if !(self.wanted)() {
                return Err(Stopped::Cancelled);
            }
            self.tokens.extend(self.tokenizer.tokenize(part, control)?);
            if self.tokens.len() > self.tokens_max.saturating_mul(2) {
                return Err(Stopped::TooLong(self.tokens.len()));
            }
        }
        Ok(())
    }
}
