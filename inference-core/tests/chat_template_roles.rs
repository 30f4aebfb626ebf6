//! Conversations with roles and parts that many templates drop or refuse, in the templates of
//! `tests/chat_templates`: adapted, none loses a text.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use chrono::NaiveDateTime;
use inference_core::text::chat_template::{ChatTemplate, Conversation, SpecialTokens};
use serde_json::{Value as Json, json};

fn templates() -> BTreeMap<String, ChatTemplate> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/chat_templates");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let shapes = paths.filter(|path| path.extension().is_some_and(|e| e == "jinja"));
    let compile = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        let (bos, eos) = ("<s>".into(), "</s>".into());
        let tokens = SpecialTokens { bos, eos, control: vec![] };
        let source = std::fs::read_to_string(&path).unwrap();
        (name, ChatTemplate::new(source, tokens).unwrap())
    };
    let shapes = shapes.filter(|path| path.file_stem().is_some_and(|stem| stem != "features"));
    shapes.map(compile).collect()
}

fn render(
    template: &ChatTemplate,
    messages: &Json,
    tools: Option<&Json>,
) -> Result<String, String> {
    let (messages, tools) = (messages.to_string(), tools.map(Json::to_string));
    let conversation = Conversation {
        tools: tools.as_deref(),
        ..Conversation::new(&messages, NaiveDateTime::default())
    };
    template.render(&conversation).map_err(|error| error.to_string())
}

/// A message whose content is its role and number, as a text or as a list of two parts.
fn say(role: &str, number: usize, as_parts: bool) -> Json {
    let text = mark(role, number);
    match as_parts {
        false => json!({"role": role, "content": text}),
        true => {
            let part = |text: &str| json!({"type": "text", "text": text});
            json!({"role": role, "content": [part(&text), part(" and more")]})
        }
    }
}

fn mark(role: &str, number: usize) -> String {
    format!("Zq{role}{number}zq")
}

/// The roles of the messages of conversations that clients send.
const ORDERS: [&[&str]; 9] = [
    &["system", "user"],
    &["developer", "user"],
    &["system", "developer", "user"],
    &["system", "system", "system", "user", "assistant", "user"],
    &["system", "user", "assistant", "system", "user"],
    &["user", "assistant", "developer", "user", "assistant", "user"],
    &["system", "user", "assistant", "system", "system", "user", "assistant", "user"],
    &["user", "assistant", "user", "system"],
    &["developer", "user", "assistant", "user", "developer"],
];

/// Every text is in the prompt once, and turns are in their order. Some templates put the system
/// message elsewhere: Mistral's before the last user message, DeepSeek's all at the start.
fn shows_all(shape: &str, prompt: &str, roles: &[&str]) {
    let place = |(number, role): (usize, &&str)| {
        let mark = mark(role, number);
        let found: Vec<usize> = prompt.match_indices(&mark).map(|(place, _)| place).collect();
        assert_eq!(found.len(), 1, "{shape}: {mark} of {roles:?} in\n{prompt}");
        found[0]
    };
    let places: Vec<usize> = roles.iter().enumerate().map(place).collect();
    let is_turn = |role: &str| ["user", "assistant"].contains(&role);
    let turns = places.iter().zip(roles).filter(|(_, role)| is_turn(role));
    assert!(turns.map(|(place, _)| place).is_sorted(), "{shape}: {roles:?} in\n{prompt}");
}

#[test]
fn system_and_developer_messages_anywhere_reach_every_model() {
    for (shape, template) in templates() {
        for (roles, as_parts) in ORDERS.iter().flat_map(|roles| [(roles, false), (roles, true)]) {
            let numbered = roles.iter().enumerate();
            let messages: Vec<Json> = numbered.map(|(i, role)| say(role, i, as_parts)).collect();
            let prompt = render(&template, &json!(messages), None);
            let prompt = prompt.unwrap_or_else(|error| panic!("{shape}: {roles:?}: {error}"));
            shows_all(&shape, &prompt, roles);
            assert!(
                !prompt.contains("'type'") && !prompt.contains("\"type\""),
                "{shape}: {prompt}"
            );
        }
    }
}

#[test]
fn calls_and_results_of_every_form_reach_every_model() {
    let tools = json!([{"type": "function", "function": {"name": "look", "description": "Looks",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}]);
    let call = |id: &str, at: &str| {
        json!({"id": id, "type": "function",
            "function": {"name": "look", "arguments": json!({"at": at}).to_string()}})
    };
    for (shape, template) in templates() {
        for as_parts in [false, true] {
            let result = |id: &str, number: usize| {
                let mut result = say("tool", number, as_parts);
                result["tool_call_id"] = id.into();
                result
            };
            let messages = json!([
                say("system", 0, as_parts),
                say("user", 1, as_parts),
                {"role": "assistant", "content": null,
                    "tool_calls": [call("abcdef123", "Zqone"), call("abcdef124", "Zqtwo")]},
                result("abcdef123", 3),
                result("abcdef124", 4),
                say("assistant", 5, as_parts),
                say("user", 6, as_parts),
            ]);
            let prompt = render(&template, &messages, Some(&tools));
            let prompt = prompt.unwrap_or_else(|error| panic!("{shape}: {error}"));
            let roles = ["system", "user", "tool", "tool", "assistant", "user"];
            let numbers = [0, 1, 3, 4, 5, 6];
            for (role, number) in roles.iter().zip(numbers) {
                assert!(prompt.contains(&mark(role, number)), "{shape}: {role} in\n{prompt}");
            }
            assert!(prompt.contains("Zqone") && prompt.contains("Zqtwo"), "{shape}:\n{prompt}");
        }
    }
}

#[test]
fn what_templates_drop_is_known() {
    let templates = templates();
    let names = |test: &dyn Fn(&ChatTemplate) -> bool| -> Vec<&str> {
        templates.iter().filter(|(_, t)| test(t)).map(|(name, _)| name.as_str()).collect()
    };
    let beside =
        names(&|t| t.capabilities(true).tool_calls && !t.capabilities(true).text_beside_calls);
    let late = names(&|t| t.capabilities(false).system_role && !t.capabilities(false).late_system);
    let many = names(&|t| t.capabilities(false).system_role && !t.capabilities(false).many_system);
    let named = names(&|t| t.capabilities(false).names);
    let silent = ["deepseek_r1", "glm4", "hermes3", "llama3_2", "mistral_small", "mistral_tekken"];
    assert_eq!(beside, silent);
    let once = [
        "apertus",
        "apriel",
        "command_r",
        "command_r7b",
        "command_r_tools",
        "deepseek_r1",
        "deepseek_v3_2",
        "deepseek_v4",
        "gemma3",
        "gpt_oss",
        "hunyuan_a13b",
        "hy3",
        "hy3_opensource",
        "llama2",
        "magistral",
        "minimax_m1",
        "minimax_m2",
        "minimax_m3",
        "mistral_small_3_2",
        "mistral_tekken",
        "nemotron",
        "nemotron_nano_2",
        "phi4_mini_functools",
        "smollm3",
        "solar_open",
        "vicuna",
    ];
    assert_eq!((late.as_slice(), many.as_slice()), (&once[..], &once[..]));
    assert_eq!(named, ["kimi_k2"]);
}
