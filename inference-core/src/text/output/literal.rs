//! PURE. Converts arguments in notations that are nearly JSON to JSON as they arrive: bare keys,
//! strings between other delimiters, Python's words. `name(city='Paris', days=3)` of Llama 4 and
//! LFM2, `call:name{city:<|"|>Paris<|"|>,days:3}` of Gemma 4.

use super::delimiters::LiteralDelimiters;
use super::json::{DEPTH_MAX, Json, Scan, escape, quote};

/// Maximum length of a key, a number or a word in bytes.
const WORD_BYTES_MAX: usize = 128;
/// Gemma's quotation mark, a control token. There are no escapes between two of them.
pub(crate) const GEMMA_QUOTE: &str = "<|\"|>";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A key; if true, or the end.
    Key(bool),
    BareKey,
    Assign,
    /// A value; if true, or the end of a list.
    Value(bool),
    Word,
    /// Inside an opening or closing Gemma quotation mark.
    Open,
    GemmaText,
    /// A string that ends with this character.
    Text(char),
    Escape(char),
    Hex(char, u8),
    Next,
}

/// Parses the arguments of one call, starting after the opening bracket.
#[derive(Debug)]
pub(crate) struct Literal {
    delimiters: &'static LiteralDelimiters,
    /// Closing brackets of all open ones.
    closers: Vec<char>,
    state: State,
    /// The string being parsed is a key.
    key: bool,
    word: String,
    /// A comma was parsed; it is written once something follows.
    comma: bool,
}

impl Literal {
    /// Starts after the opening bracket. The caller writes that bracket's JSON.
    pub(crate) fn new(delimiters: &'static LiteralDelimiters) -> Self {
        let closers = vec![delimiters.close];
        Self {
            delimiters,
            closers,
            state: State::Key(true),
            key: false,
            word: String::new(),
            comma: false,
        }
    }

    /// Parses the next character and appends its JSON to `out`.
    pub(crate) fn step(&mut self, c: char, out: &mut String) -> Scan {
        match self.state {
            State::Text(end) => self.text(c, end, out),
            State::Escape(end) => return self.escaped(c, end, out),
            State::Hex(end, left) if c.is_ascii_hexdigit() => {
                out.push(c);
                self.state = if left == 1 { State::Text(end) } else { State::Hex(end, left - 1) };
            }
            State::Hex(..) => return Scan::Bad,
            State::Open => return self.opening(c, out),
            State::GemmaText => self.gemma_text(c, out),
            State::BareKey | State::Word if is_word(c) => {
                self.word.push(c);
                return if self.word.len() > WORD_BYTES_MAX { Scan::Bad } else { Scan::More };
            }
            State::BareKey => {
                out.push_str(&quote(&std::mem::take(&mut self.word)));
                self.state = State::Assign;
                return self.step(c, out);
            }
            State::Word => {
                let Some(json) = word_as_json(&self.word) else { return Scan::Bad };
                out.push_str(&json);
                self.word.clear();
                self.state = State::Next;
                return self.step(c, out);
            }
            _ if c.is_whitespace() => {}
            State::Key(may_end) | State::Value(may_end) if Some(&c) == self.closers.last() => {
                return if may_end || self.comma { self.close(out) } else { Scan::Bad };
            }
            State::Key(_) => return self.begin(c, true, out),
            State::Value(_) => return self.begin(c, false, out),
            State::Assign if c == self.assign() => {
                out.push_str(": ");
                self.state = State::Value(false);
            }
            State::Next if c == ',' => {
                self.comma = true;
                self.state = if self.closers.last() == Some(&']') {
                    State::Value(false)
                } else {
                    State::Key(false)
                };
            }
            State::Next if Some(&c) == self.closers.last() => return self.close(out),
            State::Assign | State::Next => return Scan::Bad,
        }
        Scan::More
    }

    /// Separator of a key and its value.
    fn assign(&self) -> char {
        if self.closers.len() == 1 { self.delimiters.assign } else { ':' }
    }

    /// The first character of a key or a value.
    fn begin(&mut self, c: char, key: bool, out: &mut String) -> Scan {
        if std::mem::take(&mut self.comma) {
            out.push_str(", ");
        }
        self.key = key;
        match c {
            '"' | '\'' => {
                out.push('"');
                self.state = State::Text(c);
            }
            '<' => {
                self.word.push(c);
                self.state = State::Open;
            }
            '{' | '[' if key || self.closers.len() >= DEPTH_MAX => return Scan::Bad,
            '{' => {
                out.push(c);
                self.closers.push('}');
                self.state = State::Key(true);
            }
            '[' => {
                out.push(c);
                self.closers.push(']');
                self.state = State::Value(true);
            }
            c if is_word(c) => {
                self.word.push(c);
                self.state = if key { State::BareKey } else { State::Word };
            }
            _ => return Scan::Bad,
        }
        Scan::More
    }

