//! PURE. Parses calls written as JSON: an object `{"name": .., "arguments": {..}}` or an array of
//! them, optionally in a code fence.

use super::call_context::{CallContext, Step};
use super::object::Object;

/// Optional text before the JSON: a fence, and the language that it names.
const FENCES: [&str; 3] = ["```json", "```tool_call", "```tool_code"];

/// Parses one object or one array.
#[derive(Debug)]
pub(crate) struct List {
    /// No delimiter marks this as a call, only the keys do.
    bare: bool,
    fence: String,
    array: bool,
    /// An object is complete, and the array continues.
    between: bool,
    object: Option<Object>,
}

impl List {
    /// Starts before the first bracket.
    pub(crate) fn new(bare: bool) -> Self {
        Self { bare, fence: String::new(), array: false, between: false, object: None }
    }

    /// Starts after a delimiter that ends with the first bracket.
    pub(crate) fn after_delimiter(delimiter: &str, bare: bool) -> Self {
        let mut list = Self::new(bare);
        if delimiter.ends_with('[') {
            list.array = true;
        } else {
            list.object = Some(Object::new(bare));
        }
        list
    }

    pub(crate) fn step(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        if let Some(object) = &mut self.object {
            return match object.step(c, context) {
                Step::Done if self.array => {
                    self.object = None;
                    self.between = true;
                    Step::More
                }
                other => other,
            };
        }
        match c {
            '{' if context.has_room() && self.is_fence() => {
                self.between = false;
                self.object = Some(Object::new(self.bare));
                Step::More
            }
            '[' if !self.array && self.is_fence() => {
                self.array = true;
                Step::More
            }
            ']' if self.between => Step::Done,
            ',' if self.between => Step::More,
            c if c.is_whitespace() => Step::More,
            c if !self.array => self.fence(c),
            _ => Step::Bad,
        }
    }

    /// True if a call is complete and no other has started.
    pub(crate) fn is_between(&self) -> bool {
        self.object.as_ref().map_or(self.between, Object::is_complete)
    }

    fn fence(&mut self, c: char) -> Step {
        self.fence.push(c);
        let begins = FENCES.iter().any(|f| f.starts_with(&self.fence));
        if begins { Step::More } else { Step::Bad }
    }

    fn is_fence(&self) -> bool {
        matches!(self.fence.as_str(), "" | "```") || FENCES.contains(&self.fence.as_str())
    }
}
