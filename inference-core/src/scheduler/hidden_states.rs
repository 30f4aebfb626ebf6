//! PURE. The hidden states of a model after the last tokens of a text, which are still to become
//! input of an MTP head. Their tokens are kept with them, because drafts may be rejected later.

use crate::types::request::Token;

/// Hidden states at consecutive positions. See the module.
#[derive(Debug)]
pub(crate) struct HiddenStates {
    /// Elements of a state.
    width: usize,
    /// Position of the first one.
    first: usize,
    /// The token that each follows.
    tokens: Vec<Token>,
    states: Vec<f32>,
}

impl HiddenStates {
    /// Starts without any, of `width` elements each.
    pub(crate) fn new(width: usize) -> Self {
        Self { width, first: 0, tokens: Vec::new(), states: Vec::new() }
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Position of the first one.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// Adds those of a batch, from a position on. What was known of it and later ones is replaced;
    /// what does not join is dropped.
    pub(crate) fn record<'a>(
        &mut self,
        position: usize,
        rows: impl Iterator<Item = (Token, &'a [f32])>,
    ) {
        let joins = (self.first..=self.first + self.len()).contains(&position);
        let kept = if joins { position - self.first } else { 0 };
        self.first = position - kept;
        self.tokens.truncate(kept);
        self.states.truncate(kept * self.width);
        for (token, state) in rows {
            self.tokens.push(token);
            self.states.extend(state);
            // If one is missing, the others stay with their rows.
            self.states.resize(self.tokens.len() * self.width, 0.0);
        }
    }

    /// Number of tokens at the beginning of a text up to the last one with a state.
    pub(crate) fn end(&self, text: &[Token]) -> usize {
        let rest = text.get(self.first..).unwrap_or_default();
        self.first + rest.iter().zip(&self.tokens).take_while(|(a, b)| a == b).count()
    }

    /// The state after the token at a position.
    pub(crate) fn at(&self, position: usize) -> Option<&[f32]> {
        let index = position.checked_sub(self.first).filter(|index| *index < self.len())?;
        self.states.get(index * self.width..(index + 1) * self.width)
    }

    /// Drops those before a position.
    pub(crate) fn forget_before(&mut self, position: usize) {
        let dropped = position.saturating_sub(self.first).min(self.len());
        self.first += dropped;
        self.tokens.drain(..dropped);
        self.states.drain(..dropped * self.width);
        // Those of a prompt are many, and soon used.
        self.states.shrink_to(2 * self.states.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(states: &mut HiddenStates, position: usize, tokens: &[Token]) {
        let vectors: Vec<[f32; 2]> = tokens.iter().map(|token| [*token as f32, 0.5]).collect();
        let rows = tokens.iter().copied().zip(vectors.iter().map(|vector| &vector[..]));
        states.record(position, rows);
    }

    #[test]
    fn states_of_rejected_drafts_are_replaced_and_those_after_a_gap_begin_anew() {
        let mut states = HiddenStates::new(2);
        record(&mut states, 4, &[14, 15, 16]);
        assert_eq!((states.first(), states.len(), states.at(5)), (4, 3, Some(&[15.0, 0.5][..])));
        assert_eq!((states.at(3), states.at(7)), (None, None));
        record(&mut states, 6, &[26, 27]);
        assert_eq!(states.at(6), Some(&[26.0, 0.5][..]));
        assert_eq!((states.first(), states.len()), (4, 4));
        record(&mut states, 9, &[19]);
        assert_eq!((states.first(), states.len(), states.at(8)), (9, 1, None));
        record(&mut states, 0, &[10]);
        assert_eq!((states.first(), states.at(0)), (0, Some(&[10.0, 0.5][..])));
    }

    #[test]
    fn a_text_tells_which_states_are_its_own() {
        let mut states = HiddenStates::new(2);
        record(&mut states, 2, &[12, 13, 99]);
        assert_eq!(states.end(&[10, 11, 12, 13, 14]), 4, "99 was rejected");
        assert_eq!(states.end(&[10, 11, 12]), 3);
        assert_eq!(states.end(&[10]), 2, "none");
        states.forget_before(3);
        assert_eq!((states.first(), states.at(2), states.len()), (3, None, 2));
        states.forget_before(30);
        assert_eq!((states.first(), states.len()), (5, 0));
    }
}
