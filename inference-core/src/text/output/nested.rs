//! PURE. Parses calls whose arguments are nested tags, each named after its key: MiniMax M3. Every
//! tag follows the same control token, so text may contain anything that looks like a tag. Entries
//! of a list are tags named `item`. Values are plain text, so the tool's schema decides which are
//! JSON strings.

use serde_json::{Map, Value};

use super::call_context::{CallContext, Step};
use super::delimiters::namespaced::{CALL, ITEM, NAMESPACE};
use super::json::{escape, quote};
use super::xml::as_json;

/// Maximum bytes of a tag or name, and of whitespace between tags.
const HEAD_BYTES_MAX: usize = 128;
/// Maximum depth of a value.
const DEPTH_MAX: usize = 64;
/// Maximum references from one schema to the next.
const REFERENCES_MAX: usize = 8;

#[derive(Debug)]
enum State {
    /// Between the section's tag and the call's own.
    Before,
    Name,
    /// A parameter's tag or the end of the call.
    Between,
    /// The value of a parameter that is a string: it is emitted as it arrives.
    Text(String),
    /// Any other value: the open elements, from the parameter to the innermost.
    Tree(Vec<Element>),
}

/// A tag and what it contains.
#[derive(Debug, Default)]
struct Element {
    key: String,
    text: String,
    inner: Vec<Element>,
}

/// Parses one call.
#[derive(Debug)]
pub(crate) struct Nested {
    state: State,
    /// An incomplete tag or name.
    text: String,
    name: String,
    parameters: usize,
    /// All of a value that is not emitted yet.
    raw: String,
}

/// A tag, without what precedes it.
enum Tag<'a> {
    Open(&'a str),
    Close(&'a str),
    /// More text may make it one.
    Begun,
    None,
}

impl Nested {
    /// Starts after the section's tag, or after the call's own if `in_name`.
    pub(crate) fn new(in_name: bool) -> Self {
        let state = if in_name { State::Name } else { State::Before };
        let (text, name, raw) = Default::default();
        Self { state, text, name, parameters: 0, raw }
    }

    pub(crate) fn step(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        let skips = matches!(self.state, State::Before | State::Between);
        if skips && self.text.is_empty() && c.is_whitespace() {
            return Step::More;
        }
        self.text.push(c);
        match &mut self.state {
            State::Before if self.text == CALL => {
                self.text.clear();
                self.state = State::Name;
                Step::More
            }
            State::Before if CALL.starts_with(&self.text) => Step::More,
            State::Before => Step::Bad,
            State::Name => self.name(context),
            State::Between => self.between(context),
            State::Text(_) => self.string(context),
            State::Tree(_) => {
                self.raw.push(c);
                self.tree(context)
            }
        }
    }

    /// Ends the text inside the call: emits what is held of a value.
    pub(crate) fn finish(&mut self, context: &mut CallContext<'_>) {
        if context.out.is_open() && matches!(self.state, State::Tree(_)) {
            context.out.push_arguments(self.raw.trim());
        }
    }

    fn name(&mut self, context: &CallContext<'_>) -> Step {
        match self.text.strip_suffix("\">") {
            Some(name) => {
                self.name = name.into();
                self.text.clear();
                self.state = State::Between;
                if context.can_call(&self.name) { Step::More } else { Step::Bad }
            }
            None if self.text.len() > HEAD_BYTES_MAX => Step::Bad,
            None => Step::More,
        }
    }

    fn between(&mut self, context: &mut CallContext<'_>) -> Step {
        let (is_end, key) = match tag(&self.text) {
            Tag::Begun => return Step::More,
            Tag::Open(key) => (false, key.to_string()),
            Tag::Close("invoke" | "tool_call") => (true, String::new()),
            Tag::Close(_) | Tag::None => return Step::Bad,
        };
        if self.parameters == 0 {
            if !context.can_call(&self.name) {
                return Step::Bad;
            }
            context.out.start_call(&self.name, None);
        }
        self.text.clear();
        self.parameters += 1;
        if is_end {
            context.out.push_arguments(if self.parameters == 1 { "{}" } else { "}" });
            context.out.complete_call();
            return Step::Done;
        }
        let separator = if self.parameters == 1 { "{" } else { ", " };
        context.out.push_arguments(&format!("{separator}{}: ", quote(&key)));
        let is_string = context.tools.get(&self.name).is_some_and(|t| t.types(&key) == ["string"]);
        self.state = if is_string {
            context.out.push_arguments("\"");
            State::Text(key)
        } else {
            self.raw.clear();
            State::Tree(vec![Element { key, ..Element::default() }])
        };
        Step::More
    }

    fn string(&mut self, context: &mut CallContext<'_>) -> Step {
        let State::Text(key) = &self.state else { return Step::Bad };
        let close = format!("{NAMESPACE}</{key}>");
        let mut shown = String::new();
        while !self.text.is_empty() {
            if self.text == close {
                shown.push('"');
                self.text.clear();
                self.state = State::Between;
                break;
            }
            if close.starts_with(&self.text) {
                break;
            }
            escape(self.text.remove(0), &mut shown);
        }
        context.out.push_arguments(&shown);
        Step::More
    }

    fn tree(&mut self, context: &mut CallContext<'_>) -> Step {
        let State::Tree(open) = &mut self.state else { return Step::Bad };
        match tag(&self.text) {
            Tag::Begun => return Step::More,
            Tag::Open(key) if open.len() < DEPTH_MAX => {
                open.push(Element { key: key.into(), ..Element::default() });
            }
            Tag::Close(key) if open.last().is_some_and(|element| element.key == key) => {
                let Some(element) = open.pop() else { return Step::Bad };
                match open.last_mut() {
                    Some(outer) => outer.inner.push(element),
                    None => {
                        let tool = context.tools.get(&self.name);
                        let root = tool.and_then(|tool| tool.parameters.as_ref());
                        let schema = tool.and_then(|tool| tool.parameter(&element.key));
                        context.out.push_arguments(&element.json(schema, root));
                        self.state = State::Between;
                    }
                }
            }
            // Not a tag: its first character is text, and the rest may still become one.
            Tag::Open(_) | Tag::Close(_) | Tag::None => {
                let first = self.text.remove(0);
                if let Some(element) = open.last_mut() {
                    element.text.push(first);
                }
                return if self.text.is_empty() { Step::More } else { self.tree(context) };
            }
        }
        self.text.clear();
        Step::More
    }
}

/// The tag that `text` is or may become.
fn tag(text: &str) -> Tag<'_> {
    let Some(rest) = text.strip_prefix(NAMESPACE) else {
        return if NAMESPACE.starts_with(text) { Tag::Begun } else { Tag::None };
    };
    let (inner, is_whole) = match rest.strip_suffix('>') {
        Some(inner) => (inner, true),
        None => (rest, false),
    };
    if inner.is_empty() && !is_whole {
        return Tag::Begun;
    }
    let Some(inner) = inner.strip_prefix('<') else { return Tag::None };
    let (key, is_close) = match inner.strip_prefix('/') {
        Some(key) => (key, true),
        None => (inner, false),
    };
    let is_key = key.len() <= HEAD_BYTES_MAX && !key.contains(['<', '>', '\n', '[', ']']);
    match (is_key, is_whole, is_close) {
        (false, _, _) => Tag::None,
        (true, false, _) => Tag::Begun,
        (true, true, _) if key.is_empty() => Tag::None,
        (true, true, false) => Tag::Open(key),
        (true, true, true) => Tag::Close(key),
    }
}

