//! PURE. Where the parts of an answer are collected: neighbours of one kind are joined, calls
//! are counted.

use super::Part;

/// Kinds of prose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// What the reader sees.
    Content,
    /// What the model thinks.
    Reasoning,
}

/// Collects parts.
#[derive(Debug, Default)]
pub struct Out {
    parts: Vec<Part>,
    /// Calls that have begun.
    started: usize,
    /// Of those, complete.
    complete: usize,
    /// The latest call is not complete.
    open: bool,
    /// Content, reasoning: some was said; a line break is due before more.
    said: [bool; 2],
    due: [bool; 2],
}

impl Out {
    /// More prose.
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

    /// Something else comes between: more prose of the same kind begins a new line.
    pub fn gap(&mut self) {
        self.due = self.said;
    }

    /// A call begins.
    pub fn start(&mut self, name: &str) {
        self.gap();
        self.parts.push(Part::CallStart { index: self.started, name: name.into() });
        self.started += 1;
        self.open = true;
    }

    /// More of the arguments of the latest call.
    pub fn arguments(&mut self, more: &str) {
        let Some(index) = self.started.checked_sub(1) else { return };
        match self.parts.last_mut() {
            _ if more.is_empty() => {}
            Some(Part::CallArguments { fragment, .. }) => fragment.push_str(more),
            _ => self.parts.push(Part::CallArguments { index, fragment: more.into() }),
        }
    }

    /// The latest call is complete.
    pub fn complete(&mut self) {
        self.complete += 1;
        self.open = false;
    }

    /// The latest call will not be completed.
    pub fn abandon(&mut self) {
        self.open = false;
    }

    /// Whether a call has begun and is not complete.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Calls begun and calls completed.
    pub fn counts(&self) -> (usize, usize) {
        (self.started, self.complete)
    }

    /// What was collected since the last time.
    pub fn take(&mut self) -> Vec<Part> {
        std::mem::take(&mut self.parts)
    }
}
