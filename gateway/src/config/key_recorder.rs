//! PURE. Records which keys a configuration may have and what values they have, while the code
//! reads one. So there is no second list that could be wrong.

use std::cell::RefCell;
use std::rc::Rc;

use serde_json::Value;

use crate::config::yaml::Node;

/// A configuration key.
#[derive(Debug, Clone, PartialEq)]
pub struct KeySchema {
    /// Path, with `[]` for list items.
    pub path: String,
    /// Valid values, as JSON Schema.
    pub schema: Value,
    /// True if the key must be present.
    pub required: bool,
}

/// What to record.
#[derive(Default)]
enum Recording {
    /// Nothing.
    #[default]
    Nothing,
    /// All possible keys: every section is treated as present, with one item in each list.
    Keys(Vec<KeySchema>),
    /// The values in effect.
    Values(Vec<(String, Node)>),
}

/// A recorder that is passed from section to section.
#[derive(Clone, Default)]
pub(super) struct KeyRecorder(Rc<RefCell<Recording>>);

/// Sections are compared by their debug output, which must not depend on the trace.
impl std::fmt::Debug for KeyRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyRecorder")
    }
}

impl KeyRecorder {
    pub(super) fn for_keys() -> Self {
        Self(Rc::new(RefCell::new(Recording::Keys(Vec::new()))))
    }

    pub(super) fn for_values() -> Self {
        Self(Rc::new(RefCell::new(Recording::Values(Vec::new()))))
    }

    /// True if absent sections must be read, too.
    pub(super) fn reads_absent_sections(&self) -> bool {
        matches!(&*self.0.borrow(), Recording::Keys(_))
    }

    /// Records a key: its schema and its value.
    pub(super) fn record(
        &self,
        path: String,
        schema: impl FnOnce() -> Value,
        value: impl FnOnce() -> Node,
    ) {
        match &mut *self.0.borrow_mut() {
            Recording::Nothing => {}
            Recording::Keys(keys) => {
                keys.push(KeySchema { path, schema: schema(), required: false })
            }
            Recording::Values(values) => values.push((path, value())),
        }
    }

    /// Marks the last recorded key as required.
    pub(super) fn mark_required(&self) {
        if let Recording::Keys(keys) = &mut *self.0.borrow_mut()
            && let Some(key) = keys.last_mut()
        {
            key.required = true;
        }
    }

    /// Records that the key's texts must match a pattern.
    pub(super) fn set_pattern(&self, path: &str, pattern: &'static str) {
        if let Recording::Keys(keys) = &mut *self.0.borrow_mut()
            && let Some(key) = keys.iter_mut().find(|key| key.path == path)
        {
            let place = match key.schema.get("items") {
                Some(_) => &mut key.schema["items"]["pattern"],
                None => &mut key.schema["pattern"],
            };
            *place = pattern.into();
        }
    }

    pub(super) fn into_keys(self) -> Vec<KeySchema> {
        match self.0.take() {
            Recording::Keys(keys) => keys,
            _ => Vec::new(),
        }
    }

    pub(super) fn into_values(self) -> Vec<(String, Node)> {
        match self.0.take() {
            Recording::Values(values) => values,
            _ => Vec::new(),
        }
    }
}
