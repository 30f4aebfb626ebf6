//! Tests of requests: what a model gets, and what is refused.

use serde_json::json;

use super::*;
use crate::chat;

fn read_json(body: Value) -> Result<(Conversation, Asked), ParseError> {
    let written = body.to_string();
    read(Fields::of(body).unwrap(), written.as_bytes(), &|_| None)
}

/// The chat completion request for a body.
fn chat_of(body: Value) -> Value {
    let (conversation, _) = read_json(body).unwrap();
    serde_json::from_slice(&chat::body(&conversation)).unwrap()
}

fn param_of(body: Value) -> Option<String> {
    read_json(body).unwrap_err().param
}

fn function_call(id: &str, name: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

#[test]
fn the_input_is_stored_as_the_client_wrote_it() {
    for (written, stored) in [
        (r#"{"input": "Hi", "store": true}"#, r#""Hi""#),
        (
            r#"{"input": "a", "inp\u0075t": [{"role": "user", "content": "b"}]}"#,
            r#"[{"role": "user", "content": "b"}]"#,
        ),
    ] {
        let body = Fields::of(serde_json::from_str(written).unwrap()).unwrap();
        let (_, asked) = read(body, written.as_bytes(), &|_| None).unwrap();
        assert_eq!(&*asked.turns.unwrap().input, stored.as_bytes());
    }
    assert!(read_json(json!({"input": "Hi", "store": false})).unwrap().1.turns.is_none());
}

#[test]
fn the_names_of_extra_fields_are_in_order() {
    assert!(EXTRA.is_sorted());
}

#[test]
fn text_and_instructions_are_messages() {
    let chat = chat_of(json!({"model": "m", "instructions": "Be brief.", "input": "Hi"}));
    let expected = json!({"model": "m", "messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        "stream": false});
    assert_eq!(chat, expected);
}

#[test]
fn items_of_every_kind_keep_their_order() {
    let chat = chat_of(json!({"instructions": "I", "store": false, "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "D"}]},
        {"role": "user", "content": "context"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "S"}],
            "content": [{"type": "reasoning_text", "text": "Hm."}], "encrypted_content": "gAAAA"},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\":1}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** \"Begin\"\n"},
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c3", "status": "completed", "action":
            {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": null, "user": null}},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "function_call", "call_id": "cut", "name": "f", "arguments": "{\"x", "status": "incomplete"},
        {"type": "function_call_output", "call_id": "c1", "output": "7"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [
            {"type": "input_text", "text": "ok"}, {"type": "input_text", "text": "done"}]},
        {"type": "local_shell_call_output", "id": "lsh_1", "output": "file"},
        {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "T"}]},
        {"type": "function_call", "call_id": "c4", "name": "js", "namespace": "mcp__node", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c4", "output": ""},
        {"type": "reasoning", "summary": [], "encrypted_content": "flotilla-reasoning:Own."},
    ]}));
    assert_eq!(
        chat["messages"],
        json!([
            {"role": "system", "content": "I\nD"},
            {"role": "user", "content": "context\na\nb"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [
                function_call("c1", "f", "{\"x\":1}"),
                function_call("c2", "patch", "{\"input\":\"*** \\\"Begin\\\"\\n\"}"),
                function_call("c3", "local_shell", "{\"command\":[\"ls\"]}")]},
            {"role": "tool", "tool_call_id": "c1", "content": "7"},
            {"role": "tool", "tool_call_id": "c2", "content": "ok\ndone"},
            {"role": "tool", "tool_call_id": "c3", "content": "file"},
            {"role": "assistant", "content": null, "reasoning_content": "T", "tool_calls": [
                function_call("c4", "mcp__node__js", "{}")]},
            {"role": "tool", "tool_call_id": "c4", "content": ""},
        ])
    );
}

