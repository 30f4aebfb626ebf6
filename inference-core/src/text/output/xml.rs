//! PURE. Parses calls written as tags, one for each parameter: Qwen3-Coder, Seed, GLM, MiniMax.
//! Values are plain text, so the tool's schema decides which become JSON strings and which already
//! are JSON. A closing tag inside a value is text, unless the tag that must follow does follow.

use super::call_context::{CallContext, Step};
use super::delimiters::{Attributes, Tags};
use super::json::{escape, quote};
use super::named::Arguments;

/// Maximum bytes of a name or key, and of whitespace between tags.
const HEAD_BYTES_MAX: usize = 128;

#[derive(Debug)]
enum State {
    /// Between the outer tag and the call's own.
    Before,
    Name,
    /// A parameter's tag or the end of the call.
    Between,
    Key,
    /// Between the key and the tag of the value, for formats that have one.
    BeforeValue,
    Value,
    /// The arguments are a single JSON object instead.
    Json(Arguments),
}

/// Parses one call.
#[derive(Debug)]
pub(crate) struct Xml {
    tags: &'static Tags,
    state: State,
    /// An incomplete tag, name or key.
    text: String,
    name: String,
    parameters: usize,
    value: Value,
}

/// What may follow a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follower {
    Key,
    End,
}

impl Xml {
    /// Starts after the outer tag.
    pub(crate) fn new(tags: &'static Tags) -> Self {
        let value = Value::default();
        Self {
            tags,
            state: State::Before,
            text: String::new(),
            name: String::new(),
            parameters: 0,
            value,
        }
    }

    /// Starts after the call's own opening delimiter.
    pub(crate) fn in_name(tags: &'static Tags) -> Self {
        Self { state: State::Name, ..Self::new(tags) }
    }

    pub(crate) fn step(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        match &mut self.state {
            State::Value => return self.value(c, context),
            State::Json(arguments) => return arguments.step(c, context),
            State::Before | State::Name | State::Between | State::BeforeValue
                if self.text.is_empty() && c.is_whitespace() =>
            {
                return Step::More;
            }
            State::Name if self.tags.name_ends_at_tag && c == '<' => {
                return if self.finish_name(context) { self.step(c, context) } else { Step::Bad };
            }
            _ => {}
        }
        self.text.push(c);
        let step = match self.state {
            State::Before => self.tag(self.tags.call, State::Name),
            State::BeforeValue => self.tag(self.tags.value, State::Value),
            State::Between => return self.between(context),
            State::Name if self.text.ends_with(self.tags.call_close) => {
                if self.finish_name(context) { Step::More } else { Step::Bad }
            }
            State::Key if self.text.ends_with(self.tags.key_close) => return self.key(context),
            _ => Step::More,
        };
        if self.text.len() > HEAD_BYTES_MAX { Step::Bad } else { step }
    }

    /// Ends the text inside the call: emits what is held of a value.
    pub(crate) fn finish(&mut self, context: &mut CallContext<'_>) {
        if context.out.is_open() && matches!(self.state, State::Value) {
            context.out.push_arguments(&self.value.take_rest());
        }
    }

    /// Advances to `next` if the text is `tag`; continues if it may become it.
    fn tag(&mut self, tag: &str, next: State) -> Step {
        if self.text == tag {
            self.text.clear();
            self.state = next;
        }
        if tag.starts_with(&self.text) { Step::More } else { Step::Bad }
    }

    /// Handles the complete name. Returns false if there is no such function.
    fn finish_name(&mut self, context: &CallContext<'_>) -> bool {
        let text = std::mem::take(&mut self.text);
        let head = text.strip_suffix(self.tags.call_close).unwrap_or(&text);
        let name = head.split_once('"').map_or(head, |(name, _)| name).trim();
        self.name = name.to_string();
        self.state = State::Between;
        context.can_call(&self.name)
    }

