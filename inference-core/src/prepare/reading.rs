//! PURE. Texts become tokens part by part: reading ends when nobody wants them anymore, and when
//! they are too many.

use super::bounds::{Bounds, solid_bytes};
use crate::types::model::Tokenizer;
use crate::types::request::{Failure, Token};

/// Whether a request is still wanted.
pub type Wanted<'a> = &'a dyn Fn() -> bool;

/// Why a request is not prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody wants it anymore.
    Cancelled,
    /// It cannot be answered.
    Failed(Failure),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// Why reading ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stopped {
    /// Nobody wants the tokens anymore.
    Cancelled,
    /// They are at least so many, which is too many.
    TooLong(usize),
    /// There are none.
    Failed(Failure),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Stopped {
    /// The same for who asked; `too_long` says what it means to have so many tokens.
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

/// Tokens that are being read.
pub(super) struct Reading<'a> {
    pub(super) tokenizer: &'a dyn Tokenizer,
    pub(super) bounds: &'a Bounds,
    pub(super) wanted: Wanted<'a>,
    /// More tokens than this are too many.
    pub(super) tokens_max: usize,
    pub(super) tokens: Vec<Token>,
}

impl Reading<'_> {
    /// Ends before anything is read where `texts` cannot become few enough tokens. Texts of
    /// somewhat too many tokens are read to the end, to tell how many they are.
    pub(super) fn announce<'t>(&self, texts: impl Iterator<Item = &'t str>) -> Result<(), Stopped> {
        let solid = texts.map(|text| solid_bytes(text.as_bytes())).sum();
        let fewest = self.bounds.tokens_min(solid);
        if fewest > self.tokens_max { Err(Stopped::TooLong(fewest)) } else { Ok(()) }
    }

    /// Reads a text. `control`: texts of control tokens become those tokens.
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
