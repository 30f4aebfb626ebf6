//! PURE. Converts arguments in notations that are nearly JSON to JSON as they arrive: bare keys,
//! strings between other delimiters, Python's words. `name(city='Paris', days=3)` of Llama 4 and
//! LFM2, `call:name{city:<|"|>Paris<|"|>,days:3}` of Gemma 4.

use super::json::{DEPTH_MAX, Json, Scan, escape, quote};
use super::marks::LiteralMarks;

/// Maximum length of a key, a number or a word in bytes.
const WORD_BYTES_MAX: usize = 128;
/// Gemma's quotation mark, a control token. There are no escapes between two of them.
pub const GEMMA_QUOTE: &str = "<|\"|>";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
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
pub struct Literal {
    marks: &'static LiteralMarks,
    /// Closing brackets of all open ones.
    closers: Vec<char>,
    at: At,
    /// The string being parsed is a key.
    key: bool,
    word: String,
    /// A comma was parsed; it is written once something follows.
    comma: bool,
}

impl Literal {
    /// Starts after the opening bracket. The caller writes that bracket's JSON.
    pub fn new(marks: &'static LiteralMarks) -> Self {
        let closers = vec![marks.close];
        Self { marks, closers, at: At::Key(true), key: false, word: String::new(), comma: false }
    }

    /// Parses the next character and appends its JSON to `out`.
    pub fn step(&mut self, c: char, out: &mut String) -> Scan {
        match self.at {
            At::Text(end) => self.text(c, end, out),
            At::Escape(end) => return self.escaped(c, end, out),
            At::Hex(end, left) if c.is_ascii_hexdigit() => {
                out.push(c);
                self.at = if left == 1 { At::Text(end) } else { At::Hex(end, left - 1) };
            }
            At::Hex(..) => return Scan::Bad,
            At::Open => return self.opening(c, out),
            At::GemmaText => self.gemma_text(c, out),
            At::BareKey | At::Word if is_word(c) => {
                self.word.push(c);
                return if self.word.len() > WORD_BYTES_MAX { Scan::Bad } else { Scan::More };
            }
            At::BareKey => {
                out.push_str(&quote(&std::mem::take(&mut self.word)));
                self.at = At::Assign;
                return self.step(c, out);
            }
            At::Word => {
                let Some(json) = word_as_json(&self.word) else { return Scan::Bad };
                out.push_str(&json);
                self.word.clear();
                self.at = At::Next;
                return self.step(c, out);
            }
            _ if c.is_whitespace() => {}
            At::Key(may_end) | At::Value(may_end) if Some(&c) == self.closers.last() => {
                return if may_end || self.comma { self.close(out) } else { Scan::Bad };
            }
            At::Key(_) => return self.begin(c, true, out),
            At::Value(_) => return self.begin(c, false, out),
            At::Assign if c == self.assign() => {
                out.push_str(": ");
                self.at = At::Value(false);
            }
            At::Next if c == ',' => {
                self.comma = true;
                self.at = if self.closers.last() == Some(&']') {
                    At::Value(false)
                } else {
                    At::Key(false)
                };
            }
            At::Next if Some(&c) == self.closers.last() => return self.close(out),
            At::Assign | At::Next => return Scan::Bad,
        }
        Scan::More
    }

    /// Separator of a key and its value.
    fn assign(&self) -> char {
        if self.closers.len() == 1 { self.marks.assign } else { ':' }
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
                self.at = At::Text(c);
            }
            '<' => {
                self.word.push(c);
                self.at = At::Open;
            }
            '{' | '[' if key || self.closers.len() >= DEPTH_MAX => return Scan::Bad,
            '{' => {
                out.push(c);
                self.closers.push('}');
                self.at = At::Key(true);
            }
            '[' => {
                out.push(c);
                self.closers.push(']');
                self.at = At::Value(true);
            }
            c if is_word(c) => {
                self.word.push(c);
                self.at = if key { At::BareKey } else { At::Word };
            }
            _ => return Scan::Bad,
        }
        Scan::More
    }

    fn close(&mut self, out: &mut String) -> Scan {
        self.comma = false;
        let closer = self.closers.pop();
        out.push(if closer == Some(']') { ']' } else { '}' });
        self.at = At::Next;
        if self.closers.is_empty() { Scan::Done } else { Scan::More }
    }

    fn end_text(&mut self, out: &mut String) {
        out.push('"');
        self.at = if self.key { At::Assign } else { At::Next };
    }

    fn text(&mut self, c: char, end: char, out: &mut String) {
        match c {
            '\\' => self.at = At::Escape(end),
            c if c == end => self.end_text(out),
            c => escape(c, out),
        }
    }

    fn escaped(&mut self, c: char, end: char, out: &mut String) -> Scan {
        self.at = At::Text(end);
        match c {
            'n' => out.push_str("\\n"),
            't' => out.push_str("\\t"),
            'r' => out.push_str("\\r"),
            'u' => {
                out.push_str("\\u");
                self.at = At::Hex(end, 4);
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
            self.at = At::GemmaText;
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
    let whole = match last {
        Some(last) => last == Scan::Done,
        // A number ends with what follows it.
        None => scan.step(' ') == Scan::DoneBefore,
    };
    whole.then(|| json.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::output::marks::{GEMMA_STYLE, PYTHON_STYLE};

    fn read(marks: &'static LiteralMarks, text: &str) -> Option<String> {
        let mut literal = Literal::new(marks);
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
