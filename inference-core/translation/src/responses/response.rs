//! Writes responses: an object, or the events that build one.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::openai::ErrorDetail;
use serde_json::value::RawValue;

use super::request::{Asked, Turns};
use super::tools::Kind;
use super::view::{
    At, Content, Delta, Details, Error, ErrorEvent, Response, ResponseUsage, Sink, Status, Summary,
    TextDelta,
};
use crate::answer::{Answer, Chunk, Finish, Part, Usage};
use crate::json;
use crate::store::{Stored, Turn, ids};
use crate::writer::{Format, Origin};

mod item;

use item::{Body, CallBody, Item};

/// About how long a response is without texts and repeated fields.
const RESPONSE_BYTES: usize = 1024;

/// State of one response.
#[derive(Debug)]
pub(crate) struct Writer {
    asked: Asked,
    origin: Origin,
    id: String,
    sequence: u64,
    has_started: bool,
    output: Vec<Item>,
    /// True while the last item is being written.
    is_open: bool,
    calls: usize,
    finish: Option<Finish>,
    usage: Option<Usage>,
    service_tier: Option<String>,
    status: Status,
    /// Since the request arrived, as far as the caller told it.
    elapsed: Option<Duration>,
    /// The whole response, if it is to be stored.
    written: Option<Box<[u8]>>,
}

impl Writer {
    /// Starts the response to a request.
    pub(crate) fn new(asked: Asked, origin: Origin) -> Self {
        Self {
            origin,
            id: ids::response(origin.random),
            sequence: 0,
            has_started: false,
            output: Vec::new(),
            is_open: false,
            calls: 0,
            finish: None,
            usage: None,
            service_tier: asked.service_tier.clone(),
            status: match asked.background {
                Some(_) => Status::Queued,
                None => Status::InProgress,
            },
            elapsed: None,
            written: None,
            asked,
        }
    }

    fn response<'a>(&'a self, error: Option<Error<'a>>) -> Response<'a> {
        let reason = match self.finish {
            Some(Finish::ContentFilter) => "content_filter",
            _ => "max_output_tokens",
        };
        let completed_at = self.elapsed.map(|elapsed| self.origin.now + elapsed.as_secs());
        let is_incomplete = self.status == Status::Incomplete;
        Response {
            id: &self.id,
            object: "response",
            created_at: self.origin.now,
            completed_at: completed_at.filter(|_| self.status == Status::Completed),
            status: self.status,
            error,
            incomplete_details: is_incomplete.then_some(Details { reason }),
            model: &self.asked.model,
            output: self.output.iter().map(|item| item.view(&self.asked)).collect(),
            usage: self.usage.map(ResponseUsage::of),
            service_tier: self.service_tier.as_deref(),
        }
    }

    /// Appends the response as JSON.
    fn write(&self, error: Option<Error<'_>>, out: &mut Vec<u8>) {
        json::write(&self.response(error), out);
        self.asked.echo.add_to(out);
    }

