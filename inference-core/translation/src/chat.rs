//! Chat completions: the form in which every request is served.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::conversation::{
    AssistantMessage, Call, Conversation, Format, Message, Reasoning, Sampling, Tool, ToolChoice,
};
use crate::json;

/// Writes a conversation as the body of a chat completion request.
pub fn body(conversation: &Conversation) -> Vec<u8> {
    let Conversation { messages, tools, sampling, reasoning, .. } = conversation;
    let Sampling { temperature, top_p, top_k, stop } = sampling;
    let request = Request {
        model: conversation.model.as_deref(),
        messages: messages.iter().map(ChatMessage::of).collect(),
        tools: tools.iter().map(ChatTool::of).collect(),
        tool_choice: conversation.tool_choice.as_ref().map(Choice::of),
        parallel_tool_calls: conversation.parallel_tool_calls,
        response_format: conversation.format.as_ref().map(ResponseFormat::of),
        reasoning_effort: reasoning.effort.as_deref(),
        chat_template_kwargs: variables(reasoning),
        temperature: *temperature,
        top_p: *top_p,
        top_k: *top_k,
        stop,
        max_completion_tokens: conversation.tokens_max,
        logprobs: conversation.top_logprobs.map(|_| true),
        top_logprobs: conversation.top_logprobs.filter(|count| *count > 0),
        service_tier: conversation.service_tier.as_deref(),
        user: conversation.user.as_deref(),
        stream: conversation.is_streamed,
        stream_options: conversation.is_streamed.then_some(StreamOptions { include_usage: true }),
        extra: &conversation.extra,
    };
    json::bytes_about(&request, messages.iter().map(Message::bytes).sum())
}

/// Templates name their switch in one of these ways and ignore other variables.
fn variables(reasoning: &Reasoning) -> Option<Variables> {
    let is_enabled = reasoning.is_enabled?;
    Some(Variables { enable_thinking: is_enabled, thinking: is_enabled })
}

#[derive(Serialize)]
struct Variables {
    enable_thinking: bool,
    thinking: bool,
}

#[derive(Serialize)]
struct Request<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    messages: Vec<ChatMessage<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<ChatTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Choice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<ResponseFormat<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    chat_template_kwargs: Option<Variables>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<i64>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    stop: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_tier: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum ChatMessage<'a> {
    System {
        content: &'a str,
    },
    User {
        content: &'a str,
    },
    Assistant {
        content: Option<&'a str>,
        #[serde(skip_serializing_if = "str::is_empty")]
        reasoning_content: &'a str,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ChatCall<'a>>,
    },
    Tool {
        tool_call_id: &'a str,
        content: &'a str,
    },
}

impl<'a> ChatMessage<'a> {
    fn of(message: &'a Message) -> Self {
        match message {
            Message::System(content) => Self::System { content },
            Message::User(content) => Self::User { content },
            Message::Assistant(AssistantMessage { reasoning, text, calls }) => Self::Assistant {
                content: (calls.is_empty() || !text.is_empty()).then_some(text),
                reasoning_content: reasoning,
                tool_calls: calls.iter().map(ChatCall::of).collect(),
            },
            Message::Tool { call_id, content } => Self::Tool { tool_call_id: call_id, content },
        }
    }
}

#[derive(Serialize)]
struct ChatCall<'a> {
    id: &'a str,
    r#type: &'static str,
    function: ChatFunction<'a>,
}

#[derive(Serialize)]
struct ChatFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

impl<'a> ChatCall<'a> {
    fn of(Call { id, name, arguments }: &'a Call) -> Self {
        Self { id, r#type: FUNCTION, function: ChatFunction { name, arguments } }
    }
}

const FUNCTION: &str = "function";

#[derive(Serialize)]
struct ChatTool<'a> {
    r#type: &'static str,
    function: ToolFunction<'a>,
}

#[derive(Serialize)]
struct ToolFunction<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

impl<'a> ChatTool<'a> {
    fn of(Tool { name, description, parameters, strict }: &'a Tool) -> Self {
        let (description, parameters, strict) =
            (description.as_deref(), parameters.as_ref(), *strict);
        Self { r#type: FUNCTION, function: ToolFunction { name, description, parameters, strict } }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Choice<'a> {
    Word(&'static str),
    Named { r#type: &'static str, function: FunctionName<'a> },
}

#[derive(Serialize)]
struct FunctionName<'a> {
    name: &'a str,
}

impl<'a> Choice<'a> {
    fn of(choice: &'a ToolChoice) -> Self {
        match choice {
            ToolChoice::Auto => Self::Word("auto"),
            ToolChoice::None => Self::Word("none"),
            ToolChoice::Required => Self::Word("required"),
            ToolChoice::Named(name) => {
                Self::Named { r#type: FUNCTION, function: FunctionName { name } }
            }
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ResponseFormat<'a> {
    JsonObject,
    JsonSchema { json_schema: NamedSchema<'a> },
}

#[derive(Serialize)]
struct NamedSchema<'a> {
    name: &'a str,
    schema: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

impl<'a> ResponseFormat<'a> {
    fn of(format: &'a Format) -> Self {
        match format {
            Format::JsonObject => Self::JsonObject,
            Format::Schema { name, schema, strict } => {
                Self::JsonSchema { json_schema: NamedSchema { name, schema, strict: *strict } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_conversation_becomes_a_chat_completion_request() {
        let call = Call { id: "c1".into(), name: "f".into(), arguments: "{}".into() };
        let said = AssistantMessage { calls: vec![call], ..AssistantMessage::default() };
        let conversation = Conversation {
            model: Some("m".into()),
            messages: vec![
                Message::System("Be brief.".into()),
                Message::User("hi".into()),
                Message::Assistant(said),
                Message::Tool { call_id: "c1".into(), content: "7".into() },
            ],
            tools: vec![Tool { name: "f".into(), ..Tool::default() }],
            tool_choice: Some(ToolChoice::Named("f".into())),
            reasoning: Reasoning { effort: Some("low".into()), is_enabled: Some(true) },
            tokens_max: Some(9),
            is_streamed: true,
            ..Conversation::default()
        };
        let written: Value = serde_json::from_slice(&body(&conversation)).unwrap();
        assert_eq!(
            written,
            json!({
                "model": "m",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "hi"},
                    {"role": "assistant", "content": null, "tool_calls": [
                        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                    ]},
                    {"role": "tool", "tool_call_id": "c1", "content": "7"},
                ],
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "tool_choice": {"type": "function", "function": {"name": "f"}},
                "reasoning_effort": "low",
                "chat_template_kwargs": {"enable_thinking": true, "thinking": true},
                "max_completion_tokens": 9,
                "stream": true,
                "stream_options": {"include_usage": true},
            })
        );
    }

    #[test]
    fn what_a_request_does_not_set_is_not_written() {
        let conversation =
            Conversation { messages: vec![Message::User("a".into())], ..Conversation::default() };
        assert_eq!(
            String::from_utf8(body(&conversation)).unwrap(),
            r#"{"messages":[{"role":"user","content":"a"}],"stream":false}"#
        );
    }
}
