//! PURE. Holds logprobs until the text of their tokens is emitted. Text is held back while it may
//! become a stop string or a character is incomplete.

use std::collections::VecDeque;

use crate::types::request::TokenLogprob;

/// Logprobs of tokens whose text is not emitted yet.
#[derive(Debug, Default)]
pub struct HeldLogprobs {
    /// Each with the total bytes of all pieces up to and including its own.
    held: VecDeque<(usize, TokenLogprob)>,
    /// Total bytes of all pieces.
    written: usize,
    /// Bytes of text emitted so far.
    shown: usize,
}

impl HeldLogprobs {
    /// Records that a token with a piece of `bytes` bytes was appended.
    pub fn push(&mut self, bytes: usize, logprob: Option<TokenLogprob>) {
        self.written += bytes;
        if let Some(logprob) = logprob {
            self.held.push_back((self.written, logprob));
        }
    }

    /// Number of logprobs held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Returns the logprobs released by `bytes` more bytes of emitted text; with `all`, all of
    /// them, because no more text follows.
    pub fn release(&mut self, bytes: usize, all: bool) -> Vec<TokenLogprob> {
        self.shown += bytes;
        let is_shown = |(end, _): &(usize, _)| all || *end <= self.shown;
        let count = self.held.iter().take_while(|held| is_shown(held)).count();
        self.held.drain(..count).map(|(_, logprob)| logprob).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::request::LikelyToken;

    fn logprob(token: u32) -> Option<TokenLogprob> {
        let chosen = LikelyToken { token, bytes: Vec::new(), logprob: 0.0 };
        Some(TokenLogprob { chosen, likeliest: Vec::new() })
    }

    fn tokens(released: Vec<TokenLogprob>) -> Vec<u32> {
        released.into_iter().map(|l| l.chosen.token).collect()
    }

    #[test]
    fn logprobs_come_with_the_text_of_their_tokens() {
        let mut held = HeldLogprobs::default();
        held.push(2, logprob(1));
        assert_eq!(tokens(held.release(2, false)), [1]);
        held.push(3, logprob(2));
        held.push(0, logprob(3));
        assert!(held.release(1, false).is_empty());
        held.push(1, logprob(4));
        assert_eq!(tokens(held.release(2, false)), [2, 3]);
        assert_eq!(tokens(held.release(0, true)), [4]);
    }

    #[test]
    fn tokens_of_a_stop_string_are_not_told() {
        let mut held = HeldLogprobs::default();
        held.push(2, logprob(1));
        held.push(4, logprob(2));
        assert_eq!(tokens(held.release(2, false)), [1]);
    }
}
