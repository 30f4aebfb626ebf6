//! Tokenizing and templates: `/tokenize`, `/detokenize`, `/apply-template`, `/props` and
//! `/v1/chat/completions/input_tokens`, as in llama-server and vLLM.

use std::sync::Arc;

use hyper::Response;
use inference_core::types::request::{Chat, ModelTexts, Prompt, QueryResult, TextQuery, Token};
use inference_protocol::openai::{
    self, ChatRequest, Detokenize, Detokenized, InputTokens, PropsRequest, RawObject, Rendered,
    Tokenize, Tokenized, to_json,
};
use inference_protocol::resume::Resume;
use serde_json::{Value, json};

use super::sampling::invalid;
use super::{Caller, chat, check_model, listing};
use crate::engine::client::EngineState;
use crate::serve::node::Node;
use crate::serve::stream::receive_result;
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// `POST /tokenize`
pub(super) async fn tokenize(
    node: &Arc<Node>,
    caller: Caller,
    resume: Option<Resume>,
    body: &[u8],
) -> Result<Response<Body>, Error> {
    let (question, with_pieces) = read_tokenize(node, &resume, &RawObject::parse(body)?)?;
    let (tokens, pieces) = tokens(query(node, caller, question).await?);
    let count = tokens.len();
    let listed = match with_pieces {
        true => tokens.iter().zip(&pieces).map(|(id, bytes)| with_piece(*id, bytes)).collect(),
        false => tokens.into_iter().map(Value::from).collect(),
    };
    let max_model_len = context_tokens(node);
    Ok(response::json(to_json(&Tokenized { tokens: listed, count, max_model_len })))
}

/// True in the result if the response contains the pieces of the text.
fn read_tokenize(
    node: &Node,
    resume: &Option<Resume>,
    body: &RawObject<'_>,
) -> Result<(TextQuery, bool), Error> {
    let request: Tokenize = body.read()?;
    check_model(node, Resume::model(resume, request.model.as_deref()))?;
    let with_pieces = request.with_pieces.unwrap_or(false);
    let question = match (request.content, request.prompt, request.messages) {
        (Some(text), None, None) => TextQuery::TokenizeText {
            text,
            beginning: request.add_special.unwrap_or(false),
            control: request.parse_special.unwrap_or(true),
            with_pieces,
        },
        (None, Some(text), None) => TextQuery::TokenizeText {
            text,
            beginning: request.add_special.unwrap_or(true),
            control: true,
            with_pieces,
        },
        (None, None, Some(_)) => {
            let chat: ChatRequest = body.read()?;
            chat::check_template(node, &chat)?;
            let prompt = Prompt::Chat(chat::conversation(chat)?);
            TextQuery::Tokenize { prompt, with_pieces }
        }
        _ => return Err(invalid("content", "give one of content, prompt and messages")),
    };
    Ok((question, with_pieces))
}

/// As in llama-server, a piece that is not valid UTF-8 is a list of bytes.
fn with_piece(id: Token, bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({"id": id, "piece": text}),
        Err(_) => json!({"id": id, "piece": bytes}),
    }
}

/// `POST /detokenize`
pub(super) async fn detokenize(
    node: &Arc<Node>,
    caller: Caller,
    body: &[u8],
) -> Result<Response<Body>, Error> {
    let Detokenize { tokens } = openai::parse(body)?;
    let text = text(query(node, caller, TextQuery::Detokenize(tokens)).await?);
    Ok(response::json(to_json(&Detokenized { content: &text, prompt: &text })))
}

/// `POST /apply-template`
pub(super) async fn apply_template(
    node: &Arc<Node>,
    caller: Caller,
    resume: Option<Resume>,
    body: &[u8],
) -> Result<Response<Body>, Error> {
    let question = TextQuery::Render(read_chat(node, &resume, body)?);
    let text = text(query(node, caller, question).await?);
    Ok(response::json(to_json(&Rendered { prompt: &text })))
}

/// `POST /v1/chat/completions/input_tokens`
pub(super) async fn count(
    node: &Arc<Node>,
    caller: Caller,
    resume: Option<Resume>,
    body: &[u8],
) -> Result<Response<Body>, Error> {
    let prompt = Prompt::Chat(read_chat(node, &resume, body)?);
    let question = TextQuery::Tokenize { prompt, with_pieces: false };
    let (tokens, _) = tokens(query(node, caller, question).await?);
    let object = "response.input_tokens";
    Ok(response::json(to_json(&InputTokens { object, input_tokens: tokens.len() })))
}

/// `/props`. The gateway asks by `POST` with a model.
pub(super) async fn props(
    node: &Arc<Node>,
    caller: Caller,
    body: Option<(&[u8], Option<Resume>)>,
) -> Result<Response<Body>, Error> {
    if let Some((body, resume)) = body {
        let body = RawObject::parse(body)?;
        if body.fields().any(|field| field.name != "model") {
            return Err(invalid("props", "the properties of a model cannot be changed"));
        }
        let PropsRequest { model } = body.read()?;
        check_model(node, Resume::model(&resume, model.as_deref()))?;
    }
    let texts = match query(node, caller, TextQuery::Texts).await? {
        QueryResult::Texts(texts) => texts,
        QueryResult::Text(_) | QueryResult::Tokens(..) => ModelTexts::default(),
    };
    Ok(listing::props(node, &texts))
}

/// Parses a chat whose model may be omitted, because the node has only one.
fn read_chat(node: &Node, resume: &Option<Resume>, body: &[u8]) -> Result<Chat, Error> {
    let chat: ChatRequest = openai::parse(body)?;
    check_model(node, Resume::model(resume, chat.model.as_deref()))?;
    chat::check_template(node, &chat)?;
    chat::conversation(chat)
}

async fn query(node: &Node, caller: Caller, query: TextQuery) -> Result<QueryResult, Error> {
    receive_result(node.engine.query(caller.tenant, query, caller.via)?).await
}

fn tokens(result: QueryResult) -> (Vec<Token>, Vec<Vec<u8>>) {
    match result {
        QueryResult::Tokens(tokens, pieces) => (tokens, pieces),
        QueryResult::Text(_) | QueryResult::Texts(_) => Default::default(),
    }
}

fn text(result: QueryResult) -> String {
    match result {
        QueryResult::Text(text) => text,
        QueryResult::Tokens(..) | QueryResult::Texts(_) => String::new(),
    }
}

fn context_tokens(node: &Node) -> u32 {
    match node.engine.state() {
        EngineState::Ready(facts) => facts.context_tokens,
        _ => 0,
    }
}
