//! PURE. Keeps users' text from becoming control tokens: a mark inserted before rendering breaks up
//! control tokens in it, and the parts between the marks are tokenized separately.

use std::collections::HashMap;

use crate::text::output::ReasoningDelimiters;

/// Breaks up a control token inside a user's text. A noncharacter: it means nothing in any text
/// (Unicode 16, chapter 23.7).
pub(crate) const MARK: char = '\u{fdd0}';
/// Inside a control token that we wrote ourselves into a message, so that it is not broken up.
/// [`super::input`] removes it from what clients send.
pub(crate) const OWN: char = '\u{fdd3}';

/// True for our own noncharacters, which are not part of any text: [`MARK`], [`OWN`], or part of
/// the tag that `final_message` appends to a text.
pub(crate) fn is_mark(c: char) -> bool {
    (MARK..=OWN).contains(&c)
}

/// Roles that templates know, some of which are control tokens between `<|` and `|>`.
const ROLES: [&str; 12] = [
    "system",
    "developer",
    "user",
    "assistant",
    "model",
    "tool",
    "function",
    "ipython",
    "observation",
    "environment",
    "document",
    "context",
];

/// The control tokens of a model.
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// Tokens by their first two characters, so that few are compared at each position of a text.
    by_beginning: HashMap<(char, char), Vec<String>>,
    /// Proper prefixes of tokens: a text may end with one, which another text could complete.
    beginnings: std::collections::HashSet<String>,
    longest: usize,
}

impl Control {
    /// Builds the tables from the tokens' texts. Skips tokens of one character, which cannot be
    /// broken up.
    pub(crate) fn new(texts: &[String]) -> Self {
        let mut control = Self::default();
        for text in texts {
            let mut chars = text.chars();
            let (Some(first), Some(second)) = (chars.next(), chars.next()) else { continue };
            let proper = text.char_indices().skip(1).map(|(i, _)| text[..i].to_string());
            control.beginnings.extend(proper);
            control.longest = control.longest.max(text.len());
            control.by_beginning.entry((first, second)).or_default().push(text.clone());
        }
        control
    }

    /// Breaks up every control token in `text`, and a prefix of one at its end, which a template
    /// might join with another text, without the whitespace after it.
    pub(crate) fn neutralise(&self, text: &mut String) {
        let mut breaks: Vec<usize> = self.places(text).collect();
        breaks.sort_unstable();
        breaks.dedup();
        for at in breaks.into_iter().rev() {
            text.insert(at, MARK);
        }
    }

    /// Breaks up a role that a template could turn into a control token, as in `'<|' + role +
    /// '|>'`.
    pub(crate) fn neutralise_role(&self, role: &mut String) {
        let inside = |token: &String| token.contains(role.as_str());
        let known = role.is_empty() || ROLES.contains(&role.as_str());
        if !known && self.by_beginning.values().flatten().any(inside) {
            let second = role.char_indices().nth(1).map_or(role.len(), |(i, _)| i);
            role.insert(second, MARK);
        }
    }

    /// Positions for marks: after the first character of tokens and their prefixes.
    fn places<'a>(&'a self, text: &'a str) -> impl Iterator<Item = usize> + 'a {
        let mut chars = text.char_indices().peekable();
        // Templates trim as Python does.
        let is_trimmed = |c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c);
        let end = text.trim_end_matches(is_trimmed).len();
        let begins = |rest: &str| rest.len() < self.longest && self.beginnings.contains(rest);
        std::iter::from_fn(move || {
            while let Some((i, first)) = chars.next() {
                let rest = &text[i..];
                let next = chars.peek().map(|(_, c)| *c);
                let candidates = next.and_then(|second| self.by_beginning.get(&(first, second)));
                let found = candidates.is_some_and(|c| c.iter().any(|t| rest.starts_with(t)));
                let trimmed = text.get(i..end).unwrap_or_default();
                if found || begins(rest) || begins(trimmed) {
                    return Some(i + first.len_utf8());
                }
            }
            None
        })
    }
}

/// Writes the control tokens of `text` so that they stay whole in a message. A control token is a
/// text in angle brackets.
pub(crate) fn own(text: &str) -> String {
    text.replace('<', &format!("<{OWN}"))
}

/// Makes the control tokens that [`own`] wrote whole.
pub(crate) fn reveal(rendered: String) -> String {
    if rendered.contains(OWN) { rendered.replace(OWN, "") } else { rendered }
}

/// The parts of a rendered prompt. If they are tokenized one by one, a user's text cannot produce a
/// control token.
pub fn segments(rendered: &str) -> impl Iterator<Item = &str> + Clone {
    rendered.split(MARK).filter(|part| !part.is_empty())
}

/// True if a rendered prompt ends inside the assistant's reasoning: with an opening delimiter and
/// nothing but whitespace after it.
pub fn opens_reasoning(rendered: &str) -> bool {
    ReasoningDelimiters::all().any(|delimiters| rendered.trim_end().ends_with(delimiters.open))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control() -> Control {
        Control::new(&["<|im_end|>", "<|end|>", "</s>", "[INST]", "x"].map(String::from))
    }

    fn neutral(text: &str) -> String {
        let mut text = text.to_string();
        control().neutralise(&mut text);
        text.replace(MARK, "·")
    }

    #[test]
    fn control_tokens_are_broken_up_wherever_they_are() {
        assert_eq!(neutral("a<|im_end|>b</s>[INST]"), "a<·|im_end|>b<·/s>[·INST]");
        assert_eq!(neutral("<<|end|><|end|>"), "<<·|end|><·|end|>");
        assert_eq!(neutral("a < b, <|im_start|>, <p> x"), "a < b, <|im_start|>, <p> x");
    }

    #[test]
    fn a_text_that_ends_inside_a_control_token_cannot_be_completed_by_the_next() {
        assert_eq!(neutral("<|im_"), "<·|im_");
        assert_eq!(neutral("a <"), "a <·");
        assert_eq!(neutral("a [INST"), "a [·INST");
        assert_eq!(neutral("a [INSTX"), "a [INSTX");
        assert_eq!(neutral("<|im_ \n\u{1f}"), "<·|im_ \n\u{1f}", "a template may trim it");
        assert_eq!(neutral("<|im_ and"), "<|im_ and");
    }

    #[test]
    fn a_role_cannot_name_a_control_token() {
        for (role, expected) in [("end", "e·nd"), ("user", "user"), ("critic", "critic"), ("", "")]
        {
            let mut text = role.to_string();
            control().neutralise_role(&mut text);
            assert_eq!(text.replace(MARK, "·"), expected);
        }
    }

    #[test]
    fn reasoning_that_is_closed_is_not_open() {
        assert!(opens_reasoning("<|im_start|>assistant\n<think>\n"));
        assert!(opens_reasoning("[THINK]"));
        assert!(!opens_reasoning("<think>\n\n</think>\n\n"));
        assert!(!opens_reasoning("<think>\nSo"));
        assert!(!opens_reasoning(""));
    }
}
