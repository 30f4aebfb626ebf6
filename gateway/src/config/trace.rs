//! PURE. Which keys a configuration may hold, and what they are in one: told by the code that reads
//! it, while it does. There is no second list that could be wrong.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::Value;

use crate::config::yaml::Node;

/// A key that may be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    /// Its path, with `[]` for the items of a list.
    pub path: String,
    /// Which values it takes, as JSON Schema.
    pub schema: Value,
    /// Whether it must be there.
    pub required: bool,
}

/// Who looks on while a configuration is read.
#[derive(Default)]
enum Watch {
    /// Nobody.
    #[default]
    Nothing,
    /// Who wants to know what may be written: every section is there, with one item in each list.
    Keys(Vec<Key>),
    /// Who wants to know what holds.
    Values(Vec<(String, Node)>),
}

/// Handed from section to section.
#[derive(Clone, Default)]
pub(super) struct Trace(Rc<RefCell<Watch>>);

/// Sections are compared by how they print: a trace is no part of what is written.
impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Trace")
    }
}

impl Trace {
    pub fn of_keys() -> Self {
        Self(Rc::new(RefCell::new(Watch::Keys(Vec::new()))))
    }

    pub fn of_values() -> Self {
        Self(Rc::new(RefCell::new(Watch::Values(Vec::new()))))
    }

    /// Whether sections are to be read that nobody wrote.
    pub fn invents(&self) -> bool {
        matches!(&*self.0.borrow(), Watch::Keys(_))
    }

    /// A key was read: what it takes, and what it is here.
    pub fn saw(&self, path: String, schema: impl FnOnce() -> Value, value: impl FnOnce() -> Node) {
        match &mut *self.0.borrow_mut() {
            Watch::Nothing => {}
            Watch::Keys(keys) => keys.push(Key { path, schema: schema(), required: false }),
            Watch::Values(values) => values.push((path, value())),
        }
    }

    /// The key that was read last must be there.
    pub fn required(&self) {
        if let Watch::Keys(keys) = &mut *self.0.borrow_mut()
            && let Some(key) = keys.last_mut()
        {
            key.required = true;
        }
    }

    /// The key of that path takes only texts like this.
    pub fn pattern(&self, path: &str, pattern: &'static str) {
        if let Watch::Keys(keys) = &mut *self.0.borrow_mut()
            && let Some(key) = keys.iter_mut().find(|key| key.path == path)
        {
            let place = match key.schema.get("items") {
                Some(_) => &mut key.schema["items"]["pattern"],
                None => &mut key.schema["pattern"],
            };
            *place = pattern.into();
        }
    }

    pub fn into_keys(self) -> Vec<Key> {
        match self.0.take() {
            Watch::Keys(keys) => keys,
            _ => Vec::new(),
        }
    }

    pub fn into_values(self) -> Vec<(String, Node)> {
        match self.0.take() {
            Watch::Values(values) => values,
            _ => Vec::new(),
        }
    }
}
