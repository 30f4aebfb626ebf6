//! PURE. What the text of a sequence foretells: the tokens that followed where its last tokens
//! stood before, in the prompt or in the response. From Saxena, "Prompt Lookup Decoding" (2023).
//!
//! It costs nothing to compare the foretold tokens with those that are sampled, drafted or not, so
//! how often they are right is always known.

use crate::types::request::Token;

/// Tokens that must have stood before.
const MATCH_MIN: usize = 2;
/// A longer match foretells no better.
const MATCH_MAX: usize = 16;
/// Match lengths from which on a class of matches begins, and how often the next token is right
/// before any of the class was seen.
const CLASSES: [(usize, f32); 3] = [(MATCH_MIN, 0.3), (4, 0.6), (8, 0.8)];
/// Weight of the newest token in the moving average.
const SMOOTHING: f32 = 0.1;

/// The tokens that a sequence's text foretells. See the module.
#[derive(Debug)]
pub(crate) struct Forecast {
    tokens: Vec<Token>,
    /// Of the match that foretells them.
    class: usize,
    /// How often a foretold token was right if those before it were, by class: 0 to 1.
    hits: [f32; CLASSES.len()],
}

impl Forecast {
    /// Foretells nothing yet.
    pub(crate) fn new() -> Self {
        Self { tokens: Vec::new(), class: 0, hits: CLASSES.map(|(_, hits)| hits) }
    }

    /// Foretells up to `count` tokens after `known`.
    pub(crate) fn look(&mut self, known: &[Token], count: usize) {
        self.tokens.clear();
        if count == 0 {
            return;
        }
        let Some((after, length)) = longest_match(known) else { return };
        self.class = CLASSES.iter().rposition(|(least, _)| length >= *least).unwrap_or(0);
        // A text that ends in a repetition goes on with it.
        self.tokens.extend(known[after..].iter().cycle().take(count));
    }

    /// What is foretold now.
    pub(crate) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// How likely a foretold token is right if those before it are: 0 to 1.
    pub(crate) fn chance(&self) -> f32 {
        self.hits[self.class]
    }

    /// Compares the foretold token at `index` with the one that was sampled there.
    pub(crate) fn record(&mut self, index: usize, sampled: Token) {
        let Some(foretold) = self.tokens.get(index) else { return };
        let hit = if *foretold == sampled { 1.0 } else { 0.0 };
        let hits = &mut self.hits[self.class];
        *hits += SMOOTHING * (hit - *hits);
    }
}

/// Where the text goes on after the longest match with its end, the last one of equal length, and
/// the length of that match.
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

    fn foretold(known: &[Token], count: usize) -> Vec<Token> {
        let mut forecast = Forecast::new();
        forecast.look(known, count);
        forecast.tokens().to_vec()
    }

    #[test]
    fn what_followed_the_longest_match_follows_again() {
        assert_eq!(foretold(&[1, 2, 3, 9, 2, 3, 7, 1, 2, 3], 2), [9, 2]);
        assert_eq!(
            foretold(&[2, 3, 9, 5, 2, 3, 7, 6, 2, 3], 1),
            [7],
            "the last one of equal length"
        );
    }

    #[test]
    fn a_repetition_goes_on() {
        assert_eq!(foretold(&[5, 1, 2, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(foretold(&[4, 4, 4], 3), [4, 4, 4]);
    }

    #[test]
    fn nothing_follows_from_a_single_token_or_a_new_text() {
        for known in [&[][..], &[1], &[1, 1], &[1, 2, 3, 1], &[1, 2, 3, 4]] {
            assert!(foretold(known, 4).is_empty(), "{known:?}");
        }
    }

    #[test]
    fn the_chance_follows_the_hits_of_its_class_alone() {
        let mut forecast = Forecast::new();
        let (short, long) = ([1, 2, 3, 1, 2], [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8]);
        forecast.look(&long, 1);
        (0..100).for_each(|_| forecast.record(0, 0));
        assert!(forecast.chance() < 0.01);
        forecast.look(&short, 1);
        assert_eq!(forecast.chance(), CLASSES[0].1);
        (0..100).for_each(|_| forecast.record(0, 3));
        assert!(forecast.chance() > 0.99);
        forecast.record(1, 7);
        assert!(forecast.chance() > 0.99, "nothing was foretold there");
    }
}