    fn between(&mut self, context: &mut CallContext<'_>) -> Step {
        if self.text == "{" && self.parameters == 0 {
            let mut arguments = Arguments::new(std::mem::take(&mut self.name), None);
            let step = arguments.step('{', context);
            self.state = State::Json(arguments);
            return step;
        }
        if self.parameters == 0 && !self.text.is_empty() && self.tags.json.starts_with(&self.text) {
            if self.text == self.tags.json {
                self.text.clear();
            }
            return Step::More;
        }
        match follower(&self.text, &self.tags.key_and_ends()) {
            Some(Some(follower)) => self.handle_follower(follower, context),
            Some(None) => Step::More,
            None => Step::Bad,
        }
    }

    /// Handles the start of a parameter's tag or the end of the call.
    fn handle_follower(&mut self, follower: Follower, context: &mut CallContext<'_>) -> Step {
        self.text.clear();
        if self.parameters == 0 {
            if !context.can_call(&self.name) {
                return Step::Bad;
            }
            context.out.start_call(&self.name, None);
        }
        self.parameters += 1;
        match follower {
            Follower::Key => {
                self.state = State::Key;
                Step::More
            }
            Follower::End => {
                context.out.push_arguments(if self.parameters == 1 { "{}" } else { "}" });
                context.out.complete_call();
                Step::Done
            }
        }
    }

    fn key(&mut self, context: &mut CallContext<'_>) -> Step {
        let text = std::mem::take(&mut self.text);
        let head = text.strip_suffix(self.tags.key_close).unwrap_or(&text).trim();
        let (key, attributes) = match head.split_once('"') {
            Some(parts) if self.tags.attributes != Attributes::None => parts,
            _ => (head, ""),
        };
        let key = &self.tags.attributes.unescape(key);
        context.out.push_arguments(if self.parameters == 1 { "{" } else { ", " });
        context.out.push_arguments(&format!("{}: ", quote(key)));
        let mut types = context.tools.get(&self.name).map(|t| t.types(key)).unwrap_or_default();
        if self.tags.attributes != Attributes::None && types != ["string"] {
            match self.tags.attributes.is_text(attributes) {
                true => types = vec!["string"],
                false => types.retain(|kind| *kind != "string"),
            }
        }
        self.value = Value::new(&types, self.tags);
        context.out.push_arguments(self.value.begin());
        self.state = if self.tags.value.is_empty() { State::Value } else { State::BeforeValue };
        Step::More
    }

    fn value(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        self.text.push(c);
        let mut shown = String::new();
        while !self.text.is_empty() {
            match self.closing() {
                Some(Some(follower)) => {
                    shown.push_str(&self.value.end());
                    context.out.push_arguments(&shown);
                    return self.handle_follower(follower, context);
                }
                Some(None) => break,
                None => self.value.push(self.text.remove(0), &mut shown),
            }
        }
        context.out.push_arguments(&shown);
        Step::More
    }

    /// Checks whether the text closes the value; `Some(None)` if it may with more text.
    fn closing(&self) -> Option<Option<Follower>> {
        let close = self.tags.value_close;
        if close.starts_with(&self.text) {
            return Some(None);
        }
        let rest = self.text.strip_prefix(close)?;
        let tag = rest.trim_start();
        if rest.len() - tag.len() > HEAD_BYTES_MAX {
            return None;
        }
        follower(tag, &self.tags.key_and_ends())
    }
}

/// Checks which of a key's tag and two ends `text` is; `Some(None)` if it may become one of them.
fn follower(text: &str, tags: &[&str; 3]) -> Option<Option<Follower>> {
    let [key, ends @ ..] = tags;
    if text == *key {
        return Some(Some(Follower::Key));
    }
    if ends.iter().any(|end| !end.is_empty() && *end == text) {
        return Some(Some(Follower::End));
    }
    tags.iter().any(|tag| tag.starts_with(text)).then_some(None)
}

/// Converts the plain text of a value to JSON.
#[derive(Debug, Default)]
struct Value {
    /// Only a string is possible, so the text can be emitted as it arrives.
    text: bool,
    /// The text may be in a CDATA section, so that it is emitted at its end.
    cdata: bool,
    types: Vec<String>,
    /// A line break after the opening tag and one before the closing tag are not part of it.
    lines: bool,
    started: bool,
    /// A line break that may be the last.
    line: bool,
    pending: String,
}

