//! PURE. Collects the parts of a response: joins adjacent parts of one kind and counts calls.

use super::call_ids::unique_id;
use super::parts::OutputPart;

/// Kinds of prose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProseKind {
    /// Content, which the user sees.
    Content,
    /// The model's reasoning.
    Reasoning,
}

#[derive(Debug, Default)]
pub(crate) struct PartCollector {
    parts: Vec<OutputPart>,
    /// Number of calls started.
    started: usize,
    /// Number of calls completed.
    complete: usize,
    /// IDs that the model wrote.
    ids: Vec<String>,
    /// True if the latest call is incomplete.
    open: bool,
    /// For content and reasoning: some was emitted; a line break is due before more.
    emitted: [bool; 2],
    due: [bool; 2],
}

impl PartCollector {
    /// Appends a character of prose.
    pub(crate) fn push_prose(&mut self, kind: ProseKind, c: char) {
        let slot = kind as usize;
        if std::mem::take(&mut self.due[slot]) {
            self.push_prose(kind, '\n');
        }
        self.emitted[slot] = true;
        match (kind, self.parts.last_mut()) {
            (ProseKind::Content, Some(OutputPart::Content(text)))
            | (ProseKind::Reasoning, Some(OutputPart::Reasoning(text))) => text.push(c),
            (ProseKind::Content, _) => self.parts.push(OutputPart::Content(c.into())),
            (ProseKind::Reasoning, _) => self.parts.push(OutputPart::Reasoning(c.into())),
        }
    }

    /// Marks an interruption: more prose of the same kind starts a new line.
    pub(crate) fn record_gap(&mut self) {
        self.due = self.emitted;
    }

    /// Starts a call with the ID `written`, unless another call of the response has it.
    pub(crate) fn start_call(&mut self, name: &str, written: Option<&str>) {
        self.record_gap();
        let id = written.and_then(unique_id).filter(|id| !self.ids.contains(id));
        self.ids.extend(id.clone());
        let (index, name) = (self.started, name.into());
        self.parts.push(OutputPart::CallStart { index, name, id });
        self.started += 1;
        self.open = true;
    }

    /// Appends to the arguments of the latest call.
    pub(crate) fn push_arguments(&mut self, more: &str) {
        let Some(index) = self.started.checked_sub(1) else { return };
        match self.parts.last_mut() {
            _ if more.is_empty() => {}
            Some(OutputPart::CallArguments { fragment, .. }) => fragment.push_str(more),
            _ => self.parts.push(OutputPart::CallArguments { index, fragment: more.into() }),
        }
    }

    /// Marks the latest call as complete.
    pub(crate) fn complete_call(&mut self) {
        self.complete += 1;
        self.open = false;
    }

    /// Gives up the latest call, which stays incomplete.
    pub(crate) fn abandon_call(&mut self) {
        self.open = false;
    }

    /// True if a call has started and is not complete.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Number of calls started, and completed.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.started, self.complete)
    }

    /// Returns what was collected since the previous call.
    pub(crate) fn take_parts(&mut self) -> Vec<OutputPart> {
        std::mem::take(&mut self.parts)
    }
}
