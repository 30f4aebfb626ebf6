//! `POST /v1/chat/completions`

use std::sync::Arc;

use hyper::Response;
use inference_core::request::{GenerateRequest, Prompt, Tenant};
use inference_protocol::openai::{self, ChatMessage, ChatRequest, SamplingFields, to_json};
use serde_json::Value;

use super::sampling::{self, invalid};
use super::{Caller, Node, Wanted, answer, check_model, random};
use crate::error::Error;
use crate::generate::Shape;
use crate::respond::Body;

/// Answers a chat.
pub async fn complete(
    node: &Arc<Node>,
    caller: Caller,
    body: &[u8],
) -> Result<Response<Body>, Error> {
    let chat: ChatRequest = openai::parse(body)?;
    check_model(node, &chat.model)?;
    let fields: SamplingFields = openai::parse(body)?;
    answer(node, caller, Shape::Chat, read(chat, fields)?).await
}

fn read(chat: ChatRequest, mut fields: SamplingFields) -> Result<Wanted, Error> {
    refuse_unsupported(&chat)?;
    fields.max_tokens = chat.max_completion_tokens.or(fields.max_tokens);
    let checked = sampling::check(fields, random() as u64)?;
    let messages = read_messages(chat.messages)?;
    let offers_tools = chat.tool_choice.as_ref().is_none_or(|c| c != "none");
    let tools = chat.tools.filter(|t| offers_tools && !t.is_empty());
    Ok(Wanted {
        request: GenerateRequest {
            tenant: Tenant::default(),
            prompt: Prompt::Chat {
                messages: to_json(&messages),
                tools: tools.map(|t| to_json(&t)),
            },
            sampling: checked.sampling,
            max_tokens: checked.max_tokens,
            stop: checked.stop,
        },
        stream: chat.stream.unwrap_or(false),
        include_usage: chat.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
    })
}

fn refuse_unsupported(chat: &ChatRequest) -> Result<(), Error> {
    if chat.messages.is_empty() {
        return Err(invalid("messages", "messages must hold at least one message"));
    }
    if chat.logprobs == Some(true) {
        return Err(invalid("logprobs", "logprobs must be false with this engine"));
    }
    let format = chat.response_format.as_ref().and_then(|f| f.get("type"));
    if format.is_some_and(|kind| kind != "text") {
        return Err(invalid("response_format", "response_format must be text with this engine"));
    }
    let choice = chat.tool_choice.as_ref();
    if choice.is_some_and(|c| !c.is_null() && c != "auto" && c != "none") {
        return Err(invalid("tool_choice", "tool_choice must be auto or none with this engine"));
    }
    Ok(())
}

/// Messages as chat templates expect them: a role, and content that is text or null.
fn read_messages(messages: Vec<ChatMessage>) -> Result<Vec<ChatMessage>, Error> {
    let read = |(i, message)| {
        read_message(message).map_err(|(field, message)| {
            let param = format!("messages[{i}].{field}");
            let message = format!("invalid value for '{param}': {message}");
            Error::Malformed(openai::ParseError { message, param: Some(param) })
        })
    };
    messages.into_iter().enumerate().map(read).collect()
}

type Complaint = (&'static str, &'static str);

fn read_message(mut message: ChatMessage) -> Result<ChatMessage, Complaint> {
    match message.get("role") {
        Some(Value::String(role)) if !role.is_empty() => {}
        Some(_) => return Err(("role", "it must be a string such as 'user'")),
        None => return Err(("role", "it is missing")),
    }
    let content = match message.get_mut("content").map(Value::take) {
        None | Some(Value::Null) => {
            let calls_tools = message.get("tool_calls").is_some_and(|c| !c.is_null());
            if !calls_tools {
                return Err(("content", "it is missing"));
            }
            Value::String(String::new())
        }
        Some(Value::String(text)) => Value::String(text),
        Some(Value::Array(parts)) => Value::String(join_parts(&parts)?),
        Some(_) => return Err(("content", "it must be a string or a list of text parts")),
    };
    message.insert("content".into(), content);
    parse_arguments(&mut message);
    Ok(message)
}

fn join_parts(parts: &[Value]) -> Result<String, Complaint> {
    let text = |part: &Value| match (part.get("type"), part.get("text")) {
        (Some(kind), Some(Value::String(text))) if kind == "text" => Ok(text.clone()),
        _ => Err(("content", "only parts of type text are served by this model")),
    };
    parts.iter().map(text).collect()
}

/// OpenAI sends the arguments of earlier tool calls as JSON text; templates expect the
/// object itself. Text that is not an object stays as it is.
fn parse_arguments(message: &mut ChatMessage) {
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else { return };
    for call in calls {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        let parsed = arguments.as_str().and_then(|text| serde_json::from_str(text).ok());
        if let Some(object @ Value::Object(_)) = parsed {
            *arguments = object;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_json(json: &str) -> Result<Wanted, Error> {
        read(openai::parse(json.as_bytes()).unwrap(), openai::parse(json.as_bytes()).unwrap())
    }

    fn messages_of(json: &str) -> String {
        match read_json(json).map(|w| w.request.prompt) {
            Ok(Prompt::Chat { messages, .. }) => messages,
            other => panic!("{:?}", other.err()),
        }
    }

    #[test]
    fn text_parts_become_one_text() {
        let json = r#"{"model":"m","messages":[{"role":"user","content":
            [{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"x"}]}"#;
        assert_eq!(messages_of(json), r#"[{"role":"user","content":"ab","name":"x"}]"#);
    }

    #[test]
    fn an_assistant_that_only_calls_tools_needs_no_content() {
        let json = r#"{"model":"m","messages":[{"role":"assistant","content":null,"tool_calls":
            [{"function":{"name":"f","arguments":"{\"a\": 1}"}}]}]}"#;
        let expected = r#"[{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]}]"#;
        assert_eq!(messages_of(json), expected);
    }

    #[test]
    fn bad_messages_are_refused_with_their_path() {
        for (message, path) in [
            (r#"{"content":"x"}"#, "messages[0].role"),
            (r#"{"role":7,"content":"x"}"#, "messages[0].role"),
            (r#"{"role":"user"}"#, "messages[0].content"),
            (r#"{"role":"user","content":5}"#, "messages[0].content"),
            (r#"{"role":"user","content":[{"type":"image_url"}]}"#, "messages[0].content"),
        ] {
            let json = format!(r#"{{"model":"m","messages":[{message}]}}"#);
            let error = read_json(&json).err().unwrap();
            assert_eq!(error.param().as_deref(), Some(path), "{message}");
        }
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (field, param) in [
            (r#""logprobs":true"#, "logprobs"),
            (r#""response_format":{"type":"json_object"}"#, "response_format"),
            (r#""tool_choice":"required""#, "tool_choice"),
        ] {
            let json =
                format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}],{field}}}"#);
            assert_eq!(read_json(&json).err().unwrap().param().as_deref(), Some(param));
        }
        let empty = r#"{"model":"m","messages":[]}"#;
        assert_eq!(read_json(empty).err().unwrap().param().as_deref(), Some("messages"));
    }

    #[test]
    fn the_newer_name_of_max_tokens_wins() {
        let json = r#"{"model":"m","messages":[{"role":"user","content":"x"}],
            "max_tokens":5,"max_completion_tokens":7}"#;
        assert_eq!(read_json(json).ok().and_then(|w| w.request.max_tokens), Some(7));
    }
}
