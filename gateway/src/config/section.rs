//! A section of a configuration, read key by key. Collects all problems.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::RangeInclusive;

use serde_json::{Value, json};

use super::key_recorder::KeyRecorder;
use crate::config::yaml::{Node, Problem};
use crate::types::limits::QueueShare;

/// An address with a port.
const ADDRESS: &str = r"^(\d{1,3}(\.\d{1,3}){3}|\[[0-9A-Fa-f:.]+\]):\d{1,5}$";
/// Highest price.
const DECIMAL_MAX: f64 = 1e9;

/// Largest queue limits: requests, and bytes of their bodies (64 GiB).
pub(super) const QUEUE_DEPTH_MAX: u64 = 1_000_000;
pub(super) const QUEUE_BYTES_MAX: u64 = 64 << 30;

/// Larger integers are not exact in every language.
const COUNT_MAX: u64 = 1 << 53;

pub(super) type Problems = Vec<Problem>;

/// A map whose keys are taken one by one; keys left at the end are unknown.
#[derive(Debug)]
pub(super) struct Section {
    pub path: String,
    entries: Vec<(String, Node)>,
    known: Vec<String>,
    recorder: KeyRecorder,
}

impl Section {
    pub(super) fn new(
        node: Node,
        path: String,
        recorder: &KeyRecorder,
        problems: &mut Problems,
    ) -> Self {
        let entries = match node {
            Node::Map(entries) => entries,
            Node::Absent => Vec::new(),
            _ => {
                let at = if path.is_empty() { "the file".into() } else { path.clone() };
                problems.push(Problem { path: at, message: "expected keys and values".into() });
                Vec::new()
            }
        };
        Self { path, entries, known: Vec::new(), recorder: recorder.clone() }
    }

    pub(super) fn child(&self, key: &str) -> String {
        if self.path.is_empty() { key.into() } else { format!("{}.{key}", self.path) }
    }

    fn take(&mut self, key: &str) -> Node {
        self.known.push(key.into());
        let at = self.entries.iter().position(|(k, _)| k == key);
        at.map_or(Node::Absent, |at| self.entries.remove(at).1)
    }

    /// Takes the value of a key and reports it to the trace.
    pub(super) fn value(
        &mut self,
        key: &str,
        default: Node,
        schema: impl FnOnce() -> Value,
    ) -> Node {
        let node = self.take(key);
        let value = || if node == Node::Absent { default } else { node.clone() };
        self.recorder.record(self.child(key), schema, value);
        node
    }

    /// Reports to the trace that a text must match this pattern.
    pub(super) fn pattern(&self, key: &str, pattern: &'static str) {
        self.recorder.set_pattern(&self.child(key), pattern);
    }

    pub(super) fn report(&self, key: &str, message: &str, problems: &mut Problems) {
        problems.push(Problem { path: self.child(key), message: message.into() });
    }

    pub(super) fn section(&mut self, key: &str, problems: &mut Problems) -> Option<Section> {
        match self.take(key) {
            Node::Absent if !self.recorder.reads_absent_sections() => None,
            node => Some(Section::new(node, self.child(key), &self.recorder, problems)),
        }
    }

    /// A section whose defaults apply even if it is absent.
    pub(super) fn section_or_empty(&mut self, key: &str, problems: &mut Problems) -> Section {
        let node = self.take(key);
        Section::new(node, self.child(key), &self.recorder, problems)
    }

    pub(super) fn list(&mut self, key: &str, problems: &mut Problems) -> Vec<Section> {
        let path = self.child(key);
        let recorder = self.recorder.clone();
        match self.take(key) {
            Node::Absent if recorder.reads_absent_sections() => {
                vec![Section::new(Node::Absent, format!("{path}[]"), &recorder, problems)]
            }
            Node::Absent => Vec::new(),
            Node::List(items) => {
                let item =
                    |(i, node)| Section::new(node, format!("{path}[{i}]"), &recorder, problems);
                items.into_iter().enumerate().map(item).collect()
            }
            _ => {
                self.report(key, "expected a list", problems);
                Vec::new()
            }
        }
    }

    pub(super) fn text(&mut self, key: &str, problems: &mut Problems) -> Option<String> {
        match self.value(key, Node::Absent, text_schema) {
            Node::Absent => None,
            Node::Text(text) if !text.is_empty() => Some(text),
            _ => {
                self.report(key, "expected a string", problems);
                None
            }
        }
    }

    pub(super) fn required_text(&mut self, key: &str, problems: &mut Problems) -> Option<String> {
        let before = problems.len();
        let text = self.text(key, problems);
        self.recorder.mark_required();
        if text.is_none() && problems.len() == before {
            self.report(key, "is missing", problems);
        }
        text
    }

