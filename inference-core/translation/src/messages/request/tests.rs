//! Requests of Anthropic's clients.

use inference_protocol::openai::ParseError;
use serde_json::json;

use super::*;
use crate::chat;

fn read_json(body: Value) -> Result<Conversation, ParseError> {
    Ok(read(Fields::of(body).unwrap())?)
}

/// The chat completion request for a body, to which a model and `max_tokens` are added.
fn chat_of(mut body: Value) -> Value {
    body["max_tokens"] = 9.into();
    let conversation = read_json(body).unwrap();
    serde_json::from_slice(&chat::body(&conversation)).unwrap()
}

fn error_of(mut body: Value) -> (Option<String>, String) {
    if body.get("max_tokens").is_none() {
        body["max_tokens"] = 9.into();
    }
    let error = read_json(body).unwrap_err();
    (error.param, error.message)
}

#[test]
fn a_conversation_with_tools_keeps_its_order() {
    let chat = chat_of(json!({
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Köln"}},
                {"type": "tool_use", "id": "t2", "name": "time", "input": {}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]},
                {"type": "tool_result", "tool_use_id": "t2"},
                {"type": "text", "text": "And tomorrow?"},
            ]},
        ],
        "tools": [
            {"name": "weather", "description": "d", "input_schema": {"type": "object"}},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        ],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    }));
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    assert_eq!(
        chat["messages"],
        json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [
                call("t1", "weather", r#"{"city":"Köln"}"#), call("t2", "time", "{}")]},
            {"role": "tool", "tool_call_id": "t1", "content": "rain"},
            {"role": "tool", "tool_call_id": "t2", "content": ""},
            {"role": "user", "content": "And tomorrow?"},
        ])
    );
    assert_eq!(chat["tools"].as_array().unwrap().len(), 1, "{chat}");
    assert_eq!(chat["tools"][0]["function"]["parameters"], json!({"type": "object"}));
    assert_eq!(
        (&chat["tool_choice"], &chat["parallel_tool_calls"]),
        (&json!("required"), &json!(false))
    );
}

#[test]
fn successive_messages_of_the_user_become_one() {
    let chat = chat_of(json!({"messages": [
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
    ]}));
    assert_eq!(chat["messages"], json!([{"role": "user", "content": "a\nb\nc"}]));
}

#[test]
fn instructions_come_first_or_belong_to_the_users_turn() {
    let chat = chat_of(json!({"system": "a", "messages": [
        {"role": "system", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "system", "content": "d"},
        {"role": "assistant", "content": "e"},
        {"role": "system", "content": [{"type": "text", "text": "f"}]},
    ]}));
    let reminder = |text: &str| format!("<system-reminder>\n{text}\n</system-reminder>");
    assert_eq!(
        chat["messages"],
        json!([
            {"role": "system", "content": "a\nb"},
            {"role": "user", "content": format!("c\n{}", reminder("d"))},
            {"role": "assistant", "content": "e"},
            {"role": "user", "content": reminder("f")},
        ])
    );
}

#[test]
fn a_billing_header_never_changes_the_prompt() {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let plain = chat_of(json!({"system": "Be brief.", "messages": messages}));
    for number in ["00001", "a9f3c"] {
        let header = format!("x-anthropic-billing-header: cc_version=2.1; cch={number};");
        let as_block =
            json!([{"type": "text", "text": header}, {"type": "text", "text": "Be brief."}]);
        assert_eq!(chat_of(json!({"system": as_block, "messages": messages})), plain);
        let as_line = format!("{header}\nBe brief.");
        assert_eq!(chat_of(json!({"system": as_line, "messages": messages})), plain);
    }
}

#[test]
fn thinking_sets_the_switch_of_templates() {
    let switch = |fields: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "hi"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        chat_of(body)["chat_template_kwargs"]["enable_thinking"].clone()
    };
    assert_eq!(switch(json!({})), json!(false));
    let enabled = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
    assert_eq!(switch(enabled), json!(true));
    assert_eq!(switch(json!({"thinking": {"type": "adaptive"}})), json!(null));
}

#[test]
fn a_schema_and_the_end_user_are_passed_on() {
    let chat = chat_of(json!({
        "messages": [{"role": "user", "content": "hi"}],
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"},
        "metadata": {"user_id": "ada"},
        "stop_sequences": ["END"],
        "top_k": 5,
    }));
    assert_eq!(chat["response_format"]["json_schema"]["schema"], json!({"type": "object"}));
    assert_eq!((&chat["reasoning_effort"], &chat["user"]), (&json!("low"), &json!("ada")));
    assert_eq!((&chat["stop"], &chat["top_k"]), (&json!(["END"]), &json!(5)));
}

#[test]
fn what_cannot_be_honored_is_refused_with_its_path() {
    let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let image = json!([{"type": "text", "text": "see"}, {"type": "image", "source": {}}]);
    let (param, message) = error_of(user(image));
    assert_eq!(param.as_deref(), Some("messages[0].content[1].type"));
    assert!(message.contains(r#""image""#), "{message}");
    for (body, param) in [
        (json!({}), "messages"),
        (json!({"messages": []}), "messages"),
        (user(json!(7)), "messages[0].content"),
        (user(json!([{"type": "tool_result"}])), "messages[0].content[0].tool_use_id"),
        (json!({"messages": [{"role": "robot", "content": "x"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}), "max_tokens"),
        (
            json!({"messages": [{"role": "user", "content": "x"}], "mcp_servers": [{}]}),
            "mcp_servers",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x"}],
                "tools": [{"type": "bash_20250124", "name": "bash"}]}),
            "tools[0].input_schema",
        ),
        (
            json!({"messages": [{"role": "user", "content": "x"}], "tool_choice": {"type": "some"}}),
            "tool_choice.type",
        ),
    ] {
        assert_eq!(error_of(body.clone()).0.as_deref(), Some(param), "{body}");
    }
    let no_limit = read_json(user(json!("x"))).unwrap_err();
    assert_eq!(no_limit.param.as_deref(), Some("max_tokens"));
}
