//! Resume marks, which let another node resume a response. A resumed response skips the events that
//! its client already has.

use inference_core::types::request::{Failure, Token};
use inference_protocol::openai;
use inference_protocol::resume::{Mark, Resume, Usage};
use inference_protocol::sse;

use crate::types::error::Error;

/// Writes the events of a resumable response.
#[derive(Debug)]
pub(crate) struct ResumeMarks {
    choices: Vec<ChoiceMarks>,
    usage_told: bool,
}

/// Resume state of one choice.
#[derive(Debug, Default)]
struct ChoiceMarks {
    /// Number of events to skip, because the client has them.
    events_left: u64,
    /// Size of those events in bytes, if it is known to be the same on every node.
    bytes_left: Option<u64>,
    /// Tokens that no mark has reported.
    tokens: Vec<Token>,
}

impl ResumeMarks {
    /// Creates the state for this many choices. Does not compare the bytes of events that vary from
    /// node to node: the logprobs of tokens from another node are not known here, nor its timings.
    pub(crate) fn new(resume: &Resume, choices: usize, varies: bool) -> Self {
        let marked = |index: usize| {
            let known = resume.choices.get(index).cloned().unwrap_or_default();
            let bytes_left = (!varies).then_some(known.bytes);
            ChoiceMarks { events_left: known.events, bytes_left, tokens: Vec::new() }
        };
        Self { choices: (0..choices).map(marked).collect(), usage_told: resume.is_usage_sent }
    }

    /// Adds tokens to a choice; the mark of its next event reports them.
    pub(crate) fn add(&mut self, choice: usize, tokens: &[Token]) {
        if let Some(choice) = self.choices.get_mut(choice) {
            choice.tokens.extend(tokens);
        }
    }

    /// Writes an event of a choice, unless the client has it.
    ///
    /// # Errors
    /// The client has events that differ from those of this node.
    pub(crate) fn event(
        &mut self,
        choice: usize,
        payload: &str,
        out: &mut String,
    ) -> Result<(), Error> {
        let event = sse::data(payload);
        if let Some(choice) = self.choices.get_mut(choice)
            && choice.events_left > 0
        {
            return choice.skip_event(event.len() as u64);
        }
        self.write_tokens(choice, out);
        out.push_str(&event);
        Ok(())
    }

    /// Reports a choice's tokens in an event without data, if there are any.
    pub(crate) fn write_note(&mut self, choice: usize, out: &mut String) {
        if self.choices.get(choice).is_some_and(|choice| !choice.tokens.is_empty()) {
            self.write_tokens(choice, out);
            out.push('\n');
        }
    }

    fn write_tokens(&mut self, choice: usize, out: &mut String) {
        let Some(marked) = self.choices.get_mut(choice) else { return };
        let tokens = std::mem::take(&mut marked.tokens);
        Mark::Tokens { choice: choice as u32, tokens }.write(out);
    }

    /// Writes the events after all choices, with these payloads.
    pub(crate) fn close(
        &mut self,
        usage: &openai::Usage,
        chunk: Option<&str>,
        last: &str,
        out: &mut String,
    ) {
        let cached = u64::from(usage.prompt_tokens_details.cached_tokens);
        let (prompt, completion) = (usage.prompt_tokens.into(), usage.completion_tokens.into());
        Mark::Usage(Usage { prompt, completion, cached }).write(out);
        for payload in chunk.filter(|_| !self.usage_told).into_iter().chain([last]) {
            out.push_str(&sse::data(payload));
        }
    }
}

impl ChoiceMarks {
    fn skip_event(&mut self, bytes: u64) -> Result<(), Error> {
        self.events_left -= 1;
        let Some(left) = self.bytes_left else { return Ok(()) };
        let left = left.checked_sub(bytes).ok_or(Failure::ResumeMismatch)?;
        self.bytes_left = Some(left);
        match self.events_left == 0 && left > 0 {
            true => Err(Failure::ResumeMismatch.into()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use inference_protocol::resume::ResumedChoice;

    use super::*;

    fn marks(events: u64, bytes: u64, logprobs: bool) -> ResumeMarks {
        let choices = vec![ResumedChoice { tokens: vec![1], events, bytes }];
        ResumeMarks::new(&Resume { choices, ..Resume::default() }, 1, logprobs)
    }

    fn write(marks: &mut ResumeMarks, payload: &str) -> Result<String, Error> {
        let mut out = String::new();
        marks.event(0, payload, &mut out).map(|()| out)
    }

    #[test]
    fn tokens_are_told_with_the_next_event() {
        let mut marks = marks(0, 0, false);
        marks.add(0, &[5, 6]);
        assert_eq!(write(&mut marks, "x").unwrap(), ": t 0 5,6\ndata: x\n\n");
        assert_eq!(write(&mut marks, "y").unwrap(), ": t 0\ndata: y\n\n");
    }

    #[test]
    fn what_the_client_has_is_left_out_and_its_new_tokens_are_told_later() {
        let mut marks = marks(2, 19, false);
        assert_eq!(write(&mut marks, "x").unwrap(), "");
        marks.add(0, &[7]);
        assert_eq!(write(&mut marks, "yy").unwrap(), "");
        assert_eq!(write(&mut marks, "z").unwrap(), ": t 0 7\ndata: z\n\n");
    }

    #[test]
    fn other_events_than_the_client_has_are_noticed() {
        assert_eq!(write(&mut marks(1, 8, false), "x"), Err(Failure::ResumeMismatch.into()));
        assert_eq!(write(&mut marks(1, 10, false), "x"), Err(Failure::ResumeMismatch.into()));
        assert_eq!(write(&mut marks(1, 10, true), "x"), Ok(String::new()));
    }

    #[test]
    fn the_usage_is_told_once() {
        let usage = openai::Usage::new(7, 2, 5);
        let mut out = String::new();
        marks(0, 0, false).close(&usage, Some("u"), "[DONE]", &mut out);
        assert_eq!(out, ": u 7 2 5\ndata: u\n\ndata: [DONE]\n\n");
        out.clear();
        let mut reported = ResumeMarks { choices: Vec::new(), usage_told: true };
        reported.close(&usage, Some("u"), "[DONE]", &mut out);
        assert_eq!(out, ": u 7 2 5\ndata: [DONE]\n\n");
    }
}
