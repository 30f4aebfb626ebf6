//! PURE. Assembles whole UTF-8 from the bytes of tokens.
//!
//! A token may end in the middle of a character. Its bytes are held until the character is
//! complete; invalid bytes are replaced by U+FFFD, one for each maximal invalid part, as the
//! Unicode standard recommends (chapter 3.9).

/// Assembles text from the bytes of tokens.
#[derive(Debug, Default)]
pub(crate) struct Utf8 {
    /// Bytes of an incomplete character: at most 3 between calls.
    pending: Vec<u8>,
}

impl Utf8 {
    /// Takes bytes and appends the text that they complete to `out`.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut start = 0;
        while start < self.pending.len() {
            match std::str::from_utf8(&self.pending[start..]) {
                Ok(text) => {
                    out.push_str(text);
                    start = self.pending.len();
                }
                Err(e) => {
                    let valid = start + e.valid_up_to();
                    out.push_str(&String::from_utf8_lossy(&self.pending[start..valid]));
                    start = valid;
                    match e.error_len() {
                        Some(invalid) => {
                            out.push(char::REPLACEMENT_CHARACTER);
                            start += invalid;
                        }
                        None => break,
                    }
                }
            }
        }
        self.pending.drain(..start);
    }

    /// True if the bytes so far end with a whole character.
    pub(crate) fn is_whole(&self) -> bool {
        self.pending.is_empty()
    }

    /// Ends the text: an incomplete character becomes U+FFFD.
    pub(crate) fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn assemble(chunks: &[&[u8]]) -> String {
        let (mut utf8, mut out) = (Utf8::default(), String::new());
        for chunk in chunks {
            utf8.push(chunk, &mut out);
        }
        utf8.finish(&mut out);
        out
    }

    #[test]
    fn a_character_split_over_tokens_comes_out_whole() {
        let cat = "🐱".as_bytes();
        assert_eq!(assemble(&[&cat[..1], &cat[1..3], &cat[3..]]), "🐱");
    }

    #[test]
    fn nothing_of_a_character_is_shown_before_it_is_complete() {
        let (mut utf8, mut out) = (Utf8::default(), String::new());
        utf8.push(b"a\xe3\x81", &mut out);
        assert_eq!(out, "a");
        utf8.push(b"\x93", &mut out);
        assert_eq!(out, "aこ");
    }

    #[test]
    fn broken_bytes_become_replacement_characters() {
        assert_eq!(assemble(&[b"a\xff\xfeb"]), "a\u{fffd}\u{fffd}b");
        assert_eq!(assemble(&[b"a\xe3"]), "a\u{fffd}");
        assert_eq!(assemble(&[b"\xe3", b"x"]), "\u{fffd}x");
    }

    proptest! {
        #[test]
        fn any_split_of_any_bytes_gives_the_text_of_the_whole(
            bytes in proptest::collection::vec(any::<u8>(), 0..64), cut in 0usize..64
        ) {
            let cut = cut.min(bytes.len());
            let whole = String::from_utf8_lossy(&bytes).into_owned();
            prop_assert_eq!(assemble(&[&bytes[..cut], &bytes[cut..]]), whole);
        }
    }
}