#[test]
fn our_sealed_reasoning_is_opened_and_others_is_dropped() {
    let reasoning = |sealed: &str| {
        let chat = chat_of(json!({"input": [
            {"type": "reasoning", "summary": [], "encrypted_content": sealed},
            {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]}));
        chat["messages"][0]["reasoning_content"].clone()
    };
    assert_eq!(reasoning("flotilla-reasoning:Hm."), json!("Hm."));
    assert_eq!(reasoning("gAAAA"), json!(null));
}

/// What Codex sends, shortened.
fn codex_tools() -> Value {
    json!([
        {"type": "function", "name": "exec_command", "description": "d", "strict": false,
            "parameters": {"type": "object"}},
        {"type": "custom", "name": "apply_patch", "description": "Edits files.",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
        {"type": "local_shell"},
        {"type": "web_search", "external_web_access": false},
        {"type": "image_generation", "output_format": "png"},
        {"type": "tool_search", "execution": "client", "description": "Finds tools.",
            "parameters": {"type": "object"}},
        {"type": "namespace", "name": "mcp__node", "description": "Node.", "tools": [
            {"type": "function", "name": "js", "description": "Runs.", "parameters": {}},
            {"type": "function", "name": "reset", "parameters": {}}]},
        {"type": "namespace", "name": "functions", "description": "", "tools": [
            {"type": "custom", "name": "exec"}]},
    ])
}

#[test]
fn tools_that_can_run_are_functions() {
    let body = json!({"input": "x", "tools": codex_tools(), "tool_choice": "auto",
        "parallel_tool_calls": false});
    let chat = chat_of(body.clone());
    let tools = chat["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|t| t["function"]["name"].as_str().unwrap()).collect();
    let expected = [
        "exec_command",
        "apply_patch",
        "local_shell",
        "tool_search",
        "mcp__node__js",
        "mcp__node__reset",
        "exec",
    ];
    assert_eq!(names, expected);
    let about = tools[1]["function"]["description"].as_str().unwrap();
    assert!(about.starts_with("Edits files.") && about.ends_with("lark grammar:\nstart: x"));
    assert_eq!(tools[1]["function"]["parameters"]["required"], json!(["input"]));
    assert_eq!(tools[4]["function"]["description"], "Node.\n\nRuns.");
    assert_eq!(chat["parallel_tool_calls"], json!(false));
    let (_, asked) = read_json(body).unwrap();
    let js = &asked.tools[4];
    assert_eq!((js.name.as_str(), js.namespace.as_deref()), ("js", Some("mcp__node")));
    assert_eq!(asked.tools[6].namespace, None);
}

#[test]
fn items_bring_tools() {
    let chat = chat_of(json!({"input": [
        {"type": "additional_tools", "role": "developer", "tools": [
            {"type": "namespace", "name": "functions", "description": "", "tools": [
                {"type": "function", "name": "a", "parameters": {}}]}]},
        {"role": "user", "content": "x"},
        {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {"query": "q"}},
        {"type": "tool_search_output", "call_id": "s", "execution": "client", "tools": [
            {"type": "function", "name": "b", "parameters": {}, "defer_loading": true}]},
    ]}));
    let names: Vec<_> =
        chat["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(names, ["a", "b"]);
    let call = function_call("s", "tool_search", "{\"query\":\"q\"}");
    assert_eq!(chat["messages"][1]["tool_calls"], json!([call]));
    assert_eq!(chat["messages"][2]["content"], "{\"tools\":[\"b\"]}");
}

#[test]
fn choices_among_tools() {
    let choose = |choice: Value| {
        let chat = chat_of(json!({"input": "x", "tools": codex_tools(), "tool_choice": choice}));
        (chat["tool_choice"].clone(), chat["tools"].as_array().unwrap().len())
    };
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    assert_eq!(choose(json!("required")), (json!("required"), 7));
    let patch = json!({"type": "custom", "name": "apply_patch"});
    assert_eq!(choose(patch), (named("apply_patch"), 7));
    assert_eq!(choose(json!({"type": "function", "name": "js"})), (named("mcp__node__js"), 7));
    let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [
        {"type": "function", "name": "exec_command"}, {"type": "local_shell"}]});
    assert_eq!(choose(allowed), (json!("required"), 2));
    let without = chat_of(json!({"input": "x", "tools": [{"type": "web_search"}],
        "tool_choice": "auto", "parallel_tool_calls": true}));
    assert_eq!(without["tool_choice"], json!(null));
    assert_eq!(without["parallel_tool_calls"], json!(null));
}

#[test]
fn the_other_fields_reach_the_chat_completion() {
    let chat = chat_of(json!({
        "input": "x", "stream": true, "max_output_tokens": 20.0, "temperature": 0.5, "top_p": 0.9,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"},
            "strict": true}, "verbosity": "low"},
        "include": ["message.output_text.logprobs"], "top_logprobs": 2,
        "metadata": {"user_id": "ada"}, "service_tier": "flex", "stop": "END", "top_k": -1,
        "min_p": 0.1, "seed": 7, "truncation": "auto", "background": false,
        "client_metadata": {"a": "b"}, "prompt_cache_key": "k",
    }));
    let schema = json!({"type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": true}});
    for (field, value) in [
        ("stream", json!(true)),
        ("max_completion_tokens", json!(20)),
        ("temperature", json!(0.5)),
        ("top_p", json!(0.9)),
        ("response_format", schema),
        ("logprobs", json!(true)),
        ("top_logprobs", json!(2)),
        ("user", json!("ada")),
        ("service_tier", json!("flex")),
        ("stop", json!(["END"])),
        ("top_k", json!(-1)),
        ("min_p", json!(0.1)),
        ("seed", json!(7)),
    ] {
        assert_eq!(chat[field], value, "{field}");
    }
    assert!(chat.get("prompt_cache_key").is_none() && chat.get("client_metadata").is_none());
    assert_eq!(chat_of(json!({"input": "x", "top_logprobs": 2}))["logprobs"], json!(null));
}

