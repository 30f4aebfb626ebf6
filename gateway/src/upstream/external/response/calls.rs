//! PURE. Numbers the tool calls of a choice. In a stream, a call's index says which parts belong to
//! it. Ollama has sent every call with index 0, and some services leave the index out.

use serde_json::Value;

/// Calls of a choice to keep track of.
const CALLS_MAX: usize = 128;
/// Longest id to compare.
const ID_BYTES_MAX: usize = 128;

/// The calls of a choice, in the order of their numbers.
#[derive(Debug, Default)]
pub(super) struct Calls(Vec<Call>);

#[derive(Debug)]
struct Call {
    /// The endpoint's index.
    theirs: Option<u64>,
    /// Its index for clients.
    ours: u64,
    id: String,
}

impl Calls {
    /// True if there are calls.
    pub(super) fn has_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Reads the calls of a message, or parts of calls. True if an index was changed.
    pub(super) fn read(&mut self, calls: &mut [Value], is_stream: bool) -> bool {
        let mut is_changed = false;
        for call in calls {
            let theirs = call.get("index").and_then(Value::as_u64);
            let id = call.get("id").and_then(Value::as_str).unwrap_or_default();
            let id: String = id.chars().take(ID_BYTES_MAX).collect();
            let has_name = call.pointer("/function/name").is_some_and(|name| name != "");
            let ours = self.number(theirs, id, has_name);
            if is_stream && theirs != Some(ours) && call.is_object() {
                call["index"] = ours.into();
                is_changed = true;
            }
        }
        is_changed
    }

    /// The number of a part's call. A new call has a name, and another id than the one before.
    fn number(&mut self, theirs: Option<u64>, id: String, has_name: bool) -> u64 {
        let known = self.0.iter().rev().find(|call| theirs.is_none() || call.theirs == theirs);
        if let Some(known) = known {
            let is_other = has_name && !id.is_empty() && known.id != id;
            // Without an index, a name alone begins a call.
            let is_new = is_other || (has_name && theirs.is_none() && id.is_empty());
            if !is_new || self.0.len() == CALLS_MAX {
                return known.ours;
            }
        }
        let next = self.0.iter().map(|call| call.ours + 1).max().unwrap_or(0);
        // An index that no call has yet stays.
        let is_free = |index: &u64| *index >= next && *index < CALLS_MAX as u64;
        let ours = theirs.filter(is_free).unwrap_or(next);
        if self.0.len() < CALLS_MAX {
            self.0.push(Call { theirs, ours, id });
        }
        ours
    }
}
