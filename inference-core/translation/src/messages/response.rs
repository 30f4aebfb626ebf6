//! Writes responses: a message, or the events that build one.

use inference_protocol::openai::ErrorDetail;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Error, ErrorBody};
use crate::answer::{Answer, Chunk, Finish, Part, Usage};
use crate::conversation::{Call, Conversation};
use crate::json;
use crate::writer::{Format, Origin};

/// State of one response.
#[derive(Debug)]
pub(crate) struct Writer {
    id: String,
    model: String,
    stop_sequences: Vec<String>,
    has_started: bool,
    /// The block that is being written, and its index.
    open: Option<Kind>,
    index: usize,
    calls: usize,
    finish: Option<Finish>,
    stop: Option<String>,
    usage: Usage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    ToolUse,
}

impl Writer {
    /// Starts the response to a request.
    pub(crate) fn new(conversation: &Conversation, origin: Origin) -> Self {
        Self {
            id: format!("msg_{:032x}", origin.random),
            model: conversation.model.clone().unwrap_or_default(),
            stop_sequences: conversation.sampling.stop.clone(),
            has_started: false,
            open: None,
            index: 0,
            calls: 0,
            finish: None,
            stop: None,
            usage: Usage::default(),
        }
    }

    fn message<'a>(
        &'a self,
        content: Vec<Block<'a>>,
        stop_reason: Option<&'static str>,
    ) -> Message<'a> {
        Message {
            id: &self.id,
            r#type: "message",
            role: "assistant",
            model: &self.model,
            content,
            stop_reason,
            stop_sequence: self.stop_sequence(),
            usage: MessageUsage::of(self.usage),
        }
    }

    /// The sequence of the request that ended the response.
    fn stop_sequence(&self) -> Option<&str> {
        self.stop.as_deref().filter(|stop| self.stop_sequences.iter().any(|known| known == stop))
    }

    fn stop_reason(&self) -> &'static str {
        match self.finish {
            Some(Finish::Length) => "max_tokens",
            Some(Finish::ToolCalls) => "tool_use",
            Some(Finish::ContentFilter) => "refusal",
            // Some engines say `stop` after calls, too.
            _ if self.calls > 0 => "tool_use",
            _ if self.stop_sequence().is_some() => "stop_sequence",
            _ => "end_turn",
        }
    }

    fn start(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.has_started, true) {
            return;
        }
        let message = self.message(Vec::new(), None);
        json::event("message_start", &MessageStart { r#type: "message_start", message }, out);
    }

    /// Makes `block` the open one.
    fn open(&mut self, kind: Kind, block: &Block<'_>, out: &mut Vec<u8>) {
        self.close(out);
        self.open = Some(kind);
        let start =
            BlockStart { r#type: "content_block_start", index: self.index, content_block: block };
        json::event("content_block_start", &start, out);
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if self.open.take().is_some() {
            let stop = BlockStop { r#type: "content_block_stop", index: self.index };
            json::event("content_block_stop", &stop, out);
            self.index += 1;
        }
    }

    fn delta(&self, delta: Delta<'_>, out: &mut Vec<u8>) {
        let index = self.index;
        let delta = BlockDelta { r#type: "content_block_delta", index, delta };
        json::event("content_block_delta", &delta, out);
    }

    fn part(&mut self, part: Part<'_>, out: &mut Vec<u8>) {
        match part {
            Part::Reasoning(thinking) => {
                if self.open != Some(Kind::Thinking) {
                    self.open(
                        Kind::Thinking,
                        &Block::Thinking { thinking: "", signature: "" },
                        out,
                    );
                }
                self.delta(Delta::Thinking { thinking }, out);
            }
            Part::Text(text, _) => {
                if self.open != Some(Kind::Text) {
                    self.open(Kind::Text, &Block::Text { text: "" }, out);
                }
                self.delta(Delta::Text { text }, out);
            }
            Part::Call { id, name } => {
                self.calls += 1;
                let block = Block::ToolUse { id, name, input: None };
                self.open(Kind::ToolUse, &block, out);
            }
            Part::Arguments(partial_json) => {
                if self.open == Some(Kind::ToolUse) {
                    self.delta(Delta::InputJson { partial_json }, out);
                }
            }
        }
    }
}

impl Format for Writer {
    fn chunk(&mut self, chunk: &Chunk<'_>, out: &mut Vec<u8>) {
        self.start(out);
        chunk.parts(self.calls, &mut |part| self.part(part, out));
        self.finish = chunk.finish().or(self.finish);
        self.stop = chunk.stop().or(self.stop.take());
        self.usage = chunk.usage.unwrap_or(self.usage);
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        self.start(out);
        self.close(out);
        let delta =
            EndDelta { stop_reason: self.stop_reason(), stop_sequence: self.stop_sequence() };
        let usage = MessageUsage::of(self.usage);
        json::event("message_delta", &MessageDelta { r#type: "message_delta", delta, usage }, out);
        json::event("message_stop", &MessageStop { r#type: "message_stop" }, out);
    }

    fn fail(&mut self, status: u16, error: &ErrorDetail, out: &mut Vec<u8>) {
        let error = Error::new(status, error);
        json::event("error", &ErrorBody { r#type: "error", error, request_id: None }, out);
    }

    fn whole(&mut self, answer: Answer) -> Vec<u8> {
        let Answer { reasoning, text, calls, .. } = &answer;
        (self.finish, self.calls) = (answer.finish, calls.len());
        (self.stop, self.usage) = (answer.stop.clone(), answer.usage.unwrap_or_default());
        let mut content = Vec::with_capacity(2 + calls.len());
        if !reasoning.is_empty() {
            content.push(Block::Thinking { thinking: reasoning, signature: "" });
        }
        if !text.is_empty() {
            content.push(Block::Text { text });
        }
        content.extend(calls.iter().map(|Call { id, name, arguments }| {
            // Cut off by the token limit, it may be no JSON.
            let input = serde_json::from_str::<&RawValue>(arguments).ok();
            Block::ToolUse { id, name, input: input.filter(|input| input.get().starts_with('{')) }
        }));
        json::bytes(&self.message(content, Some(self.stop_reason())))
    }
}

#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block<'a>>,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
    usage: MessageUsage,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Thinking {
        thinking: &'a str,
        signature: &'static str,
    },
    Text {
        text: &'a str,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        #[serde(serialize_with = "write_input")]
        input: Option<&'a RawValue>,
    },
}

/// An object in any case: SDKs read it into a dictionary.
fn write_input<S: serde::Serializer>(input: &Option<&RawValue>, s: S) -> Result<S::Ok, S::Error> {
    match input {
        Some(input) => input.serialize(s),
        None => serde_json::Map::new().serialize(s),
    }
}

/// Token counts: those of the prompt exclude what came from the cache, unlike in OpenAI's APIs.
#[derive(Serialize)]
struct MessageUsage {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
}

impl MessageUsage {
    fn of(usage: Usage) -> Self {
        Self {
            input_tokens: usage.prompt - usage.cached,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: usage.cached,
            output_tokens: usage.completion,
        }
    }
}

#[derive(Serialize)]
struct MessageStart<'a> {
    r#type: &'static str,
    message: Message<'a>,
}

#[derive(Serialize)]
struct BlockStart<'a> {
    r#type: &'static str,
    index: usize,
    content_block: &'a Block<'a>,
}

#[derive(Serialize)]
struct BlockDelta<'a> {
    r#type: &'static str,
    index: usize,
    delta: Delta<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type")]
enum Delta<'a> {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "input_json_delta")]
    InputJson { partial_json: &'a str },
}

#[derive(Serialize)]
struct BlockStop {
    r#type: &'static str,
    index: usize,
}

#[derive(Serialize)]
struct MessageDelta<'a> {
    r#type: &'static str,
    delta: EndDelta<'a>,
    usage: MessageUsage,
}

#[derive(Serialize)]
struct EndDelta<'a> {
    stop_reason: &'static str,
    stop_sequence: Option<&'a str>,
}

#[derive(Serialize)]
struct MessageStop {
    r#type: &'static str,
}

#[cfg(test)]
mod tests;
