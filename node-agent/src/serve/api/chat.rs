//! `POST /v1/chat/completions`

use std::sync::Arc;

use hyper::Response;
use inference_core::types::constraint::Constraint;
use inference_core::types::request::{Chat, GenerationPrompt, Prompt};
use inference_core::types::tool_choice::ToolChoice;
use inference_protocol::openai::{self, ChatMessage, ChatRequest, Endpoint, RawObject, to_json};
use inference_protocol::resume::Resume;
use serde_json::Value;

use super::generate::{self, CheckedRequest, InputPrompt, Origin};
use super::sampling::{self, Absent, invalid};
use super::tools::{self, OfferedTools};
use super::{Caller, check_model, constraint, prediction, reasoning};
use crate::serve::node::Node;
use crate::serve::stream::Shape;
use crate::types::error::Error;
use crate::types::response::Body;

/// Handles a chat completion request.
pub(super) async fn complete(
    node: &Arc<Node>,
    caller: Caller,
    resume: Option<Resume>,
    body: &[u8],
) -> Result<Response<Body>, Error> {
    let (checked, origin) = read(node, resume, &RawObject::parse(body)?)?;
    generate::generate(node, caller, checked, origin).await
}

fn read(
    node: &Node,
    resume: Option<Resume>,
    body: &RawObject<'_>,
) -> Result<(CheckedRequest, Origin), Error> {
    let chat: ChatRequest = body.read()?;
    check_model(node, Resume::model(&resume, chat.model.as_deref()))?;
    let origin = Origin::new(resume);
    let absent =
        Absent { seed: origin.seed(), max_tokens: None, sampling: node.sampling_defaults() };
    check_template(node, &chat)?;
    Ok((check(chat, &absent, body)?, origin))
}

fn check(
    mut chat: ChatRequest,
    absent: &Absent,
    body: &RawObject<'_>,
) -> Result<CheckedRequest, Error> {
    sampling::refuse_unsupported(Endpoint::Chat, body)?;
    let mut parameters = sampling::check(body.read()?, absent)?;
    if chat.max_completion_tokens.is_some() {
        let newer = sampling::limit("max_completion_tokens", chat.max_completion_tokens)?;
        parameters.options.max_tokens = newer;
    }
    parameters.options.logprobs = logprobs(&chat)?;
    parameters.options.prediction = prediction::text(chat.prediction.take())?;
    parameters.options.reasoning_max = reasoning::check(&chat)?.tokens_max;
    let tools = tools::offered(&chat)?;
    let constraint = constraint::from_fields(body.read()?)?;
    let is_forced = is_forced(&tools);
    let ignore_eos = parameters.options.sampling.ignore_end;
    generate::check_can_end(constraint.is_some() || is_forced, ignore_eos)?;
    Ok(CheckedRequest {
        shape: Shape::Chat,
        parameters,
        is_output_split: is_output_split(&chat, constraint.as_ref().map(|(_, is)| is), &tools),
        constraint,
        tools,
        is_streamed: chat.stream.unwrap_or(false),
        include_usage: chat.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
        prompts: vec![InputPrompt { prompt: Prompt::Chat(conversation(chat)?), echo: None }],
    })
}

/// Refuses a template of the request unless the operator allows that.
pub(super) fn check_template(node: &Node, chat: &ChatRequest) -> Result<(), Error> {
    match chat.chat_template.is_some() && !node.allows_chat_template {
        true => Err(invalid(
            "chat_template",
            "chat_template is not allowed by the operator of this node (serve \
             --allow-chat-template); set the variables of the model's own template with \
             chat_template_kwargs",
        )),
        false => Ok(()),
    }
}

/// The chat template's input.
pub(super) fn conversation(chat: ChatRequest) -> Result<Chat, Error> {
    if chat.messages.is_empty() {
        return Err(invalid("messages", "messages must hold at least one message"));
    }
    let (ending, reasoning) = (ending(&chat), reasoning::check(&chat)?);
    let messages = read_messages(chat.messages)?;
    let offers_tools = chat.tool_choice.as_ref().is_none_or(|c| c != "none");
    let tools = chat.tools.filter(|t| offers_tools && !t.is_empty());
    let mut variables = chat.chat_template_kwargs.unwrap_or_default();
    reasoning.set_variables(&mut variables);
    Ok(Chat {
        messages: to_json(&messages),
        tools: tools.map(|t| to_json(&t)),
        documents: chat.documents.filter(|d| !d.is_empty()).map(|d| to_json(&d)),
        variables: (!variables.is_empty()).then(|| to_json(&variables)),
        template: chat.chat_template,
        generation_prompt: ending,
    })
}

