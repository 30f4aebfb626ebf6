//! Turns engine events into an OpenAI response, whole or streamed.
//!
//! A request has one choice or several; each is a separate generation, and they share their
//! prompt's KV cells in the engine. The response body owns them: a client that disconnects drops
//! the body, which cancels them. A gateway that can resume the response on another node always gets
//! a stream with resume marks ([`resume_marks`]).

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::Frame;
use http_body_util::BodyExt;
use hyper::Response;
use inference_core::types::request::{Event, QueryResult, SlotResult};
use inference_protocol::openai::Usage;
use inference_protocol::resume::{Resume, prefill_event};
use inference_protocol::sse;

use crate::engine::client::Generation;
use crate::serve::metrics::Record;
use crate::types::error::Error;
use crate::types::response::{self, Body};

mod batch;
mod choice;
mod envelope;
mod logprobs;
mod resume_marks;

pub(crate) use batch::Batch;
pub(crate) use choice::{Choice, PROMPT_LOGPROBS_MAX, Reading};
pub(crate) use envelope::{Envelope, Shape, TimingsMode};

use choice::ChoiceDelta;
use resume_marks::ResumeMarks;

/// Waits until the engine has started the first choice, so that failures become errors while a
/// status can still be sent. The others may have to wait for a slot.
async fn begin(batch: &mut Batch) -> Result<(), Error> {
    let Some(first) = batch.choices.first_mut() else { return Ok(()) };
    let Some(generation) = &mut first.generation else { return Ok(()) };
    let event = generation.next().await;
    first.take(event).map(drop)
}

/// The result of a question about text and tokens.
pub(crate) async fn receive_result(mut generation: Generation) -> Result<QueryResult, Error> {
    match generation.next().await {
        Some(Event::QueryResult(result)) => Ok(result),
        Some(Event::Failed(failure)) => Err(failure.into()),
        Some(_) | None => Err(Error::EngineLost),
    }
}

/// What became of a request about a slot.
pub(crate) async fn receive_slot(mut generation: Generation) -> Result<SlotResult, Error> {
    match generation.next().await {
        Some(Event::SlotDone(result)) => Ok(result),
        Some(Event::Failed(failure)) => Err(failure.into()),
        Some(_) | None => Err(Error::EngineLost),
    }
}

