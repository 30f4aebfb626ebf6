//! The JSON of responses, items and events, borrowed from the writer's state.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::answer::Usage;
use crate::json;

/// Where events go, and how many there were.
pub(crate) struct Sink<'o> {
    /// `None` for a response that is not streamed.
    pub(crate) out: Option<&'o mut Vec<u8>>,
    pub(crate) sequence: u64,
}

#[derive(Serialize)]
struct Event<'a, T> {
    r#type: &'static str,
    sequence_number: u64,
    #[serde(flatten)]
    body: &'a T,
}

impl Sink<'_> {
    /// Writes an event.
    pub(crate) fn event<T: Serialize>(&mut self, name: &'static str, body: &T) {
        if let Some(out) = &mut self.out {
            json::event(name, &Event { r#type: name, sequence_number: self.sequence, body }, out);
            self.sequence += 1;
        }
    }

    /// Writes an event with a response, which `write` appends.
    pub(crate) fn response(&mut self, name: &str, write: impl FnOnce(&mut Vec<u8>)) {
        if let Some(out) = &mut self.out {
            let number = self.sequence;
            let head = format!(r#"{{"type":"{name}","sequence_number":{number},"response":"#);
            let data = |out: &mut Vec<u8>| {
                out.extend_from_slice(head.as_bytes());
                write(out);
                out.push(b'}');
            };
            json::event_of(name, data, out);
            self.sequence += 1;
        }
    }
}

/// State of a response or an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Queued,
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// A response but for what it repeats of its request.
#[derive(Serialize)]
pub(crate) struct Response<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created_at: u64,
    pub(crate) completed_at: Option<u64>,
    pub(crate) status: Status,
    pub(crate) error: Option<Error<'a>>,
    pub(crate) incomplete_details: Option<Details>,
    pub(crate) model: &'a str,
    pub(crate) output: Vec<Item<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<ResponseUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) service_tier: Option<&'a str>,
}

#[derive(Clone, Copy, Serialize)]
pub(crate) struct Error<'a> {
    pub(crate) code: &'static str,
    pub(crate) message: &'a str,
}

#[derive(Serialize)]
pub(crate) struct Details {
    pub(crate) reason: &'static str,
}

#[derive(Serialize)]
pub(crate) struct ResponseUsage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Serialize)]
struct InputDetails {
    cached_tokens: u64,
    cache_write_tokens: u64,
}

#[derive(Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

impl ResponseUsage {
    pub(crate) fn of(usage: Usage) -> Self {
        Self {
            input_tokens: usage.prompt,
            input_tokens_details: InputDetails {
                cached_tokens: usage.cached,
                cache_write_tokens: 0,
            },
            output_tokens: usage.completion,
            output_tokens_details: OutputDetails { reasoning_tokens: usage.reasoning },
            total_tokens: usage.total(),
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Item<'a> {
    Reasoning {
        id: &'a str,
        summary: Vec<Part<'a>>,
        content: Vec<Part<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        encrypted_content: Option<String>,
        status: Status,
    },
    Message {
        id: &'a str,
        status: Status,
        role: &'static str,
        content: Vec<Part<'a>>,
    },
    FunctionCall {
        id: &'a str,
        status: Status,
        call_id: &'a str,
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<&'a str>,
        arguments: &'a str,
    },
    CustomToolCall {
        id: &'a str,
        status: Status,
        call_id: &'a str,
        name: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<&'a str>,
        input: &'a str,
    },
    LocalShellCall {
        id: &'a str,
        status: Status,
        call_id: &'a str,
        action: Value,
    },
    ToolSearchCall {
        id: &'a str,
        status: Status,
        call_id: &'a str,
        execution: &'static str,
        arguments: Value,
    },
}

/// A part of an item.
#[derive(Clone, Copy, Serialize)]
#[serde(tag = "type")]
pub(crate) enum Part<'a> {
    #[serde(rename = "output_text")]
    Output { text: &'a str, annotations: [(); 0], logprobs: &'a [Box<RawValue>] },
    #[serde(rename = "reasoning_text")]
    Reasoning { text: &'a str },
    #[serde(rename = "summary_text")]
    Summary { text: &'a str },
}

#[derive(Serialize)]
pub(crate) struct ErrorEvent<'a> {
    pub(crate) code: &'static str,
    pub(crate) message: &'a str,
    pub(crate) param: Option<&'a str>,
}

#[derive(Serialize)]
pub(crate) struct ItemEvent<'a> {
    pub(crate) output_index: usize,
    pub(crate) item: Item<'a>,
}

/// A place in the output, and what is new there.
#[derive(Serialize)]
pub(crate) struct At<'a, T> {
    pub(crate) item_id: &'a str,
    pub(crate) output_index: usize,
    #[serde(flatten)]
    pub(crate) news: T,
}

/// Parts of messages and of reasoning.
#[derive(Serialize)]
pub(crate) struct Content<T> {
    pub(crate) content_index: usize,
    #[serde(flatten)]
    pub(crate) news: T,
}

/// Parts of summaries.
#[derive(Serialize)]
pub(crate) struct Summary<T> {
    pub(crate) summary_index: usize,
    #[serde(flatten)]
    pub(crate) news: T,
}

#[derive(Serialize)]
pub(crate) struct NewPart<'a> {
    pub(crate) part: Part<'a>,
}

#[derive(Serialize)]
pub(crate) struct Delta<'a> {
    pub(crate) delta: &'a str,
}

/// A piece of text; spelled out because there is one for each token.
#[derive(Serialize)]
pub(crate) struct TextDelta<'a> {
    pub(crate) item_id: &'a str,
    pub(crate) output_index: usize,
    pub(crate) content_index: usize,
    pub(crate) delta: &'a str,
    pub(crate) logprobs: &'a [&'a RawValue],
}

#[derive(Serialize)]
pub(crate) struct Text<'a> {
    pub(crate) text: &'a str,
}

#[derive(Serialize)]
pub(crate) struct TextWithLogprobs<'a> {
    pub(crate) text: &'a str,
    pub(crate) logprobs: &'a [Box<RawValue>],
}

#[derive(Serialize)]
pub(crate) struct Arguments<'a> {
    pub(crate) name: &'a str,
    pub(crate) arguments: &'a str,
}

#[derive(Serialize)]
pub(crate) struct InputText<'a> {
    pub(crate) input: &'a str,
}