    fn close(&mut self, out: &mut String) -> Scan {
        self.comma = false;
        let closer = self.closers.pop();
        out.push(if closer == Some(']') { ']' } else { '}' });
        self.state = State::Next;
        if self.closers.is_empty() { Scan::Done } else { Scan::More }
    }

    fn end_text(&mut self, out: &mut String) {
        out.push('"');
        self.state = if self.key { State::Assign } else { State::Next };
    }

    fn text(&mut self, c: char, end: char, out: &mut String) {
        match c {
            '\\' => self.state = State::Escape(end),
            c if c == end => self.end_text(out),
            c => escape(c, out),
        }
    }

    fn escaped(&mut self, c: char, end: char, out: &mut String) -> Scan {
        self.state = State::Text(end);
        match c {
            'n' => out.push_str("\\n"),
            't' => out.push_str("\\t"),
            'r' => out.push_str("\\r"),
            'u' => {
                out.push_str("\\u");
                self.state = State::Hex(end, 4);
            }
            '\\' | '\'' | '"' => escape(c, out),
            c => {
                // Python keeps unknown escapes as they are.
                escape('\\', out);
                escape(c, out);
            }
        }
        Scan::More
    }

    fn opening(&mut self, c: char, out: &mut String) -> Scan {
        self.word.push(c);
        if self.word == GEMMA_QUOTE {
            self.word.clear();
            out.push('"');
            self.state = State::GemmaText;
        }
        if GEMMA_QUOTE.starts_with(&self.word) { Scan::More } else { Scan::Bad }
    }

    fn gemma_text(&mut self, c: char, out: &mut String) {
        self.word.push(c);
        while !GEMMA_QUOTE.starts_with(&self.word) {
            escape(self.word.remove(0), out);
        }
        if self.word == GEMMA_QUOTE {
            self.word.clear();
            self.end_text(out);
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '+' | '.' | '$')
}

/// Converts a number or a word of JSON or Python.
fn word_as_json(word: &str) -> Option<String> {
    let json = match word {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        other => other,
    };
    let mut scan = Json::new();
    let last = json.chars().map(|c| scan.step(c)).find(|s| *s != Scan::More);
    let join_parts = match last {
        Some(last) => last == Scan::Done,
        // A number ends with what follows it.
        None => scan.step(' ') == Scan::DoneBefore,
    };
    join_parts.then(|| json.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::output::delimiters::{GEMMA_STYLE, PYTHON_STYLE};

    fn read(delimiters: &'static LiteralDelimiters, text: &str) -> Option<String> {
        let mut literal = Literal::new(delimiters);
        let mut out = String::from("{");
        let last = text.chars().map(|c| literal.step(c, &mut out)).find(|s| *s != Scan::More);
        (last == Some(Scan::Done)).then_some(out)
    }

    #[test]
    fn python_becomes_json() {
        let text =
            r#"a='it\'s "x"', b=[1, -2.5e3, True,], c={'k': None, "l": []}, d="é\u00e9\n\q")"#;
        let json = r#"{"a": "it's \"x\"", "b": [1, -2.5e3, true], "c": {"k": null, "l": []}, "d": "é\u00e9\n\\q"}"#;
        assert_eq!(read(&PYTHON_STYLE, text).as_deref(), Some(json));
        assert_eq!(read(&PYTHON_STYLE, ")").as_deref(), Some("{}"));
    }

    #[test]
    fn gemma_becomes_json() {
        let text =
            "a:<|\"|>x \"y\" <b> \\ <|<|\"|>,b:[<|\"|>1<|\"|>,2],c:{d:true,<|\"|>e f<|\"|>:null}}";
        let json = r#"{"a": "x \"y\" <b> \\ <|", "b": ["1", 2], "c": {"d": true, "e f": null}}"#;
        assert_eq!(read(&GEMMA_STYLE, text).as_deref(), Some(json));
    }

    #[test]
    fn what_is_neither_is_refused() {
        for bad in ["a=b)", "a=01)", "a=1", "=1)", "a 1)", "a=1]", "a=[1)", "a='\\ux')", "a=1, =2)"]
        {
            assert_eq!(read(&PYTHON_STYLE, bad), None, "{bad}");
        }
        let deep = format!("a={}{})", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
        assert_eq!(read(&PYTHON_STYLE, &deep), None);
    }
}
