//! PURE. What a vocabulary guarantees for every text: the minimum number of its tokens, and where
//! it may be split without changing them.

use crate::types::model::Tokenizer;

/// Texts are split into parts of about this many bytes, which take a few milliseconds each.
const PART_BYTES: usize = 64 * 1024;

/// Guarantees of a vocabulary. See the module.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Maximum [`solid_bytes`] that one token can represent; `None` if unknown.
    bytes_per_token: Option<usize>,
    /// True if a text may be split between a line that ends with a letter and one that starts with
    /// a letter.
    cuts_at_lines: bool,
}

/// Number of bytes that are not ASCII whitespace, which tokenizers strip next to some tokens.
pub(crate) fn solid_bytes(text: &[u8]) -> usize {
    text.iter().filter(|byte| !is_space(**byte)).count()
}

/// Like C's `isspace`.
fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace() || byte == 0x0b
}

/// True if valid UTF-8 can contain this byte.
fn is_in_text(byte: u8) -> bool {
    !matches!(byte, 0xc0 | 0xc1 | 0xf5..)
}

impl Bounds {
    /// Inspects every token of a vocabulary.
    pub(crate) fn new(tokenizer: &dyn Tokenizer) -> Self {
        let rules = tokenizer.text_rules();
        let (mut longest, mut lines_join) = (rules.hidden_bytes.max(1), false);
        let mut bytes_alone = [false; 256];
        let mut piece = Vec::new();
        for token in 0..tokenizer.vocabulary() {
            piece.clear();
            tokenizer.piece(token, true, &mut piece);
            longest = longest.max(solid_bytes(&piece));
            lines_join |= piece.windows(2).any(|p| p[0] == b'\n' && p[1].is_ascii_alphabetic());
            if let [byte] = piece[..] {
                bytes_alone[usize::from(byte)] = true;
            }
        }
        // A byte without its own token may be dropped, or become part of an unknown token.
        let mut needed = (0..=u8::MAX).filter(|byte| is_in_text(*byte) && !is_space(*byte));
        let keeps_bytes = rules.keeps_bytes && needed.all(|byte| bytes_alone[usize::from(byte)]);
        Self {
            bytes_per_token: keeps_bytes.then_some(longest),
            cuts_at_lines: rules.cuts_at_lines && !lines_join,
        }
    }

    /// Minimum number of tokens of texts with `solid` [`solid_bytes`].
    pub(crate) fn tokens_min(&self, solid: usize) -> usize {
        self.bytes_per_token.map_or(0, |most| solid.div_ceil(most))
    }

    /// Splits a text into parts whose tokens, concatenated, are those of the text.
    pub(crate) fn parts<'a>(&self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let cuts = self.cuts_at_lines;
        let mut rest = Some(text);
        std::iter::from_fn(move || {
            let text = rest.take()?;
            let (part, behind) = match cut(text).filter(|_| cuts) {
                Some(at) => text.split_at(at),
                None => (text, ""),
            };
            rest = Some(behind).filter(|behind| !behind.is_empty());
            Some(part)
        })
    }
}

/// Where a long text may be split: after a single line feed between two letters. No tokenizer's
/// expression looks across one, and the line feed is a piece of its own or ends one.
fn cut(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let from = (PART_BYTES - 1).min(bytes.len());
    let mut around = bytes[from..].windows(3);
    let is_cut =
        |w: &[u8]| w[0].is_ascii_alphabetic() && w[1] == b'\n' && w[2].is_ascii_alphabetic();
    Some(from + around.position(is_cut)? + 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::fake::FakeTokenizer;
    use proptest::prelude::*;

    #[test]
    fn a_text_is_cut_only_between_two_letters_around_one_line_feed() {
        let bounds = Bounds::new(&FakeTokenizer);
        let long = "x".repeat(PART_BYTES);
        for (end, parts) in [("\nb", 1), ("a\nb", 2), ("a\n\nb", 1), ("a\n b", 1), ("a\r\nb", 1)] {
            let text = format!("{long} {end}");
            let all: Vec<&str> = bounds.parts(&text).collect();
            assert_eq!((all.len(), all.concat()), (parts, text), "{end:?}");
        }
        assert_eq!(bounds.parts("a\nb").count(), 1, "short texts stay whole");
        assert_eq!(bounds.parts("").collect::<Vec<_>>(), [""]);
        let many = format!("{long}\n").repeat(9);
        assert_eq!(bounds.parts(&many).count(), 9);
    }

    #[test]
    fn without_promises_nothing_is_cut_or_refused() {
        let none = Bounds::default();
        let text = format!("{}\n", "x".repeat(PART_BYTES)).repeat(3);
        assert_eq!((none.parts(&text).count(), none.tokens_min(usize::MAX)), (1, 0));
    }

    proptest! {
        #[test]
        fn the_fewest_tokens_are_never_more_than_there_are(text in "(<e>|[ \\n]{0,9}|\\PC){0,99}") {
            let bounds = Bounds::new(&FakeTokenizer);
            let tokens = crate::types::model::Tokenizer::tokenize(&FakeTokenizer, &text, true).unwrap().len();
            prop_assert!(bounds.tokens_min(solid_bytes(text.as_bytes())) <= tokens);
        }
    }
}