impl Element {
    /// The value as JSON. `root` is the schema that references refer to.
    fn json(&self, schema: Option<&Value>, root: Option<&Value>) -> String {
        let schema = resolve(schema, root);
        let types = schema.map(super::tools::types).unwrap_or_default();
        if self.inner.is_empty() {
            return match types.as_slice() {
                ["array"] if self.text.trim().is_empty() => "[]".into(),
                ["object"] if self.text.trim().is_empty() => "{}".into(),
                [only] if *only == "string" => quote(&self.text),
                types => as_json(&self.text, types),
            };
        }
        let is_object = types == ["object"];
        if !is_object && self.inner.iter().all(|entry| entry.key == ITEM) {
            let items = schema.and_then(|schema| schema.get("items"));
            let all: Vec<String> = self.inner.iter().map(|e| e.json(items, root)).collect();
            return format!("[{}]", all.join(", "));
        }
        let properties = schema.and_then(|schema| schema.get("properties")?.as_object());
        let pair = |element: &Element| {
            let schema = properties.and_then(|all: &Map<String, Value>| all.get(&element.key));
            format!("{}: {}", quote(&element.key), element.json(schema, root))
        };
        format!("{{{}}}", self.inner.iter().map(pair).collect::<Vec<_>>().join(", "))
    }
}

/// The schema that `schema` refers to.
pub(crate) fn resolve<'a>(schema: Option<&'a Value>, root: Option<&'a Value>) -> Option<&'a Value> {
    let mut schema = schema?;
    for _ in 0..REFERENCES_MAX {
        let Some(Value::String(reference)) = schema.get("$ref") else { return Some(schema) };
        schema = root?.pointer(reference.strip_prefix('#')?)?;
    }
    None
}
