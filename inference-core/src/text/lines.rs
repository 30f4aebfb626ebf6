//! PURE. Ends a text at a line, for code completion: llama-server's `n_indent` and
//! `t_max_predict_ms`.
//!
//! It holds back only the indentation of a line that may be the end.

use std::time::Duration;

use crate::types::request::LineRules;

/// Watches streamed text for the line that ends it.
#[derive(Debug, Default)]
pub(crate) struct LineEnd {
    rules: LineRules,
    /// When the text began, on a clock of the caller's.
    began: Option<Duration>,
    /// The indentation of a line whose text has not begun; `None` elsewhere.
    indent: Option<String>,
}

impl LineEnd {
    /// Ends a text by these rules.
    pub(crate) fn new(rules: LineRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// Takes text that was written at `now`, if that is known, and appends what can be emitted to
    /// `out`. Returns true if the text has ended: nothing more must be pushed.
    pub(crate) fn push(&mut self, text: &str, now: Option<Duration>, out: &mut String) -> bool {
        if self.rules == LineRules::NONE {
            out.push_str(text);
            return false;
        }
        let began = *self.began.get_or_insert(now.unwrap_or_default());
        let elapsed = now.unwrap_or(began).saturating_sub(began);
        let is_late = self.rules.time_max.is_some_and(|max| elapsed > max);
        for character in text.chars() {
            if !self.enter(character, out) {
                return true;
            }
            if self.indent.is_none() {
                out.push(character);
            }
            if character == '\n' {
                if is_late {
                    return true;
                }
                self.indent = (self.rules.indent_min > 0).then(String::new);
            }
        }
        false
    }

    /// Ends the text: held-back indentation is emitted after all.
    pub(crate) fn finish(&mut self, out: &mut String) {
        out.push_str(&self.indent.take().unwrap_or_default());
    }

    /// Counts a character to the indentation of its line. False if the line has too little.
    fn enter(&mut self, character: char, out: &mut String) -> bool {
        let Some(indent) = &mut self.indent else { return true };
        if !matches!(character, ' ' | '\t') {
            return false;
        }
        indent.push(character);
        if indent.len() >= self.rules.indent_min as usize {
            // The caller appends the character itself.
            indent.pop();
            out.push_str(indent);
            self.indent = None;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(rules: LineRules, chunks: &[(&str, u64)]) -> (String, bool) {
        let (mut end, mut out) = (LineEnd::new(rules), String::new());
        for (text, ms) in chunks {
            if end.push(text, Some(Duration::from_millis(*ms)), &mut out) {
                return (out, true);
            }
        }
        end.finish(&mut out);
        (out, false)
    }

    fn indented(indent_min: u32, text: &str) -> (String, bool) {
        run(LineRules { indent_min, ..LineRules::NONE }, &[(text, 0)])
    }

    #[test]
    fn the_first_line_with_too_little_indentation_ends_the_text() {
        assert_eq!(indented(4, "a\n    b\nc"), ("a\n    b\n".into(), true));
        assert_eq!(indented(4, "a\n      b\n   c"), ("a\n      b\n".into(), true));
        assert_eq!(indented(1, "a\n\tb\n\n"), ("a\n\tb\n".into(), true));
        assert_eq!(indented(2, "a\n  b\n "), ("a\n  b\n ".into(), false));
        assert_eq!(indented(0, "a\nb"), ("a\nb".into(), false));
    }

    #[test]
    fn after_the_time_the_next_line_feed_ends_the_text() {
        let rules = LineRules { time_max: Some(Duration::from_millis(10)), ..LineRules::NONE };
        let chunks = [("a\n", 5), ("b", 16), ("c\nd", 17)];
        assert_eq!(run(rules, &chunks), ("a\nbc\n".into(), true));
        assert_eq!(run(rules, &chunks[..2]), ("a\nb".into(), false));
        let (mut end, mut out) = (LineEnd::new(rules), String::new());
        assert!(!end.push("a\n", None, &mut out), "without a clock there is no limit");
    }

    proptest! {
        #[test]
        fn any_chunking_gives_the_same_text(text in "[ \n\ta🐱]{0,24}", size in 1usize..5, indent in 0u32..4) {
            let rules = LineRules { indent_min: indent, ..LineRules::NONE };
            let chars: Vec<char> = text.chars().collect();
            let chunks: Vec<String> = chars.chunks(size).map(|c| c.iter().collect()).collect();
            let chunks: Vec<_> = chunks.iter().map(|chunk| (chunk.as_str(), 0)).collect();
            prop_assert_eq!(run(rules, &chunks), run(rules, &[(&text, 0)]));
        }
    }
}
