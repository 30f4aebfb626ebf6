//! PURE. What users write must stay text: control tokens inside of it are broken up by a
//! mark before rendering, and the tokenizer is fed the parts between the marks.

use std::collections::HashMap;

/// Splits a control token inside of a user's text. A noncharacter: it means nothing in
/// any text (Unicode 16, chapter 23.7).
pub const MARK: char = '\u{fdd0}';

/// Whether a character is one of ours, and no part of any text: [`MARK`], or part of the
/// tag that `ending` puts behind a text.
pub fn is_mark(c: char) -> bool {
    (MARK..='\u{fdd2}').contains(&c)
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
pub struct Control {
    /// By their first two characters: few tokens are compared at each place of a text.
    by_beginning: HashMap<(char, char), Vec<String>>,
    /// Proper beginnings of tokens: what a text may end with, for another to complete.
    beginnings: std::collections::HashSet<String>,
    longest: usize,
}

impl Control {
    /// From the tokens' texts. Tokens of one character cannot be broken up and are left.
    pub fn new(texts: &[String]) -> Self {
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

    /// Breaks up every control token in `text`, and a beginning of one at its end, which
    /// a template might join with another text.
    pub fn neutralise(&self, text: &mut String) {
        let mut breaks: Vec<usize> = self.places(text).collect();
        breaks.sort_unstable();
        breaks.dedup();
        for at in breaks.into_iter().rev() {
            text.insert(at, MARK);
        }
    }

    /// Breaks up a role that a template could make a control token of, as in
    /// `'<|' + role + '|>'`.
    pub fn neutralise_role(&self, role: &mut String) {
        let inside = |token: &String| token.contains(role.as_str());
        let known = role.is_empty() || ROLES.contains(&role.as_str());
        if !known && self.by_beginning.values().flatten().any(inside) {
            let second = role.char_indices().nth(1).map_or(role.len(), |(i, _)| i);
            role.insert(second, MARK);
        }
    }

    /// Where marks belong: after the first character of tokens and their beginnings.
    fn places<'a>(&'a self, text: &'a str) -> impl Iterator<Item = usize> + 'a {
        let mut chars = text.char_indices().peekable();
        std::iter::from_fn(move || {
            while let Some((i, first)) = chars.next() {
                let rest = &text[i..];
                let next = chars.peek().map(|(_, c)| *c);
                let candidates = next.and_then(|second| self.by_beginning.get(&(first, second)));
                let found = candidates.is_some_and(|c| c.iter().any(|t| rest.starts_with(t)));
                if found || (rest.len() < self.longest && self.beginnings.contains(rest)) {
                    return Some(i + first.len_utf8());
                }
            }
            None
        })
    }
}

/// The parts of a rendered prompt. Tokenized one by one, no control token can arise from
/// what a user wrote.
pub fn segments(rendered: &str) -> impl Iterator<Item = &str> + Clone {
    rendered.split(MARK).filter(|part| !part.is_empty())
}

/// What opens the assistant's thoughts, in the notations of known models.
const THINKING: [&str; 10] = [
    "<think>",
    "<thinking>",
    "<thought>",
    "<reasoning>",
    "<seed:think>",
    "[THINK]",
    "<|START_THINKING|>",
    "◁think▷",
    "<|channel>thought",
    "<|channel|>analysis<|message|>",
];

/// Whether a rendered prompt ends inside of the assistant's thoughts: with a mark that
/// opens them, and nothing but whitespace after it.
pub fn opens_thinking(rendered: &str) -> bool {
    let end = rendered.trim_end();
    THINKING.iter().any(|mark| end.ends_with(mark))
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
    fn thoughts_that_are_closed_are_not_open() {
        assert!(opens_thinking("<|im_start|>assistant\n<think>\n"));
        assert!(opens_thinking("[THINK]"));
        assert!(!opens_thinking("<think>\n\n</think>\n\n"));
        assert!(!opens_thinking("<think>\nSo"));
        assert!(!opens_thinking(""));
    }
}
