//! PURE. Which tokens drafts come from: all of the vocabulary, or its first ones, if nearly all
//! tokens of responses are among those.
//!
//! A draft needs the logits of every token that it might be, and the output matrix is a third of a
//! small model with a large vocabulary. In most vocabularies the most frequent tokens come first.
//! Of that of Qwen3.5, 99 % of an English text are in the first half, and 96 % in the first
//! quarter. Source: Zhao et al., "FR-Spec" (2025), which takes the most frequent tokens of a
//! corpus.

use crate::types::request::Token;

/// Parts are multiples of this: kernels compute rows in groups.
const MULTIPLE: u32 = 256;
/// Divisors of the parts.
const DIVISORS: [u32; 3] = [4, 2, 1];
/// Tokens after which a part is chosen.
const WINDOW: u32 = 128;
/// Weight of the newest window.
const SMOOTHING: f32 = 0.3;
/// Share of all tokens that a part must have to be chosen. Each token that is missing ends a draft,
/// and a part saves half of the output matrix at least.
const SHARE_CHOSEN: f32 = 0.97;
/// The same to stay.
const SHARE_KEPT: f32 = 0.96;

/// See the module.
#[derive(Debug)]
pub(crate) struct VocabularyPart {
    /// Numbers of tokens, ascending; the last one is the whole vocabulary.
    sizes: [u32; DIVISORS.len()],
    /// How many tokens of this window each has.
    counts: [u32; DIVISORS.len()],
    tokens: u32,
    /// Share of tokens that each has; 0 before the first window has ended.
    shares: [f32; DIVISORS.len()],
    chosen: usize,
}

impl VocabularyPart {
    /// Starts with the whole vocabulary.
    pub(crate) fn new(vocabulary: u32) -> Self {
        let part = |divisor: u32| (vocabulary / divisor).next_multiple_of(MULTIPLE).min(vocabulary);
        Self {
            sizes: DIVISORS.map(part),
            counts: [0; DIVISORS.len()],
            tokens: 0,
            shares: [0.0; DIVISORS.len()],
            chosen: DIVISORS.len() - 1,
        }
    }

    /// Records a token of a response. Returns the number of tokens that drafts may come from, if
    /// that changes.
    pub(crate) fn record(&mut self, token: Token) -> Option<u32> {
        self.tokens += 1;
        for (count, size) in self.counts.iter_mut().zip(self.sizes) {
            *count += u32::from(token < size);
        }
        if self.tokens < WINDOW {
            return None;
        }
        for (share, count) in self.shares.iter_mut().zip(&mut self.counts) {
            let newest = std::mem::take(count) as f32 / WINDOW as f32;
            let weight = if *share == 0.0 { 1.0 } else { SMOOTHING };
            *share += weight * (newest - *share);
        }
        self.tokens = 0;
        let is_enough = |index: &usize| {
            let least = if *index == self.chosen { SHARE_KEPT } else { SHARE_CHOSEN };
            self.shares[*index] >= least
        };
        let last = self.sizes.len() - 1;
        let chosen = (0..last).find(is_enough).unwrap_or(last);
        let changes = self.sizes[chosen] != self.sizes[self.chosen];
        self.chosen = chosen;
        changes.then_some(self.sizes[chosen])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part after as many windows, of which so many percent of the tokens are `other`, and the
    /// others the first one.
    fn after(part: &mut VocabularyPart, windows: u32, (percent, other): (u32, Token)) -> u32 {
        let token = |i: u32| if i % 100 < percent { other } else { 0 };
        for i in 0..windows * WINDOW {
            let _ = part.record(token(i));
        }
        part.sizes[part.chosen]
    }

    #[test]
    fn drafts_come_from_the_smallest_part_that_has_nearly_all_tokens() {
        let new = || VocabularyPart::new(100_000);
        assert_eq!(new().sizes, [25_088, 50_176, 100_000]);
        assert_eq!(after(&mut new(), 0, (0, 0)), 100_000, "before anything is known");
        assert_eq!(after(&mut new(), 2, (1, 99_999)), 25_088);
        assert_eq!(after(&mut new(), 2, (5, 30_000)), 50_176);
        assert_eq!(after(&mut new(), 2, (5, 60_000)), 100_000);
    }

    #[test]
    fn a_change_of_language_is_noticed_and_a_rare_token_is_none() {
        let mut part = VocabularyPart::new(100_000);
        assert_eq!(after(&mut part, 3, (0, 0)), 25_088);
        assert_eq!(after(&mut part, 9, (3, 99_999)), 25_088, "it stays");
        assert_eq!(after(&mut part, 9, (50, 40_000)), 50_176);
        assert_eq!(after(&mut part, 9, (50, 90_000)), 100_000);
        assert_eq!(after(&mut part, 30, (0, 0)), 25_088);
    }

    #[test]
    fn a_change_is_reported_once_and_small_vocabularies_stay_whole() {
        let mut part = VocabularyPart::new(4096);
        let changes: Vec<u32> = (0..3 * WINDOW).filter_map(|_| part.record(7)).collect();
        assert_eq!(changes, [1024]);
        let mut part = VocabularyPart::new(200);
        assert!((0..3 * WINDOW).all(|_| part.record(7).is_none()));
        assert_eq!(part.sizes, [200; 3]);
    }
}
