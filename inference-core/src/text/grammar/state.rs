//! PURE. The grammar state of one response: decides which tokens may come next.

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use super::{GrammarError, limits};
use crate::types::request::Token;

/// Tokens per word of a mask.
const WORD: usize = 32;
/// llguidance's reason when no token may come next.
const NOTHING: &str = "NoExtensionBias";

/// State of one response. A clone continues independently; clones share the lexer's cache.
///
/// In each step, either [`Grammar::mask`] the logits and sample, or sample first, ask
/// [`Grammar::allows`] and mask only if the token is not allowed; then call [`Grammar::accept`].
#[derive(Clone)]
pub struct Grammar {
    matcher: Matcher,
    ends: Arc<[Token]>,
    /// Control tokens that a negation would allow although the constraint does not name them.
    excluded: Arc<[Token]>,
    /// The mask of tokens allowed now, once computed.
    allowed: Option<SimpleVob>,
    /// Tokens checked since the last mask was computed.
    checks: u32,
    ended: bool,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammar").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Grammar {
    pub(super) fn new(matcher: Matcher, ends: Arc<[Token]>, excluded: Arc<[Token]>) -> Self {
        Self { matcher, ends, excluded, allowed: None, checks: 0, ended: false }
    }

    /// A copy for another response that shares nothing: the cost of one response never counts
    /// against another.
    pub(crate) fn separate(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), ..self.clone() }
    }

    /// Computes what a response may start with: some constraints allow nothing at all, or are too
    /// complex from the start.
    pub(super) fn begin(&mut self) -> Result<(), GrammarError> {
        match self.allowed() {
            Ok(_) => Ok(()),
            Err(GrammarError::Invalid(_)) => {
                Err(GrammarError::Invalid("the constraint allows no answer".into()))
            }
            Err(e) => Err(e),
        }
    }

    /// Sets the logits of all disallowed tokens to negative infinity. Fails unless at least one
    /// token is left. `logits` holds one value per token.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), GrammarError> {
        apply(self.allowed()?.as_slice(), logits);
        Ok(())
    }

    /// True if `token` may come next: much cheaper than a mask. The grammar state does not change.
    pub fn allows(&mut self, token: Token) -> Result<bool, GrammarError> {
        let known = self.allowed.is_some() || self.checks == 0 || self.checks > limits::CHECKS_MAX;
        if known || self.must_end() {
            let allowed = self.allowed()?;
            return Ok((token as usize) < allowed.len() && allowed.is_allowed(token));
        }
        if self.is_end(token) {
            return self.may_end();
        }
        if self.excluded.contains(&token) {
            return Ok(false);
        }
        self.checks += 1;
        // Some grammars allow any token by its number, including nonexistent ones.
        let valid = self.matcher.validate_tokens(&[token]);
        valid.map(|n| n == 1).map_err(|e| GrammarError::running(&e.to_string()))
    }

    /// Advances by `token`. An error other than [`GrammarError::Rejected`] ends the response.
    pub fn accept(&mut self, token: Token) -> Result<(), GrammarError> {
        if self.ended || !self.allows(token)? {
            return Err(GrammarError::Rejected(token));
        }
        self.allowed = None;
        if self.is_end(token) {
            self.ended = true;
            return Ok(());
        }
        let taken = self.matcher.consume_token(token);
        taken.map_err(|e| GrammarError::running(&e.to_string()))
    }

    /// True if the response is complete, so that it may end here.
    pub(crate) fn may_end(&mut self) -> Result<bool, GrammarError> {
        if self.must_end() {
            return Ok(true);
        }
        self.matcher.is_accepting().map_err(|e| GrammarError::running(&e.to_string()))
    }

    /// True if only an end token may come next. False after an error.
    pub fn must_end(&self) -> bool {
        self.ended || (self.matcher.is_stopped() && !self.matcher.is_error())
    }

    fn is_end(&self, token: Token) -> bool {
        self.ends.contains(&token)
    }

    fn allowed(&mut self) -> Result<&SimpleVob, GrammarError> {
        if self.allowed.is_none() {
            self.allowed = Some(self.compute()?);
            self.checks = 1;
        }
        let nothing = || GrammarError::Internal("the mask is gone".into());
        self.allowed.as_ref().ok_or_else(nothing)
    }

    /// Computes the mask. To llguidance, a control token is a text like any other, so a negation
    /// matches it.
    fn compute(&mut self) -> Result<SimpleVob, GrammarError> {
        let mask = self.matcher.compute_mask_or_eos();
        let mut mask = mask.map_err(|e| stopped(&e.to_string()))?;
        let ends = if self.may_end()? { &[] } else { &*self.ends };
        for token in ends.iter().chain(&*self.excluded) {
            mask.disallow_token(*token);
        }
        if mask.is_zero() { Err(stopped(NOTHING)) } else { Ok(mask) }
    }
}

/// Why there is no mask. Conditions on Lark's parameters can lead to a state in which no token may
/// follow.
fn stopped(why: &str) -> GrammarError {
    match GrammarError::running(why) {
        GrammarError::Internal(why) if why == NOTHING => GrammarError::Invalid(
            "the constraint has a dead end: no text may follow the text so far".into(),
        ),
        error => error,
    }
}

/// One bit per token, lowest first; tokens beyond the words are not allowed.
fn apply(words: &[u32], logits: &mut [f32]) {
    let words = words.iter().chain(std::iter::repeat(&0));
    for (part, word) in logits.chunks_mut(WORD).zip(words) {
        match *word {
            0 => part.fill(f32::NEG_INFINITY),
            u32::MAX => {}
            word => {
                for (bit, logit) in part.iter_mut().enumerate() {
                    *logit = if (word >> bit) & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_leaves_what_its_bits_allow_and_nothing_beyond_them() {
        let mut logits = vec![1.0; 101];
        apply(&[u32::MAX, 0, 0b101], &mut logits);
        let left: Vec<usize> = (0..101).filter(|i| logits[*i] == 1.0).collect();
        assert_eq!(left, (0..32).chain([64, 66]).collect::<Vec<_>>());
        assert!(logits[32..64].iter().all(|l| *l == f32::NEG_INFINITY));
    }

    #[test]
    fn a_state_may_move_between_threads() {
        fn movable<T: Send>() {}
        movable::<Grammar>();
        movable::<super::super::Grammars>();
    }
}
