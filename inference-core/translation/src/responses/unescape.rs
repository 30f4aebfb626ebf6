//! Reads the string `input` out of the arguments of a call while they arrive.

use memchr::memchr2;
use serde_json::Value;

/// Arguments `{"input": "..."}`, which arrive in pieces.
#[derive(Debug, Default)]
pub(crate) struct Input {
    state: State,
    /// The beginning of the arguments, or all of them if they are not of this form.
    raw: String,
    /// The string so far.
    text: String,
    /// The first half of a surrogate pair.
    high: Option<u16>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// Before the string.
    #[default]
    Start,
    /// In the string.
    Text,
    /// After a backslash.
    Escape,
    /// After `\u` and some hexadecimal digits.
    Unicode { value: u16, digits: u8 },
    /// After the string.
    End,
    /// The arguments have another form.
    Other,
}

/// Bytes in which the string must begin.
const START_BYTES_MAX: usize = 256;

impl Input {
    /// Takes more arguments and returns the text that they add. Never half a character.
    pub(crate) fn push(&mut self, mut arguments: &str) -> &str {
        let from = self.text.len();
        if matches!(self.state, State::Start | State::Other) {
            self.raw.push_str(arguments);
            arguments = "";
        }
        if self.state == State::Start {
            self.start();
        }
        self.read(arguments);
        &self.text[from..]
    }

    /// Ends the arguments and returns the text that is still missing.
    pub(crate) fn finish(&mut self) -> &str {
        let from = self.text.len();
        if matches!(self.state, State::Start | State::Other) {
            self.text = whole(std::mem::take(&mut self.raw));
        }
        self.state = State::End;
        &self.text[from..]
    }

