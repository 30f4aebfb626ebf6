//! Writes responses: a JSON object, or lines of them.

use std::time::Duration;

use inference_protocol::openai::ErrorDetail;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{ErrorBody, rfc3339};
use crate::answer::{Answer, Chunk, Finish, Part, Timings, Usage};
use crate::conversation::{Call, Conversation};
use crate::json;
use crate::writer::{Format, Origin, StreamFormat};

/// State of one response.
#[derive(Debug)]
pub(crate) struct Writer {
    is_chat: bool,
    model: String,
    /// When the request arrived, in seconds.
    arrived: u64,
    /// Time since then.
    elapsed: Duration,
    /// The same at the first part of the response.
    first: Option<Duration>,
    /// The call whose arguments arrive; clients get calls whole.
    call: Option<Call>,
    /// How many calls there are.
    calls: usize,
    finish: Option<Finish>,
    usage: Usage,
    timings: Option<Timings>,
}

impl Writer {
    /// Starts the response to a chat.
    pub(crate) fn chat(conversation: &Conversation, origin: Origin) -> Self {
        Self {
            is_chat: true,
            model: conversation.model.clone().unwrap_or_default(),
            arrived: origin.now,
            elapsed: Duration::ZERO,
            first: None,
            call: None,
            calls: 0,
            finish: None,
            usage: Usage::default(),
            timings: None,
        }
    }

    /// Starts the response to a prompt.
    pub(crate) fn generate(conversation: &Conversation, origin: Origin) -> Self {
        Self { is_chat: false, ..Self::chat(conversation, origin) }
    }

    /// An object with `said`.
    fn object<'a>(&'a self, said: Said<'a>, end: Option<End>) -> Object<'a> {
        let Said { text, thinking, tool_calls, logprobs } = said;
        let message = Message { role: "assistant", content: text, thinking, tool_calls };
        Object {
            model: &self.model,
            created_at: self.now(),
            message: self.is_chat.then_some(message),
            response: (!self.is_chat).then_some(text),
            thinking: if self.is_chat { "" } else { thinking },
            done: end.is_some(),
            logprobs,
            end,
        }
    }

    fn now(&self) -> String {
        let seconds = self.arrived.saturating_add(self.elapsed.as_secs());
        rfc3339(seconds, self.elapsed.subsec_nanos())
    }

    fn line(&self, said: Said<'_>, end: Option<End>, out: &mut Vec<u8>) {
        json::write(&self.object(said, end), out);
        out.push(b'\n');
    }

    fn part(&mut self, part: Part<'_>, out: &mut Vec<u8>) {
        self.first.get_or_insert(self.elapsed);
        match part {
            Part::Arguments(text) => {
                if let Some(call) = &mut self.call {
                    call.arguments.push_str(text);
                }
                return;
            }
            // Whatever else begins, the call before it is complete.
            _ => self.write_call(out),
        }
        match part {
            Part::Reasoning(thinking) => self.line(Said { thinking, ..Said::default() }, None, out),
            Part::Text(text, tokens) => {
                let logprobs = tokens.to_vec();
                self.line(Said { text, logprobs, ..Said::default() }, None, out);
            }
            Part::Call { id, name } => {
                self.calls += 1;
                let (id, name) = (id.into(), name.into());
                self.call = Some(Call { id, name, arguments: String::new() });
            }
            Part::Arguments(_) => {}
        }
    }

    /// Writes the call that is complete.
    fn write_call(&mut self, out: &mut Vec<u8>) {
        let Some(call) = self.call.take() else { return };
        if let Some(call) = ToolCall::of(self.calls - 1, &call, self.is_cut()) {
            self.line(Said { tool_calls: vec![call], ..Said::default() }, None, out);
        }
    }

    fn is_cut(&self) -> bool {
        self.finish == Some(Finish::Length)
    }

