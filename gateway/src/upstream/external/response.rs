//! PURE. Reads responses of external endpoints and makes them OpenAI's. Engines differ: comments
//! between events, errors of any form, reasons to finish of their own, and usage in every chunk or
//! in none. Clients, the translation to other APIs, and the accounting behind this see one form.
//!
//! - Comments become one comment of ours, so that no endpoint can write resume marks.
//! - `finish_reason` is one of OpenAI's, and every choice of a complete response has one.
//! - Usage is in one place: the whole response, or an event without choices before `[DONE]`. What
//!   the endpoint does not report is estimated.
//! - An error is an event with `error`, and the last one.
//! - A complete stream ends with `[DONE]`.

use bytes::Bytes;
use inference_protocol::resume::Usage;
use inference_protocol::sse::{self, DONE};
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use crate::scheduler::progress::event::Event;
use crate::scheduler::usage::UsageLimits;
use crate::types::api::Api;

mod calls;
mod choices;
mod error;
mod field;
mod finish;
#[cfg(test)]
mod tests;

use choices::{Choices, Finished};

/// What stands for the comments of an endpoint. Keeps the client connected.
const KEEP_ALIVE: &str = ": keep-alive\n\n";

/// Properties of the request that its response is read with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResponseInfo {
    /// The API endpoint.
    pub api: Api,
    /// Upper bounds on the tokens that the request can use.
    pub limits: UsageLimits,
    /// Most tokens per choice, if limited.
    pub tokens_max: Option<u64>,
}

/// The endpoint's response is an error, or not what the API returns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failed(pub Vec<u8>);

impl ResponseInfo {
    /// The response with a complete usage, and the usage.
    fn fill_usage(&self, reported: Option<Value>, generated: u64) -> (Value, Usage) {
        let mut usage = match reported {
            Some(Value::Object(usage)) => usage,
            _ => Map::new(),
        };
        let told = |name: &str| usage.get(name).and_then(Value::as_u64).filter(|n| *n > 0);
        let (prompt, completion) = (told("prompt_tokens"), told("completion_tokens"));
        let total = told("total_tokens");
        let estimated = self.limits.estimate(generated);
        // Nothing was generated, or it is not reported.
        let completion = completion.unwrap_or(estimated.completion);
        let rest = total.map(|total| total.saturating_sub(completion)).filter(|rest| *rest > 0);
        let prompt = prompt.or(rest).unwrap_or(estimated.prompt);
        usage.insert("prompt_tokens".into(), prompt.into());
        if self.api.generates() {
            usage.insert("completion_tokens".into(), completion.into());
        }
        let total = total.unwrap_or(0).max(prompt.saturating_add(completion));
        usage.insert("total_tokens".into(), total.into());
        (Value::Object(usage), Usage { prompt, completion, cached: 0 })
    }

    /// True if a response of so many tokens was ended by their limit.
    fn is_full(&self, completion: u64, choices: usize) -> bool {
        self.tokens_max.is_some_and(|max| completion >= max.saturating_mul(choices.max(1) as u64))
    }
}

/// Reads a whole response.
///
/// # Errors
/// It is an error.
pub(crate) fn whole(body: &Bytes, info: &ResponseInfo) -> Result<Bytes, Failed> {
    match info.api.generates() {
        true => generated(body, info),
        false => field::with_usage(body, info),
    }
}

fn generated(body: &[u8], info: &ResponseInfo) -> Result<Bytes, Failed> {
    let mut response = match serde_json::from_slice(body) {
        Ok(Value::Object(response)) => response,
        Ok(_) => return Err(Failed(error::of_kind("no_choices"))),
        // Escaped surrogates may be unpaired, which is no error of the response as such.
        Err(_) => return field::with_usage(body, info),
    };
    if error::is_error(&response) {
        return Err(Failed(error::canonical(Value::Object(response))));
    }
    if !response.get("choices").is_some_and(Value::is_array) {
        return Err(Failed(error::of_kind("no_choices")));
    }
    let tokens = Event::read(body).tokens;
    let reported = response.get_mut("usage").map(Value::take);
    let (usage, used) = info.fill_usage(reported, tokens);
    response.insert("usage".into(), usage);
    let mut choices = Choices::default();
    choices.read(&mut response).map_err(Failed)?;
    let full = info.is_full(used.completion, choices.len());
    choices.finish_whole(&mut response, full);
    Ok(Value::Object(response).to_string().into())
}