    /// A list of nonempty texts.
    pub(super) fn texts(&mut self, key: &str, problems: &mut Problems) -> Vec<String> {
        let text = |node| match node {
            Node::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        };
        let empty = Node::List(Vec::new());
        let texts = match self.value(key, empty, texts_schema) {
            Node::Absent => Some(Vec::new()),
            Node::List(items) => items.into_iter().map(text).collect(),
            _ => None,
        };
        texts.unwrap_or_else(|| {
            self.report(key, "expected a list of strings", problems);
            Vec::new()
        })
    }

    /// A list of at least one text.
    pub(super) fn required_texts(&mut self, key: &str, problems: &mut Problems) -> Vec<String> {
        let before = problems.len();
        let texts = self.texts(key, problems);
        self.recorder.mark_required();
        if texts.is_empty() && problems.len() == before {
            self.report(key, "is missing", problems);
        }
        texts
    }

    /// Named texts. In a plain list, each text is its own name.
    pub(super) fn texts_by_name(
        &mut self,
        key: &str,
        problems: &mut Problems,
    ) -> BTreeMap<String, String> {
        let pair = |(name, node)| match node {
            Node::Text(text) if !text.is_empty() => Some((name, text)),
            _ => None,
        };
        let schema = || {
            let named = json!({"type": "object", "additionalProperties": text_schema()});
            json!({"anyOf": [named, texts_schema()]})
        };
        let pairs = match self.value(key, Node::Map(Vec::new()), schema) {
            Node::Absent => Some(BTreeMap::new()),
            Node::Map(entries) => entries.into_iter().map(pair).collect(),
            Node::List(items) => {
                let own = |node| match node {
                    Node::Text(text) => pair((text.clone(), Node::Text(text))),
                    _ => None,
                };
                items.into_iter().map(own).collect()
            }
            _ => None,
        };
        pairs.unwrap_or_else(|| {
            self.report(key, "expected a map of strings, or a list of strings", problems);
            BTreeMap::new()
        })
    }

    /// A number of at least 0, possibly fractional; 0 if absent.
    pub(super) fn decimal(&mut self, key: &str, problems: &mut Problems) -> f64 {
        self.read_decimal(key, Node::Number(0), problems).unwrap_or(0.0)
    }

    /// A number of at least 0, possibly fractional; `None` if absent.
    pub(super) fn optional_decimal(&mut self, key: &str, problems: &mut Problems) -> Option<f64> {
        self.read_decimal(key, Node::Absent, problems)
    }

    fn read_decimal(&mut self, key: &str, default: Node, problems: &mut Problems) -> Option<f64> {
        let has_default = matches!(default, Node::Number(_));
        let schema = || {
            let schema = json!({"type": "number", "minimum": 0, "maximum": DECIMAL_MAX});
            with_default(schema, has_default.then(|| json!(0)))
        };
        match self.value(key, default, schema) {
            Node::Absent => None,
            Node::Number(n) if n as f64 <= DECIMAL_MAX => Some(n as f64),
            Node::Decimal(d) if (0.0..=DECIMAL_MAX).contains(&d) => Some(d),
            _ => {
                self.report(key, "expected a number, such as 0.15", problems);
                None
            }
        }
    }

    /// A number from 0 to 1.
    pub(super) fn share(&mut self, key: &str, default: f64, problems: &mut Problems) -> f64 {
        let schema = || json!({"type": "number", "minimum": 0, "maximum": 1, "default": default});
        match self.value(key, Node::Decimal(default), schema) {
            Node::Absent => default,
            Node::Number(n @ (0 | 1)) => n as f64,
            Node::Decimal(d) if (0.0..=1.0).contains(&d) => d,
            _ => {
                self.report(key, "expected a number from 0.0 to 1.0", problems);
                default
            }
        }
    }

    /// A number from 1 to `u32::MAX`, if present.
    pub(super) fn limit(&mut self, key: &str, problems: &mut Problems) -> Option<NonZeroU32> {
        let number = self.optional_number(key, 1..=u64::from(u32::MAX), problems)?;
        NonZeroU32::new(u32::try_from(number).ok()?)
    }

    /// A share of the queue: requests and bytes.
    pub(super) fn queue_share(&mut self, keys: [&str; 2], problems: &mut Problems) -> QueueShare {
        let [depth_max, bytes_max] = keys;
        let mut read = |key: &str, max: u64| {
            self.optional_number(key, 1..=max, problems).and_then(|n| usize::try_from(n).ok())
        };
        QueueShare {
            depth_max: read(depth_max, QUEUE_DEPTH_MAX),
            bytes_max: read(bytes_max, QUEUE_BYTES_MAX),
        }
    }

    /// A number from 1 to 2^53, if present.
    pub(super) fn count(&mut self, key: &str, problems: &mut Problems) -> Option<NonZeroU64> {
        NonZeroU64::new(self.optional_number(key, 1..=COUNT_MAX, problems)?)
    }

