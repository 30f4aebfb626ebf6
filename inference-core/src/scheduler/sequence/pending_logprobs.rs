//! PURE. Holds logprobs until the text of their tokens is emitted. Text is held back while it may
//! become a stop string or a character is incomplete.

use std::collections::VecDeque;

use crate::types::request::TokenLogprob;

/// Logprobs of tokens whose text is not emitted yet.
#[derive(Debug, Default)]
pub(crate) struct PendingLogprobs {
    /// Each with the total bytes of all pieces up to and including its own.
    pending: VecDeque<(usize, TokenLogprob)>,
    /// Total bytes of all pieces.
    piece_bytes: usize,
    /// Bytes of text emitted so far.
    emitted_bytes: usize,
}

impl PendingLogprobs {
    /// Records that a token with a piece of `bytes` bytes was appended.
    pub(crate) fn push(&mut self, bytes: usize, logprob: Option<TokenLogprob>) {
        self.piece_bytes += bytes;
        if let Some(logprob) = logprob {
            self.pending.push_back((self.piece_bytes, logprob));
        }
    }

    /// Number of logprobs held.
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the logprobs released by `bytes` more bytes of emitted text; with `all`, all of
    /// them, because no more text follows.
    pub(crate) fn release(&mut self, bytes: usize, all: bool) -> Vec<TokenLogprob> {
        self.emitted_bytes += bytes;
        let is_emitted = |(end, _): &(usize, _)| all || *end <= self.emitted_bytes;
        let count = self.pending.iter().take_while(|pending| is_emitted(pending)).count();
        self.pending.drain(..count).map(|(_, logprob)| logprob).collect()
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
        let mut pending = PendingLogprobs::default();
        pending.push(2, logprob(1));
        assert_eq!(tokens(pending.release(2, false)), [1]);
        pending.push(3, logprob(2));
        pending.push(0, logprob(3));
        assert!(pending.release(1, false).is_empty());
        pending.push(1, logprob(4));
        assert_eq!(tokens(pending.release(2, false)), [2, 3]);
        assert_eq!(tokens(pending.release(0, true)), [4]);
    }

    #[test]
    fn tokens_of_a_stop_string_are_not_reported() {
        let mut pending = PendingLogprobs::default();
        pending.push(2, logprob(1));
        pending.push(4, logprob(2));
        assert_eq!(tokens(pending.release(2, false)), [1]);
    }
}
