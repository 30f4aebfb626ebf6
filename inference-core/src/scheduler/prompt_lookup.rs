//! PURE. Prompt lookup: drafts the tokens that followed an earlier occurrence of a sequence's last
//! tokens, in the prompt or in the response, or that follow them in a text which the response is
//! predicted to repeat. Source: Saxena, "Prompt Lookup Decoding" (2023).
//!
//! Every sampled token is compared with the draft, even if no draft token was computed. So the
//! acceptance rate is always up to date.

use std::sync::Arc;

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
    /// What the response is likely to repeat.
    prediction: Arc<[Token]>,
    draft: Vec<Token>,
    /// Class of the match that yielded the draft.
    class: usize,
    /// Acceptance rate of a draft token after accepted ones, by class: 0 to 1.
    acceptance: [f32; CLASSES.len()],
}

impl PromptLookup {
    /// Starts without a draft. The response is likely to repeat `prediction`.
    pub(crate) fn new(prediction: Arc<[Token]>) -> Self {
        let acceptance = CLASSES.map(|(_, rate)| rate);
        Self { prediction, draft: Vec::new(), class: 0, acceptance }
    }

    /// Drafts up to `count` tokens after `known`, of which `prompt` are the prompt's.
    pub(crate) fn update(&mut self, known: &[Token], prompt: usize, count: usize) {
        self.draft.clear();
        if count == 0 {
            return;
        }
        let own = longest_match(known);
        let predicted = predicted_match(&self.prediction, known, prompt);
        // The text repeats itself only if that is more certain.
        let is_own = |(_, predicted)| own.is_some_and(|(_, own)| own > predicted);
        let length = match predicted.filter(|found| !is_own(*found)) {
            Some((next, length)) => {
                self.draft.extend(self.prediction[next..].iter().take(count));
                length
            }
            None => {
                let Some((next, length)) = own else { return };
                // If the match reaches the end of the text, the text is periodic.
                self.draft.extend(known[next..].iter().cycle().take(count));
                length
            }
        };
        self.class = CLASSES.iter().rposition(|(least, _)| length >= *least).unwrap_or(0);
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

/// The longest match for the end of the text in itself. See [`longest_match_in`].
fn longest_match(known: &[Token]) -> Option<(usize, usize)> {
    let (_, before) = known.split_last()?;
    longest_match_in(before, known)
}

/// The longest match in a prediction with tokens after it. A response that has been as predicted
/// from its beginning is the surest match, however short it is.
fn predicted_match(prediction: &[Token], known: &[Token], prompt: usize) -> Option<(usize, usize)> {
    // Nothing follows the last one.
    let (_, with_next) = prediction.split_last()?;
    let response = known.get(prompt..).unwrap_or_default();
    match !response.is_empty() && with_next.starts_with(response) {
        true => Some((response.len(), MATCH_MAX)),
        false => longest_match_in(with_next, known),
    }
}

/// The longest match for the end of `known` in a text, the latest one of equal length: the index of
/// the token after it, and its length in tokens.
fn longest_match_in(text: &[Token], known: &[Token]) -> Option<(usize, usize)> {
    let (last, before) = known.split_last()?;
    let mut best = None;
    for end in (0..text.len()).rev().filter(|end| text[*end] == *last) {
        let ends = text[..end].iter().rev().zip(before.iter().rev());
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
        predicted(&[], known, 0, count)
    }

    fn predicted(prediction: &[Token], known: &[Token], prompt: usize, count: usize) -> Vec<Token> {
        let mut lookup = PromptLookup::new(prediction.into());
        lookup.update(known, prompt, count);
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
    fn a_response_follows_its_prediction_from_the_first_token_on() {
        let prediction = [5, 6, 7, 8, 9];
        assert_eq!(predicted(&prediction, &[1, 2, 5], 2, 3), [6, 7, 8]);
        assert_eq!(predicted(&prediction, &[1, 2, 5, 6, 7], 2, 9), [8, 9]);
        for known in [&[1, 2, 5, 6, 7, 8, 9][..], &[1, 2, 9], &[1, 2]] {
            assert!(predicted(&prediction, known, 2, 3).is_empty(), "{known:?}");
        }
        assert!(predicted(&prediction, &[1, 5], 2, 3).is_empty(), "the prompt may end like it");
    }

    #[test]
    fn a_response_comes_back_to_its_prediction_after_it_has_left_it() {
        let prediction = [5, 6, 7, 8, 9, 4, 7, 8, 3];
        assert_eq!(predicted(&prediction, &[1, 5, 2, 8, 9], 1, 2), [4, 7]);
        assert_eq!(predicted(&prediction, &[1, 5, 2, 7, 8], 1, 2), [3], "the last one");
        assert!(predicted(&prediction, &[1, 5, 2, 8], 1, 2).is_empty(), "one token tells nothing");
        assert_eq!(predicted(&prediction, &[0, 8, 9, 6, 2, 0, 8, 9], 4, 1), [6], "a longer match");
        assert_eq!(predicted(&prediction, &[8, 9, 6, 2, 8, 9], 3, 1), [4], "the same length");
    }

    #[test]
    fn nothing_follows_from_a_single_token_or_a_new_text() {
        for known in [&[][..], &[1], &[1, 1], &[1, 2, 3, 1], &[1, 2, 3, 4]] {
            assert!(drafted(known, 4).is_empty(), "{known:?}");
        }
    }

    #[test]
    fn the_acceptance_rate_follows_the_tokens_of_its_class_alone() {
        let mut lookup = PromptLookup::new(Arc::default());
        let (short, long) = ([1, 2, 3, 1, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8]);
        lookup.update(&long, 0, 1);
        (0..100).for_each(|_| assert!(!lookup.record(0, 0)));
        assert!(lookup.acceptance() < 0.01);
        lookup.update(&short, 0, 1);
        assert_eq!(lookup.acceptance(), CLASSES[0].1);
        (0..100).for_each(|_| assert!(lookup.record(0, 3)));
        assert!(lookup.acceptance() > 0.99);
        assert!(!lookup.record(1, 7));
        assert!(lookup.acceptance() > 0.99, "there is no draft token");
    }
}