    /// The text so far.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    fn start(&mut self) {
        let mut rest = self.raw.as_str();
        for expected in ["{", "\"input\"", ":", "\""] {
            rest = rest.trim_start();
            match rest.strip_prefix(expected) {
                Some(after) => rest = after,
                None if expected.starts_with(rest) && self.raw.len() < START_BYTES_MAX => return,
                None => {
                    self.state = State::Other;
                    return;
                }
            }
        }
        self.state = State::Text;
        let rest = rest.to_string();
        self.raw = String::new();
        self.read(&rest);
    }

    fn read(&mut self, mut rest: &str) {
        while !rest.is_empty() {
            rest = match self.state {
                State::Text => self.run(rest),
                State::Escape => self.escape(rest),
                State::Unicode { value, digits } => self.unicode(rest, value, digits),
                State::Start | State::End | State::Other => return,
            };
        }
    }

    /// Reads up to an escape or the end of the string.
    fn run<'a>(&mut self, rest: &'a str) -> &'a str {
        let at = memchr2(b'"', b'\\', rest.as_bytes()).unwrap_or(rest.len());
        let (text, rest) = rest.split_at(at);
        if !text.is_empty() {
            self.end_pair();
            self.text.push_str(text);
        }
        match rest.strip_prefix('\\') {
            Some(rest) => {
                self.state = State::Escape;
                rest
            }
            None if rest.is_empty() => rest,
            None => {
                self.end_pair();
                self.state = State::End;
                ""
            }
        }
    }

    fn escape<'a>(&mut self, rest: &'a str) -> &'a str {
        let mut chars = rest.chars();
        let Some(escaped) = chars.next() else { return rest };
        self.state = State::Text;
        if escaped == 'u' {
            self.state = State::Unicode { value: 0, digits: 0 };
            return chars.as_str();
        }
        self.end_pair();
        self.text.push(match escaped {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            other => other,
        });
        chars.as_str()
    }

    fn unicode<'a>(&mut self, rest: &'a str, value: u16, digits: u8) -> &'a str {
        let mut chars = rest.chars();
        let Some(digit) = chars.next().and_then(|digit| digit.to_digit(16)) else {
            self.end_pair();
            self.text.push(char::REPLACEMENT_CHARACTER);
            self.state = State::Text;
            return rest;
        };
        let value = value << 4 | digit as u16;
        self.state = State::Unicode { value, digits: digits + 1 };
        if digits == 3 {
            self.state = State::Text;
            self.unit(value);
        }
        chars.as_str()
    }

    /// Adds a UTF-16 code unit.
    fn unit(&mut self, unit: u16) {
        if let Some(high) = self.high.take() {
            match char::decode_utf16([high, unit]).next() {
                Some(Ok(pair)) => return self.text.push(pair),
                _ => self.text.push(char::REPLACEMENT_CHARACTER),
            }
        }
        match unit {
            0xD800..0xDC00 => self.high = Some(unit),
            unit => {
                self.text.extend(char::decode_utf16([unit]).map(|c| c.unwrap_or('\u{fffd}')));
            }
        }
    }

    /// Half a surrogate pair that nothing completes.
    fn end_pair(&mut self) {
        if self.high.take().is_some() {
            self.text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// The text of arguments in any other form.
fn whole(raw: String) -> String {
    match serde_json::from_str(&raw) {
        Ok(Value::String(text)) => text,
        Ok(Value::Object(mut fields)) => match fields.get_mut("input").map(Value::take) {
            Some(Value::String(text)) => text,
            _ => raw,
        },
        _ => raw,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// The deltas of arguments that arrive in pieces of these lengths.
    fn deltas(arguments: &str, lengths: &[usize]) -> Vec<String> {
        let mut input = Input::default();
        let mut deltas = Vec::new();
        let (mut rest, mut lengths) = (arguments, lengths.iter().cycle());
        while !rest.is_empty() {
            let mut at = (*lengths.next().unwrap()).min(rest.len());
            while !rest.is_char_boundary(at) {
                at += 1;
            }
            let (piece, after) = rest.split_at(at);
            deltas.push(input.push(piece).to_string());
            rest = after;
        }
        deltas.push(input.finish().to_string());
        assert_eq!(deltas.concat(), input.text());
        deltas
    }

    #[test]
    fn an_escape_is_never_cut() {
        let arguments = r#" { "input" : "a\n\"\u00e9\ud83d\ude00\\" }"#;
        let text = "a\n\"é😀\\";
        assert_eq!(deltas(arguments, &[1]).concat(), text);
        assert_eq!(deltas(arguments, &[1000]).concat(), text);
        assert!(deltas(arguments, &[1]).iter().all(|delta| delta.chars().count() <= 1));
    }

    #[test]
    fn broken_escapes_do_not_stop_a_text() {
        for (arguments, text) in [
            (r#"{"input":"a\ud83d"}"#, "a\u{fffd}"),
            (r#"{"input":"\ud83d\nb"}"#, "\u{fffd}\nb"),
            (r#"{"input":"\ud83d\ud83d\ude00"}"#, "\u{fffd}😀"),
            (r#"{"input":"\ude00x"}"#, "\u{fffd}x"),
            (r#"{"input":"\u12"}"#, "\u{fffd}"),
            (r#"{"input":"cut \"#, "cut "),
            (r#"{"input":"cut \u12"#, "cut "),
        ] {
            for length in [1, 3, 100] {
                assert_eq!(deltas(arguments, &[length]).concat(), text, "{arguments}");
            }
        }
    }

    #[test]
    fn other_arguments_are_read_at_their_end() {
        for (arguments, text) in [
            (r#"{"why": "x", "input": "y"}"#, "y"),
            (r#""plain""#, "plain"),
            ("*** Begin Patch", "*** Begin Patch"),
            (r#"{"input": 7}"#, r#"{"input": 7}"#),
            (r#"{"inp"#, r#"{"inp"#),
            ("", ""),
        ] {
            let deltas = deltas(arguments, &[2]);
            assert_eq!(deltas.concat(), text);
            assert_eq!(deltas.last().unwrap(), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_survives_any_pieces(
            text in any::<String>(),
            lengths in prop::collection::vec(1usize..9, 1..9),
            is_escaped in any::<bool>(),
        ) {
            let mut arguments = json!({"input": text}).to_string();
            if is_escaped {
                let units: String =
                    text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
                arguments = format!("{{\"input\":\"{units}\"}}");
            }
            prop_assert_eq!(deltas(&arguments, &lengths).concat(), text);
        }
    }
}