    fn end_of_response(&self) -> End {
        let nanos = |ms: f64| (ms.max(0.0) * 1e6) as u64;
        let (prompt, eval) = match (self.timings, self.first) {
            (Some(timings), _) => (nanos(timings.prompt_ms), nanos(timings.predicted_ms)),
            (None, Some(first)) => (as_nanos(first), as_nanos(self.elapsed.saturating_sub(first))),
            (None, None) => (0, 0),
        };
        End {
            done_reason: if self.is_cut() { "length" } else { "stop" },
            total_duration: as_nanos(self.elapsed).max(prompt.saturating_add(eval)),
            load_duration: 0,
            prompt_eval_count: self.usage.prompt,
            prompt_eval_duration: prompt,
            eval_count: self.usage.completion,
            eval_duration: eval,
        }
    }
}

/// A duration as Ollama writes it.
pub(super) fn as_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Format for Writer {
    fn stream_format(&self) -> StreamFormat {
        StreamFormat::JsonLines
    }

    fn set_elapsed(&mut self, elapsed: Duration) {
        self.elapsed = elapsed;
    }

    fn chunk(&mut self, chunk: &Chunk<'_>, out: &mut Vec<u8>) {
        self.finish = chunk.finish().or(self.finish);
        chunk.parts(self.calls, &mut |part| self.part(part, out));
        self.usage = chunk.usage.unwrap_or(self.usage);
        self.timings = chunk.timings().or(self.timings);
        if self.finish.is_some() {
            self.write_call(out);
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        self.write_call(out);
        self.line(Said::default(), Some(self.end_of_response()), out);
    }

    fn fail(&mut self, _status: u16, error: &ErrorDetail, out: &mut Vec<u8>) {
        json::write(&ErrorBody { error: &error.message }, out);
        out.push(b'\n');
    }

    fn whole(&mut self, answer: Answer) -> Vec<u8> {
        (self.finish, self.timings) = (answer.finish, answer.timings);
        self.usage = answer.usage.unwrap_or_default();
        let is_cut = self.is_cut();
        let calls = answer.calls.iter().enumerate();
        let said = Said {
            text: &answer.text,
            thinking: &answer.reasoning,
            tool_calls: calls.filter_map(|(i, call)| ToolCall::of(i, call, is_cut)).collect(),
            logprobs: answer.logprobs.iter().map(AsRef::as_ref).collect(),
        };
        json::bytes(&self.object(said, Some(self.end_of_response())))
    }
}

/// What an object says.
#[derive(Default)]
struct Said<'a> {
    text: &'a str,
    thinking: &'a str,
    tool_calls: Vec<ToolCall<'a>>,
    logprobs: Vec<&'a RawValue>,
}

#[derive(Serialize)]
struct Object<'a> {
    model: &'a str,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    thinking: &'a str,
    done: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<&'a RawValue>,
    #[serde(flatten)]
    end: Option<End>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    thinking: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall<'a>>,
}

#[derive(Serialize)]
struct ToolCall<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    index: usize,
    name: &'a str,
    arguments: Arguments<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Arguments<'a> {
    Written(&'a RawValue),
    None {},
}

impl<'a> ToolCall<'a> {
    /// `None` if the token limit cut the arguments off, so that no client runs half a call.
    fn of(index: usize, Call { id, name, arguments }: &'a Call, is_cut: bool) -> Option<Self> {
        let object = serde_json::from_str::<&RawValue>(arguments).ok();
        let arguments = match object.filter(|object| object.get().starts_with('{')) {
            Some(object) => Arguments::Written(object),
            None if is_cut => return None,
            None => Arguments::None {},
        };
        Some(Self { id, function: Function { index, name, arguments } })
    }
}

/// Last fields of a response. Durations are in nanoseconds.
#[derive(Serialize)]
struct End {
    done_reason: &'static str,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
    prompt_eval_duration: u64,
    eval_count: u64,
    eval_duration: u64,
}

#[cfg(test)]
mod tests;
