//! PURE. Prompt lookup: drafts the tokens that followed an earlier occurrence of a sequence's last
//! tokens, in the prompt or in the response. Source: Saxena, "Prompt Lookup Decoding" (2023).
//!
//! Every sampled token is compared with the draft, even if no draft token was computed. So the
//! acceptance rate is always up to date.

use crate::types::request::Token;

/// Shortest match that yields a draft, in tokens.
const MATCH_MIN: usize = 2;
/// Longest match that is looked for, in tokens: longer ones are no more reliable.
const MATCH_MAX: usize = 16;
/// Classes of matches: minimum length in tokens, and initial acceptance rate.
const CLASSES: [(usize, f32); 3] = [(MATCH_MIN, 0.3), (4, 0.6), (8, 0.8)];
/// Weight of the newest token in the moving average.
const SMOOTHING: f32 = 0.1;

/// The draft of a sequence, and its acceptance rates. See the module.
#[derive(Debug)]
pub(crate) struct PromptLookup {
    draft: Vec<Token>,
    /// Class of the match that yielded the draft.
    class: usize,
    /// Acceptance rate of a draft token after accepted ones, by class: 0 to 1.
    acceptance: [f32; CLASSES.len()],
}

impl PromptLookup {
    /// Starts without a draft.
    pub(crate) fn new() -> Self {
        Self { draft: Vec::new(), class: 0, acceptance: CLASSES.map(|(_, rate)| rate) }
    }

    /// Drafts up to `count` tokens after `known`.
    pub(crate) fn update(&mut self, known: &[Token], count: usize) {
        self.draft.clear();
        if count == 0 {
            return;
        }
        let Some((next, length)) = longest_match(known) else { return };
        self.class = CLASSES.iter().rposition(|(least, _)| length >= *least).unwrap_or(0);
        // If the match reaches the end of the text, the text is periodic.
        self.draft.extend(known[next..].iter().cycle().take(count));
    }

    /// The draft tokens.
    pub(crate) fn draft(&self) -> &[Token] {
        &self.draft
    }

    /// Probability that a draft token is accepted if the ones before it are: 0 to 1.
    pub(crate) fn acceptance(&self) -> f32 {
        self.acceptance[self.class]
    }

    /// Compares the draft token at `index` with the sampled one. True if they are equal.
    pub(crate) fn record(&mut self, index: usize, sampled: Token) -> bool {
        let Some(token) = self.draft.get(index) else { return false };
        let is_accepted = *token == sampled;
        let rate = &mut self.acceptance[self.class];
        *rate += SMOOTHING * (f32::from(u8::from(is_accepted)) - *rate);
        is_accepted
    }
}

/// The longest match for the end of the text, the latest one of equal length: the index of the
/// token after it, and its length in tokens.
fn longest_match(known: &[Token]) -> Option<(usize, usize)> {
    let (last, before) = known.split_last()?;
    let mut best = None;
    for end in (0..before.len()).rev().filter(|end| before[*end] == *last) {
        let ends = before[..end].iter().rev().zip(before.iter().rev());
        let length = 1 + ends.take(MATCH_MAX - 1).take_while(|(a, b)| a == b).count();
        if length >= MATCH_MIN && best.is_none_or(|(_, longest)| length > longest) {
            best = Some((end + 1, length));
            if length == MATCH_MAX {
                break;
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafted(known: &[Token], count: usize) -> Vec<Token> {
        let mut lookup = PromptLookup::new();
        lookup.update(known, count);
        lookup.draft().to_vec()
    }

    #[test]
    fn what_followed_the_longest_match_follows_again() {
        assert_eq!(drafted(&[1, 2, 3, 9, 2, 3, 7, 1, 2, 3], 2), [9, 2]);
        assert_eq!(
            drafted(&[2, 3, 9, 5, 2, 3, 7, 6, 2, 3], 1),
            [7],
            "the last one of equal length"
        );
    }

    #[test]
    fn a_repetition_goes_on() {
        assert_eq!(drafted(&[5, 1, 2, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(drafted(&[4, 4, 4], 3), [4, 4, 4]);
    }

    #[test]
    fn nothing_follows_from_a_single_token_or_a_new_text() {
        for known in [&[][..], &[1], &[1, 1], &[1, 2, 3, 1], &[1, 2, 3, 4]] {
            assert!(drafted(known, 4).is_empty(), "{known:?}");
        }
    }

    #[test]
    fn the_acceptance_rate_follows_the_tokens_of_its_class_alone() {
        let mut lookup = PromptLookup::new();
        let (short, long) = ([1, 2, 3, 1, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8]);
        lookup.update(&long, 1);
        (0..100).for_each(|_| assert!(!lookup.record(0, 0)));
        assert!(lookup.acceptance() < 0.01);
        lookup.update(&short, 1);
        assert_eq!(lookup.acceptance(), CLASSES[0].1);
        (0..100).for_each(|_| assert!(lookup.record(0, 3)));
        assert!(lookup.acceptance() > 0.99);
        assert!(!lookup.record(1, 7));
        assert!(lookup.acceptance() > 0.99, "there is no draft token");
    }
}
