//! One entry point for all APIs: a request in, a chat completion request and a writer out.

use std::sync::Arc;
use std::time::Duration;

use inference_protocol::openai::{ErrorBody, ErrorDetail, ParseError};
use inference_protocol::sse::{self, DONE};

use crate::answer::{Answer, Chunk};
use crate::body::read_object;
use crate::store::Stored;
use crate::{chat, count, llama_server, messages, ollama, rerank, responses};

/// An API that is served by those of nodes.
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
    /// TEI's rerank: `POST /rerank` with `texts`.
    RerankTexts,
    /// llama-server's completions: `POST /completion`.
    LlamaCompletion,
    /// llama-server's text for a gap: `POST /infill`.
    LlamaInfill,
    /// llama-server's embeddings: `POST /embedding`.
    LlamaEmbedding,
    /// llama-server's properties: `GET /props`. Its body is [`crate::llama_server::props_body`].
    LlamaProps,
}

/// Where ids and times of a response come from.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// A random number, which becomes the response's ids.
    pub random: u128,
    /// Unix time in seconds.
    pub now: u64,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Translation {
    /// An API of nodes serves it.
    Request(Translated),
    /// It needs no endpoint, such as one by which Ollama's clients load a model.
    Reply {
        /// The model that it names, which the caller checks.
        model: Option<String>,
        /// The response.
        body: Vec<u8>,
    },
}

/// A translated request.
#[derive(Debug)]
pub struct Translated {
    /// The body of the request for [`ClientApi::service`].
    pub body: Vec<u8>,
    /// Writes the response.
    pub writer: ResponseWriter,
    /// Set if the response is to be made in the background: the body asks for a stream, and the
    /// client does not wait for its end.
    pub background: Option<Background>,
}

/// How a response is made in the background.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Background {
    /// True if the client wants its events.
    pub is_streamed: bool,
    /// True if its events have logprobs, which only the node that made a token knows.
    pub has_logprobs: bool,
}

/// Finds a stored response of the request's tenant by its id.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<Arc<Stored>>;

/// Translates the body of a request. `lookup` finds the stored responses that it continues or
/// refers to.
///
/// # Errors
/// The body is not JSON, or asks for what cannot be honored, or `lookup` does not find a response.
/// The error names the field.
pub fn translate(
    api: ClientApi,
    body: &[u8],
    origin: Origin,
    lookup: Lookup<'_>,
) -> Result<Translation, ParseError> {
    let fields = read_object(body)?;
    if let Some(load) = ollama::load_request(api, &fields) {
        let body = load.reply(origin);
        return Ok(Translation::Reply { model: Some(load.model), body });
    }
    let mut background = None;
    let (body, format): (_, Box<dyn Format>) = match api {
        ClientApi::Messages => {
            let conversation = messages::request::read(fields)?;
            let writer = messages::response::Writer::new(&conversation, origin);
            (chat::body(&conversation), Box::new(writer))
        }
        ClientApi::CountTokens => {
            let conversation = messages::request::read_prompt(fields)?;
            (chat::body(&conversation), Box::new(count::Writer::MESSAGES))
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
            if request.input.is_empty() {
                return Ok(Translation::Reply { body: writer.empty(), model: request.model });
            }
            (request.body(), Box::new(writer))
        }
        ClientApi::Responses => {
            let (conversation, asked) = responses::request::read(fields, body, lookup)?;
            background = asked.background;
            let writer = responses::response::Writer::new(asked, origin);
            (chat::body(&conversation), Box::new(writer))
        }
        ClientApi::InputTokens => {
            let (conversation, _) = responses::request::read(fields, body, lookup)?;
            (chat::body(&conversation), Box::new(count::Writer::RESPONSES))
        }
        ClientApi::RerankTexts => {
            let (body, writer) = rerank::read(fields)?;
            (body, Box::new(writer))
        }
        ClientApi::LlamaCompletion => {
            let (body, writer) = llama_server::completion::read(fields)?;
            (body, Box::new(writer))
        }
        ClientApi::LlamaInfill => {
            let (body, writer) = llama_server::completion::read_infill(fields)?;
            (body, Box::new(writer))
        }
        ClientApi::LlamaEmbedding => {
            let (body, writer) = llama_server::embedding::read(fields)?;
            (body, Box::new(writer))
        }
        ClientApi::LlamaProps => {
            let (body, writer) = llama_server::props::read(fields)?;
            (body, Box::new(writer))
        }
    };
    Ok(Translation::Request(Translated { body, writer: ResponseWriter { format }, background }))
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
    /// Begins a response in the background: writes its first events, and returns the response.
    fn enqueue(&mut self, _out: &mut Vec<u8>) -> Option<Stored> {
        None
    }
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

    /// Begins a response in the background: its first events, and the response as it is then, which
    /// is in no [`crate::store::Store`] before it has ended. To be called before [`Self::events`].
    /// `None` if the request does not ask for that.
    pub fn enqueue(&mut self) -> Option<(Vec<u8>, Stored)> {
        let mut events = Vec::new();
        let stored = self.format.enqueue(&mut events)?;
        Some((events, stored))
    }

    /// Translates a block of whole events. Comments are left out.
    ///
    /// # Errors
    /// An event is not a chunk of a chat completion.
    pub fn events(&mut self, block: &[u8]) -> Result<Vec<u8>, Unreadable> {
        // The events of some APIs are longer.
        let mut out = Vec::with_capacity(2 * block.len());
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

/// Translates a request that an endpoint has to serve, and that refers to no stored response.
#[cfg(test)]
pub(crate) fn translated(
    api: ClientApi,
    body: &[u8],
    origin: Origin,
) -> Result<Translated, ParseError> {
    match translate(api, body, origin, &|_| None)? {
        Translation::Request(translated) => Ok(translated),
        Translation::Reply { body, .. } => panic!("{}", String::from_utf8_lossy(&body)),
    }
}