impl Value {
    fn new(types: &[&str], tags: &Tags) -> Self {
        let (lines, cdata) = (tags.lines, tags.cdata);
        let text = types == ["string"] && !cdata;
        let types = types.iter().map(|t| t.to_string()).collect();
        Self { text, cdata, types, lines, ..Self::default() }
    }

    fn begin(&self) -> &'static str {
        if self.text { "\"" } else { "" }
    }

    fn push(&mut self, c: char, shown: &mut String) {
        let first = !std::mem::replace(&mut self.started, true);
        if self.lines && c == '\n' {
            if first {
                return;
            }
            if std::mem::replace(&mut self.line, true) {
                self.push_char('\n', shown);
            }
            return;
        }
        if std::mem::take(&mut self.line) {
            self.push_char('\n', shown);
        }
        self.push_char(c, shown);
    }

    fn push_char(&mut self, c: char, shown: &mut String) {
        if self.text { escape(c, shown) } else { self.pending.push(c) }
    }

    fn end(&mut self) -> String {
        let pending = std::mem::take(&mut self.pending);
        let text = if self.cdata { cdata(&pending) } else { &pending };
        match self.types.as_slice() {
            _ if self.text => "\"".into(),
            [only] if only == "string" => quote(text),
            types => as_json(text, types),
        }
    }

    /// The rest of a value that was cut off.
    fn take_rest(&mut self) -> String {
        if self.text { String::new() } else { std::mem::take(&mut self.pending).trim().to_string() }
    }
}

/// The text of a CDATA section, or `text` if it is none.
fn cdata(text: &str) -> &str {
    let inner = text.trim().strip_prefix("<![CDATA[");
    inner.and_then(|inner| inner.strip_suffix("]]>")).unwrap_or(text)
}

/// `text` as a value of one of `types` (of any, if empty), else as a string.
pub(super) fn as_json<S: AsRef<str>>(text: &str, types: &[S]) -> String {
    let trimmed = match text.trim() {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        other => other,
    };
    let Ok(value) = serde_json::from_str::<serde_json::Value>(trimmed) else {
        return quote(text);
    };
    let mut named = types.iter().map(AsRef::as_ref);
    let fits = match &value {
        serde_json::Value::Null => named.any(|t| t == "null"),
        serde_json::Value::Bool(_) => named.any(|t| t == "boolean"),
        serde_json::Value::Number(_) => named.any(|t| matches!(t, "number" | "integer")),
        serde_json::Value::String(_) => false,
        serde_json::Value::Array(_) => named.any(|t| t == "array"),
        serde_json::Value::Object(_) => named.any(|t| t == "object"),
    };
    let open = types.is_empty() && !value.is_string();
    // If the value cannot be a string, any JSON is better than a string.
    let text_fits = types.is_empty() || types.iter().any(|t| t.as_ref() == "string");
    if fits || open || !text_fits { trimmed.to_string() } else { quote(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_becomes_what_the_schema_says() {
        let cases = [
            ("42", vec!["integer"], "42"),
            ("42", vec!["string", "null"], "\"42\""),
            ("null", vec!["string", "null"], "null"),
            ("True", vec!["boolean"], "true"),
            ("[1, \"a\"]", vec!["array"], "[1, \"a\"]"),
            ("many", vec!["integer"], "\"many\""),
            ("\"5\"", vec!["integer"], "\"5\""),
            ("{\"a\": 1}", vec![], "{\"a\": 1}"),
            ("say \"hi\"", vec![], "\"say \\\"hi\\\"\""),
            ("None", vec![], "null"),
        ];
        for (text, types, expected) in cases {
            let types: Vec<String> = types.iter().map(|t| t.to_string()).collect();
            assert_eq!(as_json(text, &types), expected, "{text} as {types:?}");
        }
    }
}
