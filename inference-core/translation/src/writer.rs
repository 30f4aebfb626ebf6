//! One entry point for all APIs: a request in, a chat completion request and a writer out.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::openai::{ErrorBody, ErrorDetail, ParseError};
use inference_protocol::sse::{self, DONE};
use serde_json::Value;

use crate::answer::{Answer, Chunk};
use crate::fault::Fields;
use crate::store::Stored;
use crate::{chat, messages, ollama, responses};

/// An API that is served by chat completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientApi {
    /// Anthropic's Messages: `POST /v1/messages`.
    Messages,
    /// Anthropic's count of a prompt's tokens: `POST /v1/messages/count_tokens`.
    CountTokens,
    /// Ollama's chat: `POST /api/chat`.
    OllamaChat,
    /// Ollama's completion of a prompt: `POST /api/generate`.
    OllamaGenerate,
    /// Ollama's embeddings: `POST /api/embed`.
    OllamaEmbed,
    /// Ollama's older embeddings: `POST /api/embeddings`.
    OllamaEmbeddings,
    /// OpenAI's Responses: `POST /v1/responses`.
    Responses,
    /// OpenAI's count of a Responses request's tokens: `POST /v1/responses/input_tokens`.
    InputTokens,
}

/// Where ids and times of a response come from.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// A random number, which becomes the response's ids.
    pub random: u128,
    /// Unix time in seconds.
    pub now: u64,
}

/// A translated request.
#[derive(Debug)]
pub struct Translated {
    /// The body of the chat completion request.
    pub body: Vec<u8>,
    /// Writes the response.
    pub writer: ResponseWriter,
}

/// The response to a request that needs no endpoint, such as one of Ollama's clients that loads a
/// model; `None` for all others. To be called before [`translate`].
pub fn reply(api: ClientApi, body: &[u8], origin: Origin) -> Option<Vec<u8>> {
    match api {
        ClientApi::Messages
        | ClientApi::CountTokens
        | ClientApi::Responses
        | ClientApi::InputTokens => None,
        ClientApi::OllamaChat | ClientApi::OllamaGenerate => {
            Some(ollama::load_request(api, body)?.reply(origin))
        }
        ClientApi::OllamaEmbed | ClientApi::OllamaEmbeddings => {
            let (request, writer) = ollama::embed::read(api, read_object(body).ok()?).ok()?;
            request.input.is_empty().then(|| writer.empty())
        }
    }
}

/// Finds a stored response of the request's tenant by its id.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<Arc<Stored>>;

/// Translates the body of a request, without stored responses: see [`translate_with`].
///
/// # Errors
/// The body is not JSON, or asks for what cannot be honored. The error names the field.
pub fn translate(api: ClientApi, body: &[u8], origin: Origin) -> Result<Translated, ParseError> {
    translate_with(api, body, origin, &|_| None)
}

/// Translates the body of a request. `lookup` finds the stored responses that it continues or
/// refers to.
///
/// # Errors
/// The body is not JSON, or asks for what cannot be honored, or `lookup` does not find a response.
/// The error names the field.
pub fn translate_with(
    api: ClientApi,
    body: &[u8],
    origin: Origin,
    lookup: Lookup<'_>,
) -> Result<Translated, ParseError> {
    let fields = read_object(body)?;
    let (body, format): (_, Box<dyn Format>) = match api {
        ClientApi::Messages => {
            let conversation = messages::request::read(fields)?;
            let writer = messages::response::Writer::new(&conversation, origin);
            (chat::body(&conversation), Box::new(writer))
        }
        ClientApi::CountTokens => {
            let conversation = messages::request::read_prompt(fields)?;
            (chat::body(&conversation), Box::new(messages::count::Writer))
        }
        ClientApi::OllamaChat => {
            let conversation = ollama::request::chat(fields)?;
            let writer = ollama::response::Writer::chat(&conversation, origin);
            (chat::body(&conversation), Box::new(writer))
        }
        ClientApi::OllamaGenerate => {
            let conversation = ollama::request::generate(fields)?;
            let writer = ollama::response::Writer::generate(&conversation, origin);
            (chat::body(&conversation), Box::new(writer))
        }
        ClientApi::OllamaEmbed | ClientApi::OllamaEmbeddings => {
            let (request, writer) = ollama::embed::read(api, fields)?;
            (request.body(), Box::new(writer))
        }
        ClientApi::Responses => {
            let (conversation, asked) = responses::request::read(fields, origin, lookup)?;
            let writer = responses::response::Writer::new(asked, origin);
            (chat::body(&conversation), Box::new(writer))
        }
        ClientApi::InputTokens => {
            let (conversation, _) = responses::request::read(fields, origin, lookup)?;
            (chat::body(&conversation), Box::new(responses::count::Writer))
        }
    };
    Ok(Translated { body, writer: ResponseWriter { format } })
}

/// Most JSON values of a request. Parsed, each takes some 100 bytes, whatever its length.
const VALUES_MAX: usize = 200_000;

pub(crate) fn read_object(body: &[u8]) -> Result<Fields, ParseError> {
    if count_values(body) > VALUES_MAX {
        let message = format!("the request body has more than {VALUES_MAX} JSON values");
        return Err(ParseError { message, param: None });
    }
    let value: Value = serde_json::from_slice(body).map_err(|e| ParseError {
        message: format!("the request body is not valid JSON: {e}"),
        param: None,
    })?;
    Fields::of(value).map_err(|_| ParseError {
        message: "the request body is not a JSON object".into(),
        param: None,
    })
}