    pub(super) fn boolean(&mut self, key: &str, default: bool, problems: &mut Problems) -> bool {
        let schema = || json!({"type": "boolean", "default": default});
        match self.value(key, Node::Bool(default), schema) {
            Node::Absent => default,
            Node::Bool(value) => value,
            _ => {
                self.report(key, "expected true or false", problems);
                default
            }
        }
    }

    pub(super) fn number(
        &mut self,
        key: &str,
        default: u64,
        allowed: RangeInclusive<u64>,
        problems: &mut Problems,
    ) -> u64 {
        self.read_number(key, Some(default), allowed, problems).unwrap_or(default)
    }

    /// A number, if present.
    pub(super) fn optional_number(
        &mut self,
        key: &str,
        allowed: RangeInclusive<u64>,
        problems: &mut Problems,
    ) -> Option<u64> {
        self.read_number(key, None, allowed, problems)
    }

    fn read_number(
        &mut self,
        key: &str,
        default: Option<u64>,
        allowed: RangeInclusive<u64>,
        problems: &mut Problems,
    ) -> Option<u64> {
        let (min, max) = (allowed.start(), allowed.end());
        let schema = || {
            let schema = json!({"type": "integer", "minimum": min, "maximum": max});
            with_default(schema, default.map(Value::from))
        };
        match self.value(key, default.map_or(Node::Absent, Node::Number), schema) {
            Node::Absent => None,
            Node::Number(n) if allowed.contains(&n) => Some(n),
            _ => {
                let message = format!("expected a whole number, {min} to {max}");
                self.report(key, &message, problems);
                None
            }
        }
    }

    /// One of a set of names. `None` after a problem.
    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &str,
        names: (&[T], fn(T) -> &'static str),
        default: T,
        problems: &mut Problems,
    ) -> Option<T> {
        let before = problems.len();
        let found = self.read_choice(key, names, Some(default), problems);
        found.or((problems.len() == before).then_some(default))
    }

    /// One of a set of names, if present.
    pub(super) fn optional_choice<T: Copy>(
        &mut self,
        key: &str,
        names: (&[T], fn(T) -> &'static str),
        problems: &mut Problems,
    ) -> Option<T> {
        self.read_choice(key, names, None, problems)
    }

    fn read_choice<T: Copy>(
        &mut self,
        key: &str,
        (all, name): (&[T], fn(T) -> &'static str),
        default: Option<T>,
        problems: &mut Problems,
    ) -> Option<T> {
        let names: Vec<&str> = all.iter().map(|one| name(*one)).collect();
        let default = default.map(name);
        let schema =
            || with_default(json!({"type": "string", "enum": names}), default.map(Value::from));
        let node = default.map_or(Node::Absent, |default| Node::Text(default.into()));
        let found = match self.value(key, node, schema) {
            Node::Absent => return None,
            Node::Text(text) => all.iter().copied().find(|one| name(*one) == text),
            _ => None,
        };
        if found.is_none() {
            self.report(key, &format!("expected {}", one_of(&names)), problems);
        }
        found
    }

    pub(super) fn address(
        &mut self,
        key: &str,
        default: &str,
        problems: &mut Problems,
    ) -> Option<SocketAddr> {
        self.read_address(key, Some(default), problems)
    }

    /// An address, if present.
    pub(super) fn optional_address(
        &mut self,
        key: &str,
        problems: &mut Problems,
    ) -> Option<SocketAddr> {
        self.read_address(key, None, problems)
    }

    fn read_address(
        &mut self,
        key: &str,
        default: Option<&str>,
        problems: &mut Problems,
    ) -> Option<SocketAddr> {
        let schema = || {
            let schema = json!({"type": "string", "pattern": ADDRESS});
            with_default(schema, default.map(Value::from))
        };
        let node = default.map_or(Node::Absent, |default| Node::Text(default.into()));
        let address = match self.value(key, node, schema) {
            Node::Absent => return default?.parse().ok(),
            Node::Text(text) => text.parse().ok(),
            _ => None,
        };
        if address.is_none() {
            self.report(key, "expected an address and a port, such as 0.0.0.0:8080", problems);
        }
        address
    }

    pub(super) fn finish(self, problems: &mut Problems) {
        for (key, _) in &self.entries {
            let message = format!("unknown key; known here: {}", self.known.join(", "));
            self.report(key, &message, problems);
        }
    }
}

pub(super) fn text_schema() -> Value {
    json!({"type": "string", "minLength": 1})
}

pub(super) fn texts_schema() -> Value {
    json!({"type": "array", "items": text_schema()})
}

fn with_default(mut schema: Value, default: Option<Value>) -> Value {
    if let Some(default) = default {
        schema["default"] = default;
    }
    schema
}

/// Formats `a, b or c`.
fn one_of(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_string(),
        [all @ .., last] => format!("{} or {last}", all.join(", ")),
    }
}