/// Reads an event stream.
#[derive(Debug)]
pub(crate) struct StreamReader {
    info: ResponseInfo,
    choices: Choices,
    /// The last chunk without its choices: what further chunks are made of.
    last: Map<String, Value>,
    /// The event that reports the usage, or the usage of the last chunk that has one.
    usage: Option<Value>,
    /// Estimated tokens so far.
    generated: u64,
    /// The error with which the stream began.
    refused: Option<Vec<u8>>,
    is_done: bool,
}

impl StreamReader {
    pub(crate) fn new(info: ResponseInfo) -> Self {
        let (choices, last) = (Choices::default(), Map::new());
        Self { info, choices, last, usage: None, generated: 0, refused: None, is_done: false }
    }

    /// The error with which the stream began, if it did.
    pub(crate) fn refused(&self) -> Option<&[u8]> {
        self.refused.as_deref()
    }

    /// The usage that the endpoint has reported so far.
    pub(crate) fn reported(&self) -> Option<Usage> {
        let reported = self.usage.clone()?;
        Some(self.info.fill_usage(Some(reported), self.generated).1)
    }

    /// Reads a block of whole events and returns those for the client.
    pub(crate) fn read(&mut self, block: &[u8]) -> Bytes {
        let mut events = String::new();
        let mut has_comment = false;
        for event in sse::events(block) {
            if self.is_done {
                break;
            }
            match Payload::of(event) {
                Payload::None => has_comment |= event.starts_with(b":"),
                Payload::Data(data) => self.read_data(&data, &mut events),
                Payload::Error(data) => {
                    let error = serde_json::from_slice(&data).unwrap_or_default();
                    self.fail(error::canonical(error), &mut events);
                }
            }
        }
        if events.is_empty() && has_comment && !self.is_done {
            events.push_str(KEEP_ALIVE);
        }
        events.into()
    }

    /// Reads the end of the stream: `rest` is what follows the last whole event. `None` if the
    /// response is incomplete.
    pub(crate) fn end(&mut self, rest: &[u8]) -> Option<Bytes> {
        let rest = if Payload::of(rest).is_whole() { rest } else { b"" };
        let mut events = String::from_utf8(self.read(rest).into()).ok()?;
        if !self.is_done && self.choices.is_finished() {
            self.finish(&mut events);
        }
        self.is_done.then(|| events.into())
    }

    fn read_data(&mut self, data: &[u8], events: &mut String) {
        let data = data.trim_ascii();
        if data.is_empty() {
            return;
        }
        if data == DONE.as_bytes() {
            return self.finish(events);
        }
        match serde_json::from_slice(data) {
            Ok(Value::Object(chunk)) if error::is_error(&chunk) => {
                self.fail(error::canonical(Value::Object(chunk)), events);
            }
            Ok(Value::Object(chunk)) => {
                self.generated = self.generated.saturating_add(Event::read(data).tokens);
                self.read_chunk(chunk, data, events);
            }
            // Escaped surrogates may be unpaired.
            Err(_) if data.starts_with(b"{") && data.ends_with(b"}") => {
                self.generated = self.generated.saturating_add(1);
                events.push_str(&one_line(data));
            }
            _ => self.fail(error::of_kind("no_chunk"), events),
        }
    }