    fn sink<'o>(&self, out: &'o mut Vec<u8>) -> Sink<'o> {
        Sink { out: Some(out), sequence: self.sequence }
    }

    fn start(&mut self, sink: &mut Sink<'_>) {
        if std::mem::replace(&mut self.has_started, true) {
            return;
        }
        if self.status == Status::Queued {
            self.status = Status::InProgress;
        } else {
            sink.response("response.created", |out| self.write(None, out));
        }
        sink.response("response.in_progress", |out| self.write(None, out));
    }

    /// True once it has its last event.
    fn is_over(&self) -> bool {
        !matches!(self.status, Status::Queued | Status::InProgress)
    }

    fn part(&mut self, part: Part<'_>, sink: &mut Sink<'_>) {
        match part {
            Part::Reasoning(text) => self.reason(text, sink),
            Part::Text(text, logprobs) => self.text(text, logprobs, sink),
            Part::Call { id, name } => self.call(id, name, sink),
            Part::Arguments(text) => self.arguments(text, sink),
        }
    }

    fn reason(&mut self, delta: &str, sink: &mut Sink<'_>) {
        if !matches!(self.open_body(), Some(Body::Reasoning(_))) {
            self.open("rs", Body::Reasoning(String::new()), sink);
        }
        let output_index = self.output.len().saturating_sub(1);
        let Some(Item { id, body: Body::Reasoning(text), .. }) = self.output.last_mut() else {
            return;
        };
        text.push_str(delta);
        let (item_id, news) = (id.as_str(), Delta { delta });
        let content = Content { content_index: 0, news };
        sink.event("response.reasoning_text.delta", &At { item_id, output_index, news: content });
        if self.asked.has_summary {
            let summary = Summary { summary_index: 0, news: Delta { delta } };
            let at = At { item_id, output_index, news: summary };
            sink.event("response.reasoning_summary_text.delta", &at);
        }
    }

    fn text(&mut self, delta: &str, logprobs: &[&RawValue], sink: &mut Sink<'_>) {
        if !matches!(self.open_body(), Some(Body::Message { .. })) {
            let body = Body::Message { text: String::new(), logprobs: Vec::new() };
            self.open("msg", body, sink);
        }
        let logprobs = if self.asked.has_logprobs { logprobs } else { &[] };
        let output_index = self.output.len().saturating_sub(1);
        let Some(Item { id, body: Body::Message { text, logprobs: all }, .. }) =
            self.output.last_mut()
        else {
            return;
        };
        text.push_str(delta);
        all.extend(logprobs.iter().map(|token| (*token).to_owned()));
        let event = TextDelta { item_id: id, output_index, content_index: 0, delta, logprobs };
        sink.event("response.output_text.delta", &event);
    }

    fn call(&mut self, id: &str, name: &str, sink: &mut Sink<'_>) {
        let tool = self.asked.tools.iter().find(|tool| tool.chat_name == name);
        let call_id = match id {
            "" => ids::output("call", self.origin.random, self.output.len()),
            id => id.into(),
        };
        let call = match tool {
            Some(tool) => {
                CallBody::new(tool.kind, call_id, tool.name.clone(), tool.namespace.clone())
            }
            None => CallBody::new(Kind::Function, call_id, name.into(), None),
        };
        self.calls += 1;
        let kind = match call.kind {
            Kind::Function => "fc",
            Kind::Custom => "ctc",
            Kind::LocalShell => "lsh",
            Kind::Search => "tsc",
        };
        self.open(kind, Body::Call(call), sink);
    }

    fn arguments(&mut self, text: &str, sink: &mut Sink<'_>) {
        let output_index = self.output.len().saturating_sub(1);
        if let Some(Item { id, body: Body::Call(call), .. }) = self.output.last_mut()
            && self.is_open
        {
            call.push(text, &mut |name, delta| {
                let at = At { item_id: id, output_index, news: Delta { delta } };
                sink.event(name, &at);
            });
        }
    }

    /// The body of the open item.
    fn open_body(&self) -> Option<&Body> {
        self.output.last().filter(|_| self.is_open).map(|item| &item.body)
    }

    /// Begins an item.
    fn open(&mut self, kind: &str, body: Body, sink: &mut Sink<'_>) {
        self.close(Status::Completed, sink);
        let output_index = self.output.len();
        let id = ids::output(kind, self.origin.random, output_index);
        let item = Item { id, status: Status::InProgress, body };
        item.write_start(output_index, &self.asked, sink);
        self.output.push(item);
        self.is_open = true;
    }

    /// Ends the open item, if there is one.
    fn close(&mut self, status: Status, sink: &mut Sink<'_>) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let output_index = self.output.len().saturating_sub(1);
        if let Some(item) = self.output.last_mut() {
            item.finish(status, output_index, sink);
            item.write_end(output_index, &self.asked, sink);
        }
    }

    fn finish(&mut self, sink: &mut Sink<'_>) {
        self.status = match self.finish {
            Some(Finish::Length | Finish::ContentFilter) => Status::Incomplete,
            _ => Status::Completed,
        };
        self.close(self.status, sink);
    }
}