/// Counts the values of a JSON text by what separates them; at least as many as a parser would
/// read.
fn count_values(json: &[u8]) -> usize {
    let (mut values, mut rest) = (0, json);
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'"' => rest = after_string(rest),
            b',' | b'[' | b'{' => values += 1,
            _ => {}
        }
    }
    values
}

/// What follows the string whose beginning was read.
fn after_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr::memchr2(b'"', b'\\', rest) {
        let skipped = if rest[at] == b'"' { 1 } else { 2 };
        let is_end = rest[at] == b'"';
        rest = rest.get(at + skipped..).unwrap_or_default();
        if is_end {
            return rest;
        }
    }
    &[]
}

/// How the response is streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamFormat {
    /// Server-sent events. Comments between them keep a connection alive.
    Events,
    /// A JSON value in each line. There are no comments, so nothing may be sent between lines.
    JsonLines,
}

impl StreamFormat {
    /// Value of the `content-type` header.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Events => "text/event-stream",
            Self::JsonLines => "application/x-ndjson",
        }
    }

    /// True if comments of server-sent events may be sent.
    pub fn has_comments(self) -> bool {
        self == Self::Events
    }
}

/// Writes responses in the format of one API. State of one response.
pub(crate) trait Format: std::fmt::Debug + Send + Sync {
    /// How it streams.
    fn stream_format(&self) -> StreamFormat {
        StreamFormat::Events
    }
    /// Takes the time since the request arrived.
    fn set_elapsed(&mut self, _elapsed: Duration) {}
    /// Takes a chunk of a stream.
    fn chunk(&mut self, chunk: &Chunk<'_>, out: &mut Vec<u8>);
    /// Ends a stream.
    fn end(&mut self, out: &mut Vec<u8>);
    /// Ends a stream that broke.
    fn fail(&mut self, status: u16, error: &ErrorDetail, out: &mut Vec<u8>);
    /// Writes a whole response.
    fn whole(&mut self, answer: Answer) -> Vec<u8>;
    /// Translates a whole response.
    fn translate(&mut self, body: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let answer = Answer::read(body).map_err(|_| Unreadable)?;
        Ok(self.whole(answer))
    }
    /// What to store of a response that has ended.
    fn stored(&mut self) -> Option<Stored> {
        None
    }
}

/// Turns a chat completion, whole or streamed, into the response that the client expects.
#[derive(Debug)]
pub struct ResponseWriter {
    format: Box<dyn Format>,
}

/// The endpoint's response is not a chat completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable;

impl ResponseWriter {
    /// How it streams.
    pub fn stream_format(&self) -> StreamFormat {
        self.format.stream_format()
    }

    /// Sets the time since the request arrived, for APIs whose responses contain durations. To be
    /// called before [`Self::events`] and [`Self::whole`]; without it, durations are 0 unless the
    /// endpoint reports them.
    pub fn set_elapsed(&mut self, elapsed: Duration) {
        self.format.set_elapsed(elapsed);
    }

    /// Translates a block of whole events. Comments are left out.
    ///
    /// # Errors
    /// An event is not a chunk of a chat completion.
    pub fn events(&mut self, block: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let mut out = Vec::with_capacity(block.len());
        for payload in sse::payloads(block) {
            if payload == DONE.as_bytes() {
                self.format.end(&mut out);
            } else {
                self.payload(payload, &mut out)?;
            }
        }
        Ok(out)
    }

    fn payload(&mut self, payload: &[u8], out: &mut Vec<u8>) -> Result<(), Unreadable> {
        // A node's last event, if it failed.
        if payload.starts_with(br#"{"error""#)
            && let Ok(ErrorBody { error }) = serde_json::from_slice(payload)
        {
            self.format.fail(500, &error, out);
            return Ok(());
        }
        let chunk = Chunk::read(payload).map_err(|_| Unreadable)?;
        self.format.chunk(&chunk, out);
        Ok(())
    }

    /// The end of a stream that broke after its head, for an error that would otherwise have had
    /// this status.
    pub fn fail(&mut self, status: u16, error: &ErrorDetail) -> Vec<u8> {
        let mut out = Vec::new();
        self.format.fail(status, error, &mut out);
        out
    }

    /// Translates a whole response.
    ///
    /// # Errors
    /// It is not a chat completion.
    pub fn whole(&mut self, completion: &[u8]) -> Result<Vec<u8>, Unreadable> {
        self.format.translate(completion)
    }

    /// What to put into a [`crate::store::Store`], once, after the response has ended: `None` if
    /// the API or the request stores nothing, or the response failed.
    pub fn stored(&mut self) -> Option<Stored> {
        self.format.stored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_and_the_contents_of_strings_are_not() {
        assert_eq!(count_values(br#"{"a":[1,2,{"b":3}],"c":"x,y[z\",{\\"}"#), 6);
        assert_eq!(count_values(br#"["unfinished, "#), 1);
        assert_eq!(count_values(b"[\"\\"), 1);
    }

    #[test]
    fn a_small_body_with_a_million_values_is_refused_before_it_is_parsed() {
        let body = format!(r#"{{"messages":[{}0]}}"#, "0,".repeat(1_000_000));
        let origin = Origin { random: 0, now: 0 };
        let error = translate(ClientApi::Messages, body.as_bytes(), origin).unwrap_err();
        assert!(error.message.contains("200000 JSON values"), "{}", error.message);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        let origin = Origin { random: 0, now: 0 };
        for body in ["", "{", "[1]", "7", "{}{}", "\u{0}"] {
            assert!(translate(ClientApi::Messages, body.as_bytes(), origin).is_err(), "{body}");
        }
    }
}
