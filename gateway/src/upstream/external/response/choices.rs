//! PURE. The choices of a response: which there are, what each calls, and why it ended.

use serde_json::{Map, Value, json};

use super::calls::Calls;
use super::error;
use super::finish::{self, Reason};

/// Choices to keep track of; requests cannot ask for more.
const CHOICES_MAX: usize = inference_protocol::openai::TEXT_CHOICES_MAX as usize;

/// The choices seen so far.
#[derive(Debug, Default)]
pub(super) struct Choices(Vec<Choice>);

#[derive(Debug)]
struct Choice {
    index: u64,
    calls: Calls,
    has_function: bool,
    is_finished: bool,
}

/// The end that a choice lacks.
#[derive(Debug)]
pub(super) struct Finished {
    /// Index of the choice.
    pub index: u64,
    /// Its `finish_reason`.
    pub reason: &'static str,
}

impl Choices {
    /// How many choices there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are choices and each has ended.
    pub(super) fn is_finished(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|choice| choice.is_finished)
    }

    /// Reads a chunk or a whole response, and makes it OpenAI's. True if that changed it.
    ///
    /// # Errors
    /// The engine gave a choice up; the payload of an error event.
    pub(super) fn read(&mut self, response: &mut Map<String, Value>) -> Result<bool, Vec<u8>> {
        let choices = response.get_mut("choices").and_then(Value::as_array_mut);
        let mut is_changed = false;
        for choice in choices.into_iter().flatten().filter_map(Value::as_object_mut) {
            let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
            let Some(known) = self.find(index) else { continue };
            is_changed |= known.read(choice)?;
        }
        Ok(is_changed)
    }

    fn find(&mut self, index: u64) -> Option<&mut Choice> {
        let at = match self.0.iter().position(|choice| choice.index == index) {
            Some(at) => at,
            None if self.0.len() == CHOICES_MAX => return None,
            None => {
                let calls = Calls::default();
                self.0.push(Choice { index, calls, has_function: false, is_finished: false });
                self.0.len() - 1
            }
        };
        self.0.get_mut(at)
    }

    /// The ends of choices that have none. `is_full`: the response has all tokens that it may have.
    pub(super) fn unfinished(&mut self, is_full: bool) -> Vec<Finished> {
        let open = self.0.iter_mut().filter(|choice| !choice.is_finished);
        open.map(|choice| choice.finish(is_full)).collect()
    }

    /// Adds the ends that are missing to a whole response, which [`Choices::read`] has read.
    pub(super) fn finish_whole(&mut self, response: &mut Map<String, Value>, is_full: bool) {
        let ends = self.unfinished(is_full);
        let choices = response.get_mut("choices").and_then(Value::as_array_mut);
        for choice in choices.into_iter().flatten().filter_map(Value::as_object_mut) {
            let index = choice.get("index").and_then(Value::as_u64).unwrap_or(0);
            if let Some(end) = ends.iter().find(|end| end.index == index) {
                choice.insert("finish_reason".into(), end.reason.into());
            }
        }
    }
}

impl Choice {
    fn read(&mut self, choice: &mut Map<String, Value>) -> Result<bool, Vec<u8>> {
        let mut is_changed = self.read_message(choice);
        let reason = choice.get("finish_reason");
        let text = reason.and_then(Value::as_str);
        let meant = finish::read(text, self.calls.has_any(), self.has_function);
        let ended = match meant {
            Reason::Aborted => return Err(error::of_kind(text.unwrap_or("abort"))),
            Reason::Ended(reason) => {
                self.is_finished = true;
                Some(reason)
            }
            Reason::None => None,
        };
        if reason.is_some() && text != ended {
            choice.insert("finish_reason".into(), ended.into());
            is_changed = true;
        }
        Ok(is_changed)
    }

    /// Reads what the choice says. A chunk of a chat has a `delta`, even if it is empty.
    fn read_message(&mut self, choice: &mut Map<String, Value>) -> bool {
        let is_text = choice.contains_key("text") || choice.contains_key("message");
        let mut is_changed = false;
        if !is_text && !choice.get("delta").is_some_and(Value::is_object) {
            choice.insert("delta".into(), json!({}));
            is_changed = true;
        }
        for name in ["delta", "message"] {
            let Some(message) = choice.get_mut(name).and_then(Value::as_object_mut) else {
                continue;
            };
            self.has_function |= message.get("function_call").is_some_and(Value::is_object);
            if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
                is_changed |= self.calls.read(calls, name == "delta");
            }
        }
        is_changed
    }

    fn finish(&mut self, is_full: bool) -> Finished {
        self.is_finished = true;
        let reason = match is_full {
            true => "length",
            false => finish::implied(self.calls.has_any(), self.has_function),
        };
        Finished { index: self.index, reason }
    }
}