pub(crate) async fn whole(
    envelope: &Envelope,
    mut batch: Batch,
    mut record: Record,
) -> Result<Response<Body>, Error> {
    let mut all: Vec<Vec<ChoiceDelta>> = batch.choices.iter().map(|_| Vec::new()).collect();
    // Reads all choices at once: the events of a choice that no one reads would pile up.
    let received = poll_fn(|cx| {
        loop {
            for (choice, received) in batch.choices.iter_mut().zip(&mut all) {
                while !choice.is_done()
                    && let Poll::Ready(delta) = choice.poll(cx)
                {
                    // Its prompt was counted when it got a slot.
                    if choice.prompt_tokens > 0 {
                        record.record_start();
                    }
                    if let Some(delta) = delta? {
                        record_delta(&mut record, &delta);
                        received.push(delta);
                    }
                }
            }
            match batch.start() {
                Ok(true) => {}
                Ok(false) if batch.is_done() => return Poll::Ready(Ok(())),
                Ok(false) => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    })
    .await;
    record.check(received)?;
    let choices = batch.choices;
    record.record_usage(usage(&choices));
    record.succeed();
    Ok(response::json(envelope.whole(&choices, all, usage(&choices))))
}

/// Records new parts of a response.
fn record_delta(record: &mut Record, delta: &ChoiceDelta) {
    record.record_text();
    delta.finish.into_iter().for_each(|reason| record.record_finish(reason));
}

/// The response as a stream; its head is sent when the engine has started.
pub(crate) async fn stream(
    envelope: Envelope,
    mut batch: Batch,
    mut record: Record,
) -> Result<Response<Body>, Error> {
    record.check(begin(&mut batch).await)?;
    record.record_start();
    Ok(events(EventStream::new(envelope, batch, record)))
}

/// The response for a gateway that can resume it, or the rest of one that started on another node:
/// a stream with marks, even if the client wants no stream.
pub(crate) async fn resumable(
    envelope: Envelope,
    mut batch: Batch,
    mut record: Record,
    resume: &Resume,
    is_streamed: bool,
) -> Result<Response<Body>, Error> {
    record.check(begin(&mut batch).await)?;
    record.record_start();
    let choices = &batch.choices;
    // Timings and logprobs differ between nodes.
    let varies =
        envelope.timings != TimingsMode::Off || choices.iter().any(|choice| choice.wants_logprobs);
    let marks = ResumeMarks::new(resume, choices.len(), varies);
    let collected = choices.iter().map(|_| Vec::new()).collect();
    let mut stream = EventStream::new(envelope, batch, record);
    stream.marks = Some(marks);
    stream.collected = (!is_streamed).then_some(collected);
    Ok(events(stream))
}

fn events(stream: EventStream) -> Response<Body> {
    response::event_stream(stream.boxed_unsync())
}

/// Sums the usage; the tokens of each prompt count once, however many choices it has.
fn usage(choices: &[Choice]) -> Usage {
    let (mut prompt, mut completion, mut cached, mut reasoning) = (0u32, 0u32, 0u32, 0u32);
    for choice in choices {
        completion = completion.saturating_add(choice.completion_tokens);
        reasoning = reasoning.saturating_add(choice.reasoning_tokens);
        if choice.is_first_of_prompt {
            prompt = prompt.saturating_add(choice.prompt_tokens);
            cached = cached.saturating_add(choice.cached_tokens);
        }
    }
    Usage::new(prompt, completion, cached).with_reasoning(reasoning)
}

/// A response body that writes events as the engine generates.
struct EventStream {
    envelope: Envelope,
    batch: Batch,
    record: Record,
    /// Set if a gateway can resume the response.
    marks: Option<ResumeMarks>,
    /// Set if the client wants no stream: the new parts of each choice.
    collected: Option<Vec<Vec<ChoiceDelta>>>,
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
        loop {
            this.write_ready(cx, &mut out);
            match this.batch.start() {
                _ if this.ended => break,
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => this.fail(&error, &mut out),
            }
        }
        if !this.ended && this.batch.is_done() {
            this.close(&mut out);
        }
        match (out.is_empty(), this.ended) {
            (false, _) => Poll::Ready(Some(Ok(Frame::data(Bytes::from(out))))),
            (true, true) => Poll::Ready(None),
            (true, false) => Poll::Pending,
        }
    }
}

impl EventStream {
    fn new(envelope: Envelope, batch: Batch, record: Record) -> Self {
        Self { envelope, batch, record, marks: None, collected: None, ended: false }
    }

    fn write_ready(&mut self, cx: &mut Context<'_>, out: &mut String) {
        for number in 0..self.batch.choices.len() {
            while !self.ended && !self.batch.choices[number].is_done() {
                match self.batch.choices[number].poll(cx) {
                    Poll::Ready(delta) => self.write(number, delta, out),
                    Poll::Pending => break,
                }
            }
        }
    }

    fn write(
        &mut self,
        number: usize,
        delta: Result<Option<ChoiceDelta>, Error>,
        out: &mut String,
    ) {
        match delta {
            Ok(Some(ChoiceDelta { prefill: Some(progress), .. })) => {
                let chunk = self.envelope.prefill_chunk(&self.batch.choices[number], progress);
                out.push_str(&match self.marks {
                    Some(_) => prefill_event(&chunk),
                    None => sse::data(&chunk),
                });
            }
            Ok(Some(delta)) => {
                record_delta(&mut self.record, &delta);
                if let Err(error) = self.write_delta(number, delta, out) {
                    self.fail(&error, out);
                }
            }
            Ok(None) => {}
            Err(error) => self.fail(&error, out),
        }
    }

    fn write_delta(
        &mut self,
        number: usize,
        delta: ChoiceDelta,
        out: &mut String,
    ) -> Result<(), Error> {
        if let Some(collected) = &mut self.collected {
            // The logprobs of tokens from another node are unknown here, so a response with
            // logprobs cannot resume and starts over.
            if let Some(marks) = &mut self.marks
                && !self.batch.choices[number].wants_logprobs
            {
                marks.add(number, &delta.tokens);
                marks.write_note(number, out);
            }
            collected[number].push(delta);
            return Ok(());
        }
        let opening = self.opening(number);
        let chunks = self.envelope.chunks(&self.batch.choices[number], &delta);
        let chunks: Vec<String> = opening.into_iter().chain(chunks).collect();
        let Some(marks) = &mut self.marks else {
            chunks.iter().for_each(|chunk| out.push_str(&sse::data(chunk)));
            return Ok(());
        };
        // Reports tokens with the first chunk of their text: a gateway that has it can get the
        // other chunks from another node. With logprobs, it reports them with the last chunk,
        // because no logprobs may be lost.
        let reported_with = if self.batch.choices[number].wants_logprobs {
            chunks.len().saturating_sub(1)
        } else {
            0
        };
        for (i, chunk) in chunks.iter().enumerate() {
            marks.add(number, if i == reported_with { &delta.tokens } else { &[] });
            marks.event(number, chunk, out)?;
        }
        Ok(())
    }

    /// The opening chunks are sent with the first token: until then the gateway may still send the
    /// request to another node.
    fn opening(&mut self, number: usize) -> Vec<String> {
        let choice = &mut self.batch.choices[number];
        match std::mem::replace(&mut choice.opened, true) {
            true => Vec::new(),
            false => self.envelope.opening(choice),
        }
    }

    fn close(&mut self, out: &mut String) {
        let usage = usage(&self.batch.choices);
        let (chunk, last) = match self.collected.take() {
            Some(delta) => (None, self.envelope.whole(&self.batch.choices, delta, usage)),
            None => {
                let chunk = self.envelope.include_usage.then(|| self.envelope.usage_chunk(usage));
                (chunk, sse::DONE.to_string())
            }
        };
        match &mut self.marks {
            Some(marks) => marks.close(&usage, chunk.as_deref(), &last, out),
            None => chunk.iter().chain([&last]).for_each(|c| out.push_str(&sse::data(c))),
        }
        self.record.record_usage(usage);
        self.record.succeed();
        self.ended = true;
    }

    /// One error event and no `[DONE]`: a stream that was cut off must not look complete.
    fn fail(&mut self, error: &Error, out: &mut String) {
        out.push_str(&sse::data(&response::error_body(error).to_json()));
        self.record.fail(error.code());
        self.ended = true;
    }
}
