//! PURE. Collects the parts of a response: joins adjacent parts of one kind and counts calls.

use super::Part;

/// Kinds of prose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Content, which the user sees.
    Content,
    /// The model's reasoning.
    Reasoning,
}

/// Collects parts.
#[derive(Debug, Default)]
pub struct Out {
    parts: Vec<Part>,
    /// Number of calls started.
    started: usize,
    /// Number of calls completed.
    complete: usize,
    /// True if the latest call is incomplete.
    open: bool,
    /// For content and reasoning: some was emitted; a line break is due before more.
    said: [bool; 2],
    due: [bool; 2],
}

impl Out {
    /// Appends a character of prose.
    pub fn prose(&mut self, kind: Kind, c: char) {
        let slot = kind as usize;
        if std::mem::take(&mut self.due[slot]) {
            self.prose(kind, '\n');
        }
        self.said[slot] = true;
        match (kind, self.parts.last_mut()) {
            (Kind::Content, Some(Part::Content(text)))
            | (Kind::Reasoning, Some(Part::Reasoning(text))) => text.push(c),
            (Kind::Content, _) => self.parts.push(Part::Content(c.into())),
            (Kind::Reasoning, _) => self.parts.push(Part::Reasoning(c.into())),
        }
    }

    /// Marks an interruption: more prose of the same kind starts a new line.
    pub fn gap(&mut self) {
        self.due = self.said;
    }

    /// Starts a call.
    pub fn start(&mut self, name: &str) {
        self.gap();
        self.parts.push(Part::CallStart { index: self.started, name: name.into() });
        self.started += 1;
        self.open = true;
    }

    /// Appends to the arguments of the latest call.
    pub fn arguments(&mut self, more: &str) {
        let Some(index) = self.started.checked_sub(1) else { return };
        match self.parts.last_mut() {
            _ if more.is_empty() => {}
            Some(Part::CallArguments { fragment, .. }) => fragment.push_str(more),
            _ => self.parts.push(Part::CallArguments { index, fragment: more.into() }),
        }
    }

    /// Marks the latest call as complete.
    pub fn complete(&mut self) {
        self.complete += 1;
        self.open = false;
    }

    /// Gives up the latest call, which stays incomplete.
    pub fn abandon(&mut self) {
        self.open = false;
    }

    /// True if a call has started and is not complete.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Number of calls started, and completed.
    pub fn counts(&self) -> (usize, usize) {
        (self.started, self.complete)
    }

    /// Returns what was collected since the previous call.
    pub fn take(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.parts)
    }
}