    fn read_chunk(&mut self, mut chunk: Map<String, Value>, data: &[u8], events: &mut String) {
        let has_choices =
            chunk.get("choices").and_then(Value::as_array).is_some_and(|c| !c.is_empty());
        let usage = chunk.get("usage").filter(|usage| usage.is_object()).cloned();
        if let Some(usage) = usage {
            self.usage = Some(usage);
            if !has_choices {
                // It goes before the end, wherever it came.
                chunk.shift_remove("usage");
                self.last = chunk;
                return;
            }
        }
        let mut is_changed = chunk.shift_remove("usage").is_some();
        match self.choices.read(&mut chunk) {
            Ok(changed) => is_changed |= changed,
            Err(error) => return self.fail(error, events),
        }
        match is_changed {
            true => events.push_str(&sse::data(&openai_json(&chunk))),
            false => events.push_str(&one_line(data)),
        }
        if has_choices {
            chunk.shift_remove("choices");
            self.last = chunk;
        }
    }

    /// Ends the response with what it lacks.
    fn finish(&mut self, events: &mut String) {
        if self.choices.len() == 0 && self.generated == 0 {
            return self.fail(error::of_kind("empty"), events);
        }
        let (usage, used) = self.info.fill_usage(self.usage.take(), self.generated);
        let full = self.info.is_full(used.completion, self.choices.len());
        for Finished { index, reason } in self.choices.unfinished(full) {
            let mut choice = json!({"index": index, "finish_reason": reason});
            match self.info.api {
                Api::Completions => choice["text"] = "".into(),
                _ => choice["delta"] = json!({}),
            }
            events.push_str(&sse::data(&openai_json(&self.chunk(json!([choice])))));
        }
        let mut last = self.chunk(json!([]));
        last.insert("usage".into(), usage);
        events.push_str(&sse::data(&openai_json(&last)));
        events.push_str(&sse::data(DONE));
        self.is_done = true;
    }

    /// A chunk like the last one, with these choices.
    fn chunk(&self, choices: Value) -> Map<String, Value> {
        let object = match self.info.api {
            Api::Completions => "text_completion",
            _ => "chat.completion.chunk",
        };
        let mut chunk = self.last.clone();
        chunk.entry("object").or_insert_with(|| object.into());
        chunk.insert("choices".into(), choices);
        chunk
    }

    fn fail(&mut self, error: Vec<u8>, events: &mut String) {
        events.push_str(&one_line(&error));
        self.is_done = true;
        self.refused = Some(error).filter(|_| self.generated == 0);
    }
}

fn openai_json(object: &Map<String, Value>) -> String {
    serde_json::to_string(object).unwrap_or_default()
}

/// An event with this JSON. Line breaks in JSON are spaces between values.
fn one_line(json: &[u8]) -> String {
    sse::data(&String::from_utf8_lossy(json).replace(['\n', '\r'], " "))
}

/// What an event carries.
enum Payload {
    /// Nothing: a comment, a name, or a blank line.
    None,
    Data(Vec<u8>),
    Error(Vec<u8>),
}

impl Payload {
    fn of(event: &[u8]) -> Self {
        let (mut data, mut is_error): (Option<Vec<u8>>, bool) = (None, false);
        for line in event.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
            let (name, value) = (&line[..colon], &line[colon + 1..]);
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match name {
                b"data" => append(&mut data, value),
                // Older llama-servers name the field of an error so.
                b"error" => {
                    is_error = true;
                    append(&mut data, value);
                }
                b"event" => is_error |= value == b"error",
                _ => {}
            }
        }
        match data {
            Some(data) if is_error => Self::Error(data),
            Some(data) => Self::Data(data),
            None => Self::None,
        }
    }
}

impl Payload {
    /// True unless the end of the stream cut it off.
    fn is_whole(&self) -> bool {
        match self {
            Self::None => true,
            Self::Data(data) | Self::Error(data) => {
                data.trim_ascii() == DONE.as_bytes()
                    || serde_json::from_slice::<IgnoredAny>(data).is_ok()
            }
        }
    }
}

/// Lines of data are one text.
fn append(data: &mut Option<Vec<u8>>, line: &[u8]) {
    let data = match data {
        Some(data) => {
            data.push(b'\n');
            data
        }
        None => data.insert(Vec::new()),
    };
    data.extend_from_slice(line);
}
