//! A part of a configuration, read key by key; everything wrong with it is noted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};

use super::raw::{Node, Problem};
use crate::admission::Class;

/// Whole numbers above this are not exact everywhere.
const COUNT_MAX: u64 = 1 << 53;

pub(super) type Problems = Vec<Problem>;

/// A map whose keys are taken one by one; what is left at the end is unknown.
#[derive(Debug)]
pub(super) struct Section {
    pub path: String,
    entries: Vec<(String, Node)>,
    known: Vec<String>,
}

impl Section {
    pub fn empty(path: &str) -> Self {
        Self { path: path.into(), entries: Vec::new(), known: Vec::new() }
    }

    pub fn new(node: Node, path: String, problems: &mut Problems) -> Self {
        let entries = match node {
            Node::Map(entries) => entries,
            Node::Absent => Vec::new(),
            _ => {
                let at = if path.is_empty() { "the file".into() } else { path.clone() };
                problems.push(Problem { path: at, message: "expected keys and values".into() });
                Vec::new()
            }
        };
        Self { path, entries, known: Vec::new() }
    }

    fn child(&self, key: &str) -> String {
        if self.path.is_empty() { key.into() } else { format!("{}.{key}", self.path) }
    }

    fn take(&mut self, key: &str) -> Node {
        self.known.push(key.into());
        let at = self.entries.iter().position(|(k, _)| k == key);
        at.map_or(Node::Absent, |at| self.entries.remove(at).1)
    }

    pub fn complain(&self, key: &str, message: &str, problems: &mut Problems) {
        problems.push(Problem { path: self.child(key), message: message.into() });
    }

    pub fn section(&mut self, key: &str, problems: &mut Problems) -> Option<Section> {
        match self.take(key) {
            Node::Absent => None,
            node => Some(Section::new(node, self.child(key), problems)),
        }
    }

    pub fn list(&mut self, key: &str, problems: &mut Problems) -> Vec<Section> {
        let path = self.child(key);
        match self.take(key) {
            Node::Absent => Vec::new(),
            Node::List(items) => {
                let item = |(i, node)| Section::new(node, format!("{path}[{i}]"), problems);
                items.into_iter().enumerate().map(item).collect()
            }
            _ => {
                self.complain(key, "expected a list", problems);
                Vec::new()
            }
        }
    }

    pub fn text(&mut self, key: &str, problems: &mut Problems) -> Option<String> {
        match self.take(key) {
            Node::Absent => None,
            Node::Text(text) if !text.is_empty() => Some(text),
            _ => {
                self.complain(key, "expected text", problems);
                None
            }
        }
    }

    pub fn required_text(&mut self, key: &str, problems: &mut Problems) -> Option<String> {
        let before = problems.len();
        let text = self.text(key, problems);
        if text.is_none() && problems.len() == before {
            self.complain(key, "is missing", problems);
        }
        text
    }

    /// A list of texts, none of them empty.
    pub fn texts(&mut self, key: &str, problems: &mut Problems) -> Vec<String> {
        let text = |node| match node {
            Node::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        };
        let texts = match self.take(key) {
            Node::Absent => Some(Vec::new()),
            Node::List(items) => items.into_iter().map(text).collect(),
            _ => None,
        };
        texts.unwrap_or_else(|| {
            self.complain(key, "expected a list of texts", problems);
            Vec::new()
        })
    }

    /// Texts with names; of a list of texts, each is its own name.
    pub fn texts_by_name(
        &mut self,
        key: &str,
        problems: &mut Problems,
    ) -> BTreeMap<String, String> {
        let pair = |(name, node)| match node {
            Node::Text(text) if !text.is_empty() => Some((name, text)),
            _ => None,
        };
        let pairs = match self.take(key) {
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
            self.complain(key, "expected texts with names, or a list of texts", problems);
            BTreeMap::new()
        })
    }

    /// Whether a key is there.
    pub fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(k, node)| k == key && *node != Node::Absent)
    }

    /// A number of 0 or more, with a fraction or without; 0 where it is absent.
    pub fn decimal(&mut self, key: &str, problems: &mut Problems) -> f64 {
        const MAX: f64 = 1e9;
        match self.take(key) {
            Node::Absent => 0.0,
            Node::Number(n) if n as f64 <= MAX => n as f64,
            Node::Decimal(d) if (0.0..=MAX).contains(&d) => d,
            _ => {
                self.complain(key, "expected a number, such as 0.15", problems);
                0.0
            }
        }
    }

    /// A number of 0 or more, where there is one.
    pub fn amount(&mut self, key: &str, problems: &mut Problems) -> Option<f64> {
        let is_there = self.has(key);
        Some(self.decimal(key, problems)).filter(|_| is_there)
    }

    /// A number from 0 to 1.
    pub fn share(&mut self, key: &str, default: f64, problems: &mut Problems) -> f64 {
        match self.take(key) {
            Node::Absent => default,
            Node::Number(n @ (0 | 1)) => n as f64,
            Node::Decimal(d) if (0.0..=1.0).contains(&d) => d,
            _ => {
                self.complain(key, "expected a number from 0.0 to 1.0", problems);
                default
            }
        }
    }

    /// A number from 1 up to what fits, where there is one.
    pub fn limit(&mut self, key: &str, problems: &mut Problems) -> Option<NonZeroU32> {
        // 0 stands for an absent key: it is no allowed value.
        let number = self.number(key, 0, 1..=u64::from(u32::MAX), problems);
        NonZeroU32::new(u32::try_from(number).unwrap_or(0))
    }

    /// The same, of what can be more.
    pub fn count(&mut self, key: &str, problems: &mut Problems) -> Option<NonZeroU64> {
        NonZeroU64::new(self.number(key, 0, 1..=COUNT_MAX, problems))
    }

    pub fn boolean(&mut self, key: &str, default: bool, problems: &mut Problems) -> bool {
        match self.take(key) {
            Node::Absent => default,
            Node::Bool(value) => value,
            _ => {
                self.complain(key, "expected true or false", problems);
                default
            }
        }
    }

    pub fn number(
        &mut self,
        key: &str,
        default: u64,
        allowed: std::ops::RangeInclusive<u64>,
        problems: &mut Problems,
    ) -> u64 {
        match self.take(key) {
            Node::Absent => default,
            Node::Number(n) if allowed.contains(&n) => n,
            _ => {
                let (min, max) = (allowed.start(), allowed.end());
                let message = format!("expected a whole number, {min} to {max}");
                self.complain(key, &message, problems);
                default
            }
        }
    }

    pub fn class(&mut self, key: &str, problems: &mut Problems) -> Class {
        let name = self.text(key, problems);
        let class = name.as_deref().map_or(Some(Class::Interactive), Class::named);
        class.unwrap_or_else(|| {
            self.complain(key, "expected interactive, standard or batch", problems);
            Class::Batch
        })
    }

    pub fn address(
        &mut self,
        key: &str,
        default: &str,
        problems: &mut Problems,
    ) -> Option<SocketAddr> {
        let text = self.text(key, problems).unwrap_or_else(|| default.into());
        let address = text.parse().ok();
        if address.is_none() {
            self.complain(key, "expected an address and a port, such as 0.0.0.0:8080", problems);
        }
        address
    }

    pub fn finish(self, problems: &mut Problems) {
        for (key, _) in &self.entries {
            let message = format!("unknown key; known here: {}", self.known.join(", "));
            self.complain(key, &message, problems);
        }
    }
}