#[test]
fn an_effort_sets_the_switch_of_templates() {
    let chat = |reasoning: Value| chat_of(json!({"input": "x", "reasoning": reasoning}));
    let high = chat(json!({"effort": "high", "summary": "auto"}));
    assert_eq!(high["reasoning_effort"], "high");
    assert_eq!(high["chat_template_kwargs"]["enable_thinking"], json!(true));
    let none = chat(json!({"effort": "none"}));
    assert_eq!(none["reasoning_effort"], json!(null));
    assert_eq!(none["chat_template_kwargs"]["enable_thinking"], json!(false));
    assert_eq!(chat(json!({"summary": "auto"}))["chat_template_kwargs"], json!(null));
    let both = chat_of(json!({"input": "x", "reasoning": {"effort": "none"},
        "chat_template_kwargs": {"thinking": true, "custom": 1}}));
    let variables = json!({"thinking": true, "custom": 1, "enable_thinking": false});
    assert_eq!(both["chat_template_kwargs"], variables);
}

#[test]
fn what_cannot_be_honored_is_refused_with_its_path() {
    let item = |item: Value| json!({"input": [{"role": "user", "content": "x"}, item]});
    let with = |fields: Value| {
        let mut body = json!({"input": "x"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let image = json!({"role": "user", "content": [{"type": "input_image", "image_url": "u"}]});
    let pairs: Map<_, _> = (0..17).map(|n| (n.to_string(), json!("x"))).collect();
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 7}), "input"),
        (item(image), "input[1].content[0].type"),
        (item(json!({"role": "robot", "content": "x"})), "input[1].role"),
        (item(json!({"type": "compaction", "encrypted_content": "x"})), "input[1].type"),
        (item(json!({"type": "function_call_output", "output": "x"})), "input[1].call_id"),
        (with(json!({"background": true, "store": false})), "store"),
        (with(json!({"background": 1})), "background"),
        (with(json!({"conversation": "conv_1"})), "conversation"),
        (with(json!({"prompt": {"id": "pmpt_1"}})), "prompt"),
        (with(json!({"tools": [{"type": "apply_patch"}]})), "tools[0].type"),
        (with(json!({"tools": [{"type": "function"}]})), "tools[0].name"),
        (with(json!({"tool_choice": "required"})), "tool_choice"),
        (with(json!({"tool_choice": {"type": "web_search_preview"}})), "tool_choice.type"),
        (with(json!({"tool_choice": {"type": "function", "name": "f"}})), "tool_choice.name"),
        (with(json!({"text": {"format": {"type": "xml"}}})), "text.format.type"),
        (with(json!({"max_output_tokens": 0})), "max_output_tokens"),
        (with(json!({"metadata": pairs})), "metadata"),
        (with(json!({"metadata": {"a": 1}})), "metadata.a"),
        // Fields of chat completions that nobody honors, here as there.
        (with(json!({"mirostat": 2})), "mirostat"),
        (with(json!({"length_penalty": 2})), "length_penalty"),
    ] {
        assert_eq!(param_of(body.clone()).as_deref(), Some(param), "{body}");
    }
}

#[test]
fn an_unknown_response_or_item_is_named() {
    let error = read_json(json!({"input": "x", "previous_response_id": "resp_1"})).unwrap_err();
    assert_eq!(error.message, "Previous response with id 'resp_1' not found.");
    assert_eq!(error.param.as_deref(), Some("previous_response_id"));
    let reference = json!({"input": [{"type": "item_reference", "id": "msg_1"}]});
    assert_eq!(read_json(reference).unwrap_err().message, "Item with id 'msg_1' not found.");
}
