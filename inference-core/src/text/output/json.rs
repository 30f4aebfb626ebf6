//! PURE. Validates JSON one character at a time (RFC 8259) and finds where a value ends. It keeps a
//! stack of open brackets and a small state, but nothing of the value itself.

/// Maximum nesting of arrays and objects. Tool arguments are flat; deep nesting must not drive a
/// client's parser into deep recursion.
pub(crate) const DEPTH_MAX: usize = 64;

/// Result of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scan {
    /// The value continues.
    More,
    /// The value ends with this character.
    Done,
    /// The value, a number, ended before this character.
    DoneBefore,
    /// Invalid JSON, or nested too deeply.
    Bad,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Value,
    /// A value, or the end of an empty array.
    FirstItem,
    /// A key, or the end of an empty object.
    FirstKey,
    Key,
    Colon,
    /// A comma or a closing bracket.
    Next,
    Text,
    Escape,
    /// This many hexadecimal digits.
    Hex(u8),
    Number(Number),
    /// The rest of `true`, `false` or `null`.
    Word(&'static str),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

/// Scanner of one value, which may begin with whitespace.
#[derive(Debug, Clone)]
pub(crate) struct Json {
    /// Open brackets; true for an object.
    open: Vec<bool>,
    expect: Expect,
    /// The string being scanned is a key.
    key: bool,
}

impl Json {
    /// Starts before the value.
    pub(crate) fn new() -> Self {
        Self { open: Vec::new(), expect: Expect::Value, key: false }
    }

    /// True if the next character is inside a string. There, control characters are accepted:
    /// models write them, and [`escape`] makes them valid JSON.
    pub(crate) fn in_text(&self) -> bool {
        self.expect == Expect::Text
    }

    /// Scans the next character. Do not call it again after anything but `More`.
    pub(crate) fn step(&mut self, c: char) -> Scan {
        match self.expect {
            Expect::Text => self.text(c),
            Expect::Escape => match c {
                'u' => self.go(Expect::Hex(4)),
                '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => self.go(Expect::Text),
                _ => Scan::Bad,
            },
            Expect::Hex(left) if c.is_ascii_hexdigit() => {
                self.go(if left == 1 { Expect::Text } else { Expect::Hex(left - 1) })
            }
            Expect::Hex(_) => Scan::Bad,
            Expect::Word(rest) => self.word(rest, c),
            Expect::Number(at) => self.number(at, c),
            _ if matches!(c, ' ' | '\t' | '\n' | '\r') => Scan::More,
            Expect::Value => self.value(c),
            Expect::FirstItem if c == ']' => self.close(false),
            Expect::FirstItem => self.value(c),
            Expect::FirstKey if c == '}' => self.close(true),
            Expect::FirstKey | Expect::Key if c == '"' => {
                self.key = true;
                self.go(Expect::Text)
            }
            Expect::Colon if c == ':' => self.go(Expect::Value),
            Expect::Next => self.next(c),
            _ => Scan::Bad,
        }
    }

    fn go(&mut self, expect: Expect) -> Scan {
        self.expect = expect;
        Scan::More
    }

    fn value(&mut self, c: char) -> Scan {
        match c {
            '{' | '[' if self.open.len() >= DEPTH_MAX => Scan::Bad,
            '{' => {
                self.open.push(true);
                self.go(Expect::FirstKey)
            }
            '[' => {
                self.open.push(false);
                self.go(Expect::FirstItem)
            }
            '"' => {
                self.key = false;
                self.go(Expect::Text)
            }
            't' => self.go(Expect::Word("rue")),
            'f' => self.go(Expect::Word("alse")),
            'n' => self.go(Expect::Word("ull")),
            '-' => self.go(Expect::Number(Number::Minus)),
            '0' => self.go(Expect::Number(Number::Zero)),
            '1'..='9' => self.go(Expect::Number(Number::Whole)),
            _ => Scan::Bad,
        }
    }

    /// Marks a value as complete.
    fn end_value(&mut self) -> Scan {
        self.expect = Expect::Next;
        if self.open.is_empty() { Scan::Done } else { Scan::More }
    }

    fn close(&mut self, object: bool) -> Scan {
        if self.open.pop() == Some(object) { self.end_value() } else { Scan::Bad }
    }

    fn next(&mut self, c: char) -> Scan {
        match (c, self.open.last()) {
            (',', Some(true)) => self.go(Expect::Key),
            (',', Some(false)) => self.go(Expect::Value),
            ('}', _) => self.close(true),
            (']', _) => self.close(false),
            _ => Scan::Bad,
        }
    }

    fn text(&mut self, c: char) -> Scan {
        match c {
            '\\' => self.go(Expect::Escape),
            '"' if self.key => self.go(Expect::Colon),
            '"' => self.end_value(),
            _ => Scan::More,
        }
    }

    fn word(&mut self, rest: &'static str, c: char) -> Scan {
        match rest.strip_prefix(c) {
            Some("") => self.end_value(),
            Some(rest) => self.go(Expect::Word(rest)),
            None => Scan::Bad,
        }
    }

    fn number(&mut self, at: Number, c: char) -> Scan {
        use Number as N;
        let next = match (at, c) {
            (N::Minus, '0') => N::Zero,
            (N::Minus | N::Whole, '0'..='9') => N::Whole,
            (N::Zero | N::Whole, '.') => N::Point,
            (N::Point | N::Fraction, '0'..='9') => N::Fraction,
            (N::Zero | N::Whole | N::Fraction, 'e' | 'E') => N::Exponent,
            (N::Exponent, '+' | '-') => N::Sign,
            (N::Exponent | N::Sign | N::Power, '0'..='9') => N::Power,
            (N::Zero | N::Whole | N::Fraction | N::Power, _) => {
                return match self.end_value() {
                    Scan::Done => Scan::DoneBefore,
                    _ => self.step(c),
                };
            }
            _ => return Scan::Bad,
        };
        self.go(Expect::Number(next))
    }
}

/// Appends `c` to a JSON string that otherwise stays as the model wrote it: escapes control
/// characters only.
pub(crate) fn escape_control(c: char, out: &mut String) {
    match c {
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if u32::from(c) < 0x20 => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        c => out.push(c),
    }
}

/// Appends `c`, a character of plain text, escaped for a JSON string.
pub(crate) fn escape(c: char, out: &mut String) {
    if matches!(c, '"' | '\\') {
        out.push('\\');
    }
    escape_control(c, out);
}

/// `text` as a JSON string, including quotes.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    text.chars().for_each(|c| escape(c, &mut out));
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_value(text: &str) -> bool {
        let mut json = Json::new();
        let mut chars = text.chars().chain([' ']);
        let end = chars.by_ref().map(|c| (json.step(c), c)).find(|(s, _)| *s != Scan::More);
        let rest: String = chars.collect();
        let last = match end {
            Some((Scan::Done, _)) => ' ',
            Some((Scan::DoneBefore, c)) => c,
            _ => return false,
        };
        last.is_ascii_whitespace() && rest.trim().is_empty()
    }

    #[test]
    fn json_is_distinguished_from_what_is_none() {
        for good in
            ["{}", "[]", " {\"a\" : [1, -0.5e+3, true,null,\"\\u00e9\\\"\"]}", "0", "12", "\"\""]
        {
            assert!(is_value(good), "{good}");
        }
        for bad in
            ["{", "{a:1}", "{'a':1}", "[1,]", "{\"a\":1,}", "01", "1.", "tru", "\"\\x\"", "]"]
        {
            assert!(!is_value(bad), "{bad}");
        }
    }

    #[test]
    fn depth_has_a_limit() {
        let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
        assert!(is_value(&nested(DEPTH_MAX)));
        assert!(!is_value(&nested(DEPTH_MAX + 1)));
    }

    proptest! {
        #[test]
        fn the_scanner_agrees_with_serde(text in r#"[\[\]{}",:\\0-9.eE+\-truefalsn ]{0,16}"#) {
            // Lone surrogates cannot occur: the alphabet has no `d`.
            let serde = serde_json::from_str::<Box<serde_json::value::RawValue>>(&text);
            prop_assert_eq!(is_value(&text), serde.is_ok(), "{:?}", serde);
        }

        #[test]
        fn what_is_quoted_reads_back(text in any::<String>()) {
            prop_assert_eq!(serde_json::from_str::<String>(&quote(&text)).unwrap(), text);
        }
    }
}
