//! PURE. Parses calls written as a name, a delimiter, and the arguments as a JSON object: Mistral,
//! DeepSeek, Kimi.

use super::json::{Json, Scan, escape_control};
use super::machine::{Context, Step};
use super::marks::NamedMarks;

/// Maximum bytes between the opening delimiter and the arguments: the name, an id, a code fence.
const HEAD_BYTES_MAX: usize = 256;

/// Parses the arguments of a call with a known name, a JSON object.
#[derive(Debug)]
pub struct Arguments {
    name: String,
    json: Option<Json>,
}

impl Arguments {
    /// Starts before the opening brace.
    pub fn new(name: String) -> Self {
        Self { name, json: None }
    }

    /// Parses the next character. The call starts with the opening brace.
    pub fn step(&mut self, c: char, context: &mut Context<'_>) -> Step {
        let Some(json) = &mut self.json else {
            return match c {
                '{' if context.admits(&self.name) => {
                    let mut json = Json::new();
                    json.step(c);
                    self.json = Some(json);
                    context.out.start(&self.name);
                    context.out.arguments("{");
                    Step::More
                }
                c if c.is_whitespace() => Step::More,
                _ => Step::Bad,
            };
        };
        let mut shown = String::new();
        if json.in_text() {
            escape_control(c, &mut shown)
        } else {
            shown.push(c)
        }
        match json.step(c) {
            Scan::Bad | Scan::DoneBefore => return Step::Bad,
            Scan::More => context.out.arguments(&shown),
            Scan::Done => {
                context.out.arguments(&shown);
                context.out.complete();
                return Step::Done;
            }
        }
        Step::More
    }
}

/// Parses one call.
#[derive(Debug)]
pub struct Named {
    marks: &'static NamedMarks,
    /// The section's delimiter was parsed, but not yet the call's.
    in_section: bool,
    head: String,
    arguments: Option<Arguments>,
}

impl Named {
    /// Starts after `mark`, the delimiter of a section or of a call.
    pub fn new(marks: &'static NamedMarks, mark: &str) -> Self {
        let in_section = !marks.open.is_empty() && mark != marks.open;
        Self { marks, in_section, head: String::new(), arguments: None }
    }

    /// Parses the next character.
    pub fn step(&mut self, c: char, context: &mut Context<'_>) -> Step {
        if let Some(arguments) = &mut self.arguments {
            return arguments.step(c, context);
        }
        if self.in_section {
            return self.open(c);
        }
        if c == '{' {
            return match self.name(context) {
                Some(name) => {
                    let mut arguments = Arguments::new(name);
                    let step = arguments.step(c, context);
                    self.arguments = Some(arguments);
                    step
                }
                None => Step::Bad,
            };
        }
        self.head.push(c);
        if self.head.len() > HEAD_BYTES_MAX { Step::Bad } else { Step::More }
    }

    /// Between the section's delimiter and the call's.
    fn open(&mut self, c: char) -> Step {
        if self.head.is_empty() && c.is_whitespace() {
            return Step::More;
        }
        self.head.push(c);
        if self.head == self.marks.open {
            self.in_section = false;
            self.head.clear();
        }
        if self.marks.open.starts_with(&self.head) { Step::More } else { Step::Bad }
    }

    /// The name in the text before the arguments: `name SEP`, `function SEP name fence`,
    /// `functions.name:0 SEP`, or only `name` where the separator is optional.
    fn name(&self, context: &Context<'_>) -> Option<String> {
        let head = self.head.trim().trim_end_matches("json").trim_end_matches("```").trim();
        let (first, second) = match head.split_once(self.marks.separator) {
            Some((first, second)) => (first.trim(), second.trim()),
            None if self.marks.separator_optional => (head, ""),
            None => return None,
        };
        let written = match second {
            "" => first,
            name if first == "function" => name,
            _ => return None,
        };
        let written = written.split_once("[CALL_ID]").map_or(written, |(name, _)| name.trim());
        if context.admits(written) {
            return Some(written.to_string());
        }
        let bare = written.strip_prefix("functions.").unwrap_or(written);
        let bare = match bare.rsplit_once(':') {
            Some((name, n)) if n.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => bare,
        };
        context.admits(bare).then(|| bare.to_string())
    }
}
