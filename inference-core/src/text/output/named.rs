//! PURE. Parses calls written as a name, a delimiter, and the arguments as a JSON object: Mistral,
//! DeepSeek, Kimi.

use super::call_context::{CallContext, Step};
use super::call_ids::kimi_name;
use super::delimiters::NamedDelimiters;
use super::json::{Json, Scan, escape_control};

/// Maximum bytes between the opening delimiter and the arguments: the name, an id, a code fence.
const HEAD_BYTES_MAX: usize = 256;

/// Parses the arguments of a call with a known name, a JSON object.
#[derive(Debug)]
pub(crate) struct Arguments {
    name: String,
    id: Option<String>,
    json: Option<Json>,
}

impl Arguments {
    /// Starts before the opening brace. `id` is the ID that the model wrote.
    pub(crate) fn new(name: String, id: Option<String>) -> Self {
        Self { name, id, json: None }
    }

    /// Parses the next character. The call starts with the opening brace.
    pub(crate) fn step(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        let Some(json) = &mut self.json else {
            return match c {
                '{' if context.can_call(&self.name) => {
                    let mut json = Json::new();
                    json.step(c);
                    self.json = Some(json);
                    context.out.start_call(&self.name, self.id.as_deref());
                    context.out.push_arguments("{");
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
            Scan::More => context.out.push_arguments(&shown),
            Scan::Done => {
                context.out.push_arguments(&shown);
                context.out.complete_call();
                return Step::Done;
            }
        }
        Step::More
    }
}

/// Parses one call.
#[derive(Debug)]
pub(crate) struct Named {
    delimiters: &'static NamedDelimiters,
    /// The section's delimiter was parsed, but not yet the call's.
    in_section: bool,
    head: String,
    arguments: Option<Arguments>,
}

impl Named {
    /// Starts after `delimiter`, the delimiter of a section or of a call.
    pub(crate) fn new(delimiters: &'static NamedDelimiters, delimiter: &str) -> Self {
        let in_section = !delimiters.open.is_empty() && delimiter != delimiters.open;
        Self { delimiters, in_section, head: String::new(), arguments: None }
    }

    pub(crate) fn step(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        if let Some(arguments) = &mut self.arguments {
            return arguments.step(c, context);
        }
        if self.in_section {
            return self.parse_section(c);
        }
        if c == '{' {
            return match self.parse_name(context) {
                Some((name, id)) => {
                    let mut arguments = Arguments::new(name, id);
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
    fn parse_section(&mut self, c: char) -> Step {
        if self.head.is_empty() && c.is_whitespace() {
            return Step::More;
        }
        self.head.push(c);
        if self.head == self.delimiters.open {
            self.in_section = false;
            self.head.clear();
        }
        if self.delimiters.open.starts_with(&self.head) { Step::More } else { Step::Bad }
    }

    /// Name and ID in the text before the arguments: `name SEP`, `function SEP name fence`,
    /// `functions.name:0 SEP`, `name [CALL_ID] id SEP`, `id SEP name SEP`, or only `name` where the
    /// separator is optional.
    fn parse_name(&self, context: &CallContext<'_>) -> Option<(String, Option<String>)> {
        let head = self.head.trim().trim_end_matches("json").trim_end_matches("```").trim();
        let head = match self.delimiters.id_end {
            "" => head,
            id_end => head.split_once(id_end)?.1,
        };
        let (first, second) = match head.split_once(self.delimiters.separator) {
            Some((first, second)) => (first.trim(), second.trim()),
            None if self.delimiters.separator_optional => (head, ""),
            None => return None,
        };
        let written = match second {
            "" => first,
            name if first == "function" => name,
            _ => return None,
        };
        let (written, id) = match written.split_once("[CALL_ID]") {
            Some((name, id)) => (name.trim(), Some(id.trim())),
            None => (written, None),
        };
        let own = || (!self.delimiters.id_end.is_empty()).then(|| self.written_id()).flatten();
        let id = id.map(str::to_string).or_else(own);
        if context.can_call(written) {
            return Some((written.to_string(), id));
        }
        if let Some(name) = kimi_name(written).filter(|name| context.can_call(name)) {
            return Some((name.to_string(), Some(written.to_string())));
        }
        let bare = written.strip_prefix("functions.").unwrap_or(written);
        let bare = match bare.rsplit_once(':') {
            Some((name, n)) if n.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => bare,
        };
        context.can_call(bare).then(|| (bare.to_string(), None))
    }

    /// The ID before the name.
    fn written_id(&self) -> Option<String> {
        let (id, _) = self.head.split_once(self.delimiters.id_end)?;
        Some(id.trim().to_string())
    }
}
