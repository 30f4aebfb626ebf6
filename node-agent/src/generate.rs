//! Engine events -> an OpenAI response, whole or streamed.
//!
//! The response body owns the [`Generation`]: a client that goes away drops the body, and
//! that cancels the request.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::Response;
use inference_core::request::{Event, FinishReason};
use inference_protocol::openai::{
    ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, Completion, CompletionChoice, Delta,
    ResponseMessage, Usage, to_json,
};
use inference_protocol::sse;

use crate::engine_client::Generation;
use crate::error::Error;
use crate::metrics::Record;
use crate::respond::{self, Body};

/// Which of the two shapes an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// `chat.completion`
    Chat,
    /// `text_completion`
    Text,
}

/// What every part of an answer repeats.
#[derive(Debug, Clone)]
pub struct Envelope {
    /// Which shape.
    pub shape: Shape,
    /// `chatcmpl-...` or `cmpl-...`
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    /// The model's name.
    pub model: String,
    /// Whether a stream ends with the usage.
    pub include_usage: bool,
}

/// Waits until the engine has begun; refusals become errors while a status can be sent.
pub async fn begin(generation: &mut Generation) -> Result<u32, Error> {
    match generation.next().await {
        Some(Event::Started { prompt_tokens }) => Ok(prompt_tokens),
        Some(Event::Failed(failure)) => Err(failure.into()),
        Some(_) | None => Err(Error::EngineLost),
    }
}

/// The whole answer.
pub async fn whole(
    envelope: &Envelope,
    mut generation: Generation,
    mut record: Record,
) -> Result<Response<Body>, Error> {
    let prompt_tokens = record.check(begin(&mut generation).await)?;
    let mut text = String::new();
    loop {
        match generation.next().await {
            Some(Event::Text { text: more }) => {
                record.first_token();
                text.push_str(&more);
            }
            Some(Event::Finished { reason, completion_tokens, cached_tokens }) => {
                let usage = Usage::new(prompt_tokens, completion_tokens, cached_tokens);
                record.succeed();
                return Ok(respond::json(envelope.whole(text, reason, usage)));
            }
            Some(Event::Failed(failure)) => return record.check(Err(failure.into())),
            Some(Event::Started { .. }) => {}
            Some(Event::Cancelled) | None => return record.check(Err(Error::EngineLost)),
        }
    }
}

/// The answer as a stream; its head is sent when the engine has begun.
pub async fn stream(
    envelope: Envelope,
    mut generation: Generation,
    mut record: Record,
) -> Result<Response<Body>, Error> {
    let prompt_tokens = record.check(begin(&mut generation).await)?;
    let stream =
        EventStream { envelope, generation, record, prompt_tokens, opened: false, ended: false };
    Ok(respond::event_stream(stream.boxed_unsync()))
}

/// A response body that writes events as the engine generates.
struct EventStream {
    envelope: Envelope,
    generation: Generation,
    record: Record,
    prompt_tokens: u32,
    /// Whether the first chunk, which names the role, was sent.
    opened: bool,
    ended: bool,
}

impl http_body::Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        let mut out = String::new();
        // Everything that is ready goes out in one frame.
        while !this.ended {
            match this.generation.poll_next(cx) {
                Poll::Ready(event) => this.write(event, &mut out),
                Poll::Pending => break,
            }
        }
        match (out.is_empty(), this.ended) {
            (false, _) => Poll::Ready(Some(Ok(Frame::data(Bytes::from(out))))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    }
}

impl EventStream {
    fn write(&mut self, event: Option<Event>, out: &mut String) {
        match event {
            Some(Event::Text { text }) => {
                self.record.first_token();
                self.open(out);
                out.push_str(&sse::data(&self.envelope.chunk(Some(&text), None)));
            }
            Some(Event::Finished { reason, completion_tokens, cached_tokens }) => {
                self.open(out);
                out.push_str(&sse::data(&self.envelope.chunk(None, Some(reason))));
                if self.envelope.include_usage {
                    let usage = Usage::new(self.prompt_tokens, completion_tokens, cached_tokens);
                    out.push_str(&sse::data(&self.envelope.usage_chunk(usage)));
                }
                out.push_str(&sse::data(sse::DONE));
                self.record.succeed();
                self.ended = true;
            }
            Some(Event::Failed(failure)) => self.fail(&failure.into(), out),
            Some(Event::Cancelled) | None => self.fail(&Error::EngineLost, out),
            Some(Event::Started { .. }) => {}
        }
    }

    /// The role comes with the first token, not before: until then the gateway may still
    /// send the request to another node.
    fn open(&mut self, out: &mut String) {
        if !std::mem::replace(&mut self.opened, true) && self.envelope.shape == Shape::Chat {
            out.push_str(&sse::data(&self.envelope.role_chunk()));
        }
    }

    /// One error event and no `[DONE]`: a cut stream must not look like a whole one.
    fn fail(&mut self, error: &Error, out: &mut String) {
        out.push_str(&sse::data(&respond::error_body(error).to_json()));
        self.record.fail(error.code());
        self.ended = true;
    }
}

impl Envelope {
    fn whole(&self, text: String, reason: FinishReason, usage: Usage) -> String {
        let finish_reason = reason_name(reason);
        match self.shape {
            Shape::Chat => to_json(&ChatCompletion {
                id: self.id.clone(),
                object: "chat.completion",
                created: self.created,
                model: self.model.clone(),
                choices: vec![ChatChoice {
                    index: 0,
                    message: ResponseMessage { role: "assistant", content: text, refusal: None },
                    logprobs: None,
                    finish_reason,
                }],
                usage,
            }),
            Shape::Text => to_json(&self.text_completion(&text, Some(finish_reason), Some(usage))),
        }
    }

    fn role_chunk(&self) -> String {
        let delta = Delta { role: Some("assistant"), content: Some("") };
        to_json(&self.chat_chunk(Some((delta, None)), None))
    }

    fn chunk(&self, text: Option<&str>, reason: Option<FinishReason>) -> String {
        let finish_reason = reason.map(reason_name);
        match self.shape {
            Shape::Chat => {
                let delta = Delta { role: None, content: text };
                to_json(&self.chat_chunk(Some((delta, finish_reason)), None))
            }
            Shape::Text => {
                to_json(&self.text_completion(text.unwrap_or_default(), finish_reason, None))
            }
        }
    }

    fn usage_chunk(&self, usage: Usage) -> String {
        match self.shape {
            Shape::Chat => to_json(&self.chat_chunk(None, Some(usage))),
            Shape::Text => {
                let mut chunk = self.text_completion("", None, Some(usage));
                chunk.choices.clear();
                to_json(&chunk)
            }
        }
    }

    fn chat_chunk<'a>(
        &'a self,
        choice: Option<(Delta<'a>, Option<&'static str>)>,
        usage: Option<Usage>,
    ) -> ChatChunk<'a> {
        let choice = choice.map(|(delta, finish_reason)| ChatChunkChoice {
            index: 0,
            delta,
            logprobs: None,
            finish_reason,
        });
        ChatChunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            choices: choice.into_iter().collect(),
            usage,
        }
    }

    fn text_completion<'a>(
        &'a self,
        text: &'a str,
        finish_reason: Option<&'static str>,
        usage: Option<Usage>,
    ) -> Completion<'a> {
        Completion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            choices: vec![CompletionChoice { text, index: 0, logprobs: None, finish_reason }],
            usage,
        }
    }
}

fn reason_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}