/// A trailing assistant message is a prefill: the response continues it.
fn ending(chat: &ChatRequest) -> GenerationPrompt {
    let is_own = chat.messages.last().is_some_and(|m| {
        m.get("role").is_some_and(|role| role == "assistant")
            && m.get("tool_calls").is_none_or(Value::is_null)
    });
    match (chat.continue_final_message, chat.add_generation_prompt) {
        (Some(true), _) => GenerationPrompt::ContinueFinalMessage,
        (None, None) if is_own => GenerationPrompt::ContinueFinalMessage,
        (_, Some(false)) => GenerationPrompt::Omit,
        _ => GenerationPrompt::Add,
    }
}

fn logprobs(chat: &ChatRequest) -> Result<Option<u32>, Error> {
    if let Some(count) = chat.n_probs.filter(|count| *count > 0) {
        if chat.logprobs == Some(false) || chat.top_logprobs.is_some_and(|top| top != count) {
            let message = "n_probs asks for other logprobs than logprobs and top_logprobs do: send \
                           one of them";
            return Err(invalid("n_probs", message));
        }
        return sampling::top_logprobs("n_probs", count).map(Some);
    }
    match (chat.logprobs == Some(true), chat.top_logprobs) {
        (true, count) => sampling::top_logprobs("top_logprobs", count.unwrap_or(0)).map(Some),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(invalid("top_logprobs", "top_logprobs needs logprobs to be true")),
    }
}

/// True if the response must call a tool.
fn is_forced(tools: &OfferedTools) -> bool {
    tools.rules.as_ref().is_some_and(|rules| rules.choice != ToolChoice::Auto)
}

/// Reasoning and calls are separated from the text, unless the client wants it as is: it says so,
/// or gives a grammar for the whole text and no tools.
fn is_output_split(
    chat: &ChatRequest,
    constraint: Option<&Constraint>,
    tools: &OfferedTools,
) -> bool {
    let own = matches!(
        constraint,
        Some(Constraint::Gbnf(_) | Constraint::Regex(_) | Constraint::Choice(_))
    );
    let is_whole = own && tools.rules.is_none();
    !is_whole && chat.reasoning_format.as_deref() != Some("none")
}

/// Messages as chat templates expect them: a role, and content that is a string or null.
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

type FieldError = (&'static str, &'static str);

fn read_message(mut message: ChatMessage) -> Result<ChatMessage, FieldError> {
    match message.get("role") {
        Some(Value::String(role)) if !role.is_empty() => {}
        Some(_) => return Err(("role", "it must be a string such as 'user'")),
        None => return Err(("role", "it is missing")),
    }
    let content = match message.get_mut("content").map(Value::take) {
        None | Some(Value::Null) => {
            // An earlier assistant message may have been a refusal, or tool calls.
            match (message.get("refusal"), message.get("tool_calls")) {
                (Some(Value::String(refusal)), _) => Value::String(refusal.clone()),
                (_, None | Some(Value::Null)) => return Err(("content", "it is missing")),
                (_, Some(_)) => Value::String(String::new()),
            }
        }
        Some(Value::String(text)) => Value::String(text),
        Some(Value::Array(parts)) => Value::String(join_parts(&parts)?),
        Some(_) => return Err(("content", "it must be a string or a list of text parts")),
    };
    message.insert("content".into(), content);
    parse_arguments(&mut message);
    Ok(message)
}

fn join_parts(parts: &[Value]) -> Result<String, FieldError> {
    let text = |part: &Value| match (part.get("type"), part.get("text")) {
        (Some(kind), Some(Value::String(text))) if kind == "text" => Ok(text.clone()),
        _ => Err(("content", "only parts of type text are served by this model")),
    };
    parts.iter().map(text).collect()
}