impl Format for Writer {
    fn enqueue(&mut self, out: &mut Vec<u8>) -> Option<Stored> {
        let Turns { earlier, input } = self.asked.turns.clone()?;
        if self.status != Status::Queued || self.sequence > 0 {
            return None;
        }
        let mut sink = self.sink(out);
        for name in ["response.created", "response.queued"] {
            sink.response(name, |out| self.write(None, out));
        }
        self.sequence = sink.sequence;
        let mut response = Vec::new();
        self.write(None, &mut response);
        let own = Arc::new(Turn { key: self.origin.random, input, response: response.into() });
        Some(Stored { earlier, own, owner: None })
    }

    fn chunk(&mut self, chunk: &Chunk<'_>, out: &mut Vec<u8>) {
        let mut sink = self.sink(out);
        self.start(&mut sink);
        chunk.parts(self.calls, &mut |part| self.part(part, &mut sink));
        self.sequence = sink.sequence;
        self.finish = chunk.finish().or(self.finish);
        self.usage = chunk.usage.or(self.usage);
        if let Some(tier) = chunk.service_tier()
            && self.service_tier.as_deref() != Some(tier)
        {
            self.service_tier = Some(tier.into());
        }
    }

    fn end(&mut self, out: &mut Vec<u8>) {
        if self.is_over() {
            return;
        }
        let mut sink = self.sink(out);
        self.start(&mut sink);
        self.finish(&mut sink);
        let name = match self.status {
            Status::Incomplete => "response.incomplete",
            _ => "response.completed",
        };
        sink.response(name, |out| self.write(None, out));
        self.sequence = sink.sequence;
    }

    fn fail(&mut self, status: u16, error: &ErrorDetail, out: &mut Vec<u8>) {
        if self.is_over() {
            return;
        }
        let code = error_code(status);
        let mut sink = self.sink(out);
        self.start(&mut sink);
        self.status = Status::Failed;
        if let Some(item) = self.output.last_mut().filter(|_| self.is_open) {
            item.status = Status::Incomplete;
        }
        let (message, param) = (error.message.as_str(), error.param.as_deref());
        sink.event("error", &ErrorEvent { code, message, param });
        let error = Error { code, message };
        sink.response("response.failed", |out| self.write(Some(error), out));
        self.sequence = sink.sequence;
    }

    fn whole(&mut self, answer: Answer) -> Vec<u8> {
        let mut sink = Sink { out: None, sequence: 0 };
        if !answer.reasoning.is_empty() {
            self.reason(&answer.reasoning, &mut sink);
        }
        if !answer.text.is_empty() {
            let logprobs: Vec<&RawValue> = answer.logprobs.iter().map(|token| &**token).collect();
            self.text(&answer.text, &logprobs, &mut sink);
        }
        for call in &answer.calls {
            self.call(&call.id, &call.name, &mut sink);
            self.arguments(&call.arguments, &mut sink);
        }
        (self.finish, self.usage) = (answer.finish, answer.usage);
        self.service_tier = answer.service_tier.or(self.service_tier.take());
        self.finish(&mut sink);
        let texts = answer.text.len() + answer.reasoning.len();
        let mut response = Vec::with_capacity(RESPONSE_BYTES + texts + self.asked.echo.len());
        self.write(None, &mut response);
        self.written = self.asked.turns.is_some().then(|| response.as_slice().into());
        response
    }

    fn set_elapsed(&mut self, elapsed: Duration) {
        self.elapsed = Some(elapsed);
    }

    /// Failed responses are not stored: their last item may be half an item.
    fn stored(&mut self) -> Option<Stored> {
        if !matches!(self.status, Status::Completed | Status::Incomplete) {
            return None;
        }
        let Turns { earlier, input } = self.asked.turns.take()?;
        let response = self.written.take().unwrap_or_else(|| {
            let mut response = Vec::new();
            self.write(None, &mut response);
            response.into()
        });
        let own = Arc::new(Turn { key: self.origin.random, input, response });
        Some(Stored { earlier, own, owner: None })
    }
}

/// The code of an error that would otherwise have had this status.
pub(crate) fn error_code(status: u16) -> &'static str {
    match status {
        429 => "rate_limit_exceeded",
        400..=499 => "invalid_prompt",
        _ => "server_error",
    }
}

#[cfg(test)]
mod tests;
