//! PURE. Records which keys a configuration may have and what values they have, while the code
//! reads one. So there is no second list that could be wrong.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::Value;

use crate::config::yaml::Node;

/// A configuration key.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    /// Path, with `[]` for list items.
    pub path: String,
    /// Valid values, as JSON Schema.
    pub schema: Value,
    /// True if the key must be present.
    pub required: bool,
}

/// What to record.
#[derive(Default)]
enum Watch {
    /// Nothing.
    #[default]
    Nothing,
    /// All possible keys: every section is treated as present, with one item in each list.
    Keys(Vec<Key>),
    /// The values in effect.
    Values(Vec<(String, Node)>),
}

/// A recorder that is passed from section to section.
#[derive(Clone, Default)]
pub(super) struct Trace(Rc<RefCell<Watch>>);

/// Sections are compared by their debug output, which must not depend on the trace.
impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Trace")
    }
}

impl Trace {
    pub(super) fn of_keys() -> Self {
        Self(Rc::new(RefCell::new(Watch::Keys(Vec::new()))))
    }

    pub(super) fn of_values() -> Self {
        Self(Rc::new(RefCell::new(Watch::Values(Vec::new()))))
    }

    /// True if absent sections must be read, too.
    pub(super) fn invents(&self) -> bool {
        matches!(&*self.0.borrow(), Watch::Keys(_))
    }

    /// Records a key: its schema and its value.
    pub(super) fn saw(
        &self,
        path: String,
        schema: impl FnOnce() -> Value,
        value: impl FnOnce() -> Node,
    ) {
        match &mut *self.0.borrow_mut() {
            Watch::Nothing => {}
            Watch::Keys(keys) => keys.push(Key { path, schema: schema(), required: false }),
            Watch::Values(values) => values.push((path, value())),
        }
    }

    /// Marks the last recorded key as required.
    pub(super) fn required(&self) {
        if let Watch::Keys(keys) = &mut *self.0.borrow_mut()
            && let Some(key) = keys.last_mut()
        {
            key.required = true;
        }
    }

    /// Records that the key's texts must match a pattern.
    pub(super) fn pattern(&self, path: &str, pattern: &'static str) {
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

    pub(super) fn into_keys(self) -> Vec<Key> {
        match self.0.take() {
            Watch::Keys(keys) => keys,
            _ => Vec::new(),
        }
    }

    pub(super) fn into_values(self) -> Vec<(String, Node)> {
        match self.0.take() {
            Watch::Values(values) => values,
            _ => Vec::new(),
        }
    }
}