/// OpenAI sends the arguments of earlier tool calls as JSON text; templates expect the object
/// itself. Text that is not an object stays as it is.
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

    fn read_json(json: &str) -> Result<CheckedRequest, Error> {
        let body = RawObject::parse(json.as_bytes())?;
        check(body.read()?, &Absent::default(), &body)
    }

    fn messages_of(json: &str) -> String {
        match &read_json(json).unwrap().prompts[0].prompt {
            Prompt::Chat(chat) => chat.messages.clone(),
            other => panic!("{other:?}"),
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
            (r#""logprobs":true,"top_logprobs":21"#, "top_logprobs"),
            (r#""top_logprobs":2"#, "top_logprobs"),
            (r#""response_format":{"type":"xml"}"#, "response_format"),
            (r#""response_format":{"type":"structural_tag","format":{}}"#, "response_format"),
            (r#""structured_outputs":{"structural_tag":{}}"#, "structured_outputs"),
            (r#""n_probs":21"#, "n_probs"),
            (r#""n_probs":2,"top_logprobs":3,"logprobs":true"#, "n_probs"),
            (r#""n_probs":2,"logprobs":false"#, "n_probs"),
            (r#""max_completion_tokens":0"#, "max_completion_tokens"),
            (r#""reasoning_budget":-2"#, "reasoning_budget"),
            (r#""extra_body":{"guided_regex":"a+"}"#, "extra_body"),
            (r#""tool_choice":"required""#, "tool_choice"),
            (r#""tool_choice":"sometimes""#, "tool_choice"),
            (r#""tools":[{"type":"function"}]"#, "tools[0].function"),
            (r#""response_format":{"type":"json_object"},"ignore_eos":true"#, "ignore_eos"),
        ] {
            let json =
                format!(r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}],{field}}}"#);
            assert_eq!(read_json(&json).err().unwrap().param().as_deref(), Some(param));
        }
        let empty = r#"{"model":"m","messages":[]}"#;
        assert_eq!(read_json(empty).err().unwrap().param().as_deref(), Some("messages"));
    }

    #[test]
    fn tools_and_a_format_go_together_and_calls_are_separated_from_any_format() {
        for (field, split) in [
            (r#""response_format":{"type":"json_object"}"#, true),
            (r#""guided_regex":"a+""#, true),
            (r#""grammar":"root ::= [a]""#, true),
            (r#""grammar":"root ::= [a]","tool_choice":"none""#, false),
            (r#""response_format":{"type":"json_object"},"reasoning_format":"none""#, false),
        ] {
            let json = format!(
                r#"{{"model":"m","messages":[{{"role":"user","content":"x"}}],
                    "tools":[{{"type":"function","function":{{"name":"f"}}}}],{field}}}"#
            );
            let checked = read_json(&json).unwrap();
            assert!(checked.constraint.is_some(), "{field}");
            assert_eq!(checked.is_output_split, split, "{field}");
        }
    }

    #[test]
    fn an_assistant_goes_on_with_its_own_last_message_unless_told_otherwise() {
        let ending = |role: &str, fields: &str| {
            let json = format!(
                r#"{{"model":"m","messages":[{{"role":"{role}","content":"x"}}]{fields}}}"#
            );
            match &read_json(&json).unwrap().prompts[0].prompt {
                Prompt::Chat(chat) => chat.generation_prompt,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(ending("user", ""), GenerationPrompt::Add);
        assert_eq!(ending("assistant", ""), GenerationPrompt::ContinueFinalMessage);
        assert_eq!(
            ending("assistant", r#","continue_final_message":false"#),
            GenerationPrompt::Add
        );
        assert_eq!(ending("user", r#","add_generation_prompt":false"#), GenerationPrompt::Omit);
    }

    #[test]
    fn the_newer_name_of_max_tokens_wins() {
        let json = r#"{"model":"m","messages":[{"role":"user","content":"x"}],
            "max_tokens":5,"max_completion_tokens":7}"#;
        assert_eq!(read_json(json).unwrap().parameters.options.max_tokens, Some(7));
        let json = json.replace(":7", ":-1");
        assert_eq!(read_json(&json).unwrap().parameters.options.max_tokens, None);
    }
}
