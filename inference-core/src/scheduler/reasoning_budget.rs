//! PURE. Limits the tokens of the reasoning: when they are used up, the response continues with the
//! delimiter that closes it. A function of the response's tokens.

use crate::types::request::Token;

/// The limit of one response. See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReasoningBudget {
    tokens_max: u32,
    open: Vec<Token>,
    close: Vec<Token>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No reasoning yet.
    Before,
    /// This many tokens of reasoning.
    Inside(u32),
    /// This many tokens of the closing delimiter were forced.
    Closing(usize),
    After,
}

impl ReasoningBudget {
    /// Creates the limit from the tokens of both delimiters; `starts_inside`: the prompt ends with
    /// the opening one.
    pub(crate) fn new(
        tokens_max: u32,
        open: Vec<Token>,
        close: Vec<Token>,
        starts_inside: bool,
    ) -> Self {
        let mut budget = Self { tokens_max, open, close, state: State::Before };
        if starts_inside {
            budget.enter(0, true);
        }
        budget
    }

    /// The token that must come next, if one must.
    pub(crate) fn forced(&self) -> Option<Token> {
        match self.state {
            State::Closing(written) => self.close.get(written).copied(),
            _ => None,
        }
    }

    /// Records the last token of `response`. `is_whole` is false if it ends inside a character,
    /// which is completed first.
    pub(crate) fn record(&mut self, response: &[Token], is_whole: bool) {
        match self.state {
            State::Before if response.ends_with(&self.open) => self.enter(0, is_whole),
            State::Inside(_) if response.ends_with(&self.close) => self.state = State::After,
            State::Inside(tokens) => self.enter(tokens.saturating_add(1), is_whole),
            State::Closing(written) => {
                let is_forced = response.last() == self.close.get(written);
                let written = if is_forced { written + 1 } else { 0 };
                let is_closed = written == self.close.len();
                self.state = if is_closed { State::After } else { State::Closing(written) };
            }
            State::Before | State::After => {}
        }
    }

    fn enter(&mut self, tokens: u32, is_whole: bool) {
        let is_used_up = tokens >= self.tokens_max && is_whole;
        self.state = if is_used_up { State::Closing(0) } else { State::Inside(tokens) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of a model that would always write `wanted`, with reasoning between 1 and 2, 3.
    fn write(tokens_max: u32, starts_inside: bool, wanted: &[Token]) -> Vec<Token> {
        let mut budget = ReasoningBudget::new(tokens_max, vec![1], vec![2, 3], starts_inside);
        let mut response = Vec::new();
        for token in wanted {
            while let Some(forced) = budget.forced() {
                response.push(forced);
                budget.record(&response, true);
            }
            response.push(*token);
            budget.record(&response, true);
        }
        response
    }

    #[test]
    fn reasoning_ends_when_its_tokens_are_used_up() {
        assert_eq!(write(2, false, &[1, 9, 9, 7, 7]), [1, 9, 9, 2, 3, 7, 7]);
        assert_eq!(write(2, true, &[9, 9, 7]), [9, 9, 2, 3, 7]);
        assert_eq!(write(0, true, &[7, 7]), [2, 3, 7, 7]);
        assert_eq!(write(0, false, &[7, 1, 7]), [7, 1, 2, 3, 7]);
    }

    #[test]
    fn reasoning_that_ends_by_itself_is_left_alone() {
        assert_eq!(write(9, false, &[1, 9, 2, 3, 7]), [1, 9, 2, 3, 7]);
        assert_eq!(write(2, false, &[7, 7, 7, 7]), [7, 7, 7, 7]);
    }

    #[test]
    fn a_character_is_completed_first() {
        let mut budget = ReasoningBudget::new(1, vec![1], vec![2], true);
        budget.record(&[9], false);
        assert_eq!(budget.forced(), None);
        budget.record(&[9, 8], true);
        assert_eq!(budget.forced(), Some(2));
    }
}
