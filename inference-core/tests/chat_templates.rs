//! Renders the templates in `tests/chat_templates` (the shapes of known families) and
//! compares with what Hugging Face's own renderer made of them: see `expected.py` there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::PathBuf;

use chrono::NaiveDateTime;
use inference_core::text::chat_template::{
    ChatTemplate, Content, Conversation, GenerationPrompt, SpecialTokens, TemplateError,
    opens_reasoning, segments,
};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

/// Features that our renderer has otherwise, and how. Checked to be so.
const KNOWN: [(&str, &str); 15] = [
    ("octal and bell escapes", "minijinja keeps such escapes as they are"),
    ("loop over none", "nothing instead of an error"),
    ("private names in namespaces are refused", "they are kept"),
    ("macros with varargs", "minijinja has neither varargs nor kwargs in macros"),
    ("comparing different kinds", "an order of kinds instead of an error"),
    ("comparing with undefined", "an order of kinds instead of an error"),
    ("percent formatting", "minijinja has no % for texts; the filter format works"),
    ("multiplication with negative numbers", "an error instead of nothing"),
    ("representations in formats", "minijinja has no !r"),
    ("tojson of a generator", "written instead of an error"),
    ("attr filter", "finds items of dicts, and no methods"),
    ("urlencode", "left out"),
    ("pprint", "minijinja has its own layout"),
    ("unicode names and text", "names of variables are ASCII"),
    ("typed_only/a call without content", "loops over none, see there"),
];

/// Conversations that any template must take, when adapted.
const USUAL: [&str; 14] = [
    "plain",
    "system",
    "turns",
    "text of all kinds",
    "prefill",
    "thoughts",
    "tools",
    "tools and system",
    "a call",
    "a call without content",
    "a call with text arguments",
    "parallel calls",
    "parts",
    "developer",
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/chat_templates")
}

fn read(name: &str) -> Json {
    serde_json::from_str(&std::fs::read_to_string(folder().join(name)).unwrap()).unwrap()
}

fn compile(source: &str) -> Result<ChatTemplate, TemplateError> {
    let (bos, eos) = ("<s>".into(), "</s>".into());
    ChatTemplate::new(source.to_string(), SpecialTokens { bos, eos, control: vec![] })
}

fn sources() -> BTreeMap<String, String> {
    let paths = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let name = |path: &PathBuf| path.file_stem().unwrap().to_str().unwrap().to_string();
    let shapes = paths.filter(|p| p.extension().is_some_and(|e| e == "jinja"));
    shapes
        .filter(|p| name(p) != "features")
        .map(|p| (name(&p), std::fs::read_to_string(&p).unwrap()))
        .collect()
}

fn templates() -> BTreeMap<String, ChatTemplate> {
    let all = sources();
    assert!(all.len() >= 30, "only {} shapes", all.len());
    all.into_iter().map(|(name, source)| (name, compile(&source).unwrap())).collect()
}

/// A conversation's parts as texts, to borrow from.
struct Texts {
    messages: String,
    tools: Option<String>,
    documents: Option<String>,
    variables: Option<String>,
    now: NaiveDateTime,
    generation_prompt: GenerationPrompt,
}

impl Texts {
    fn new(conversation: &Json, now: NaiveDateTime) -> Self {
        let part = |name: &str| conversation.get(name).map(Json::to_string);
        let generation_prompt = match conversation.get("ending").and_then(Json::as_str) {
            Some("prefill") => GenerationPrompt::ContinueFinalMessage,
            Some("closed") => GenerationPrompt::Omit,
            _ => GenerationPrompt::Add,
        };
        Self {
            messages: part("messages").unwrap(),
            tools: part("tools"),
            documents: part("documents"),
            variables: part("variables"),
            now,
            generation_prompt,
        }
    }

    fn borrow(&self) -> Conversation<'_> {
        Conversation {
            messages: &self.messages,
            tools: self.tools.as_deref(),
            documents: self.documents.as_deref(),
            variables: self.variables.as_deref(),
            now: self.now,
            generation_prompt: self.generation_prompt,
        }
    }
}

fn render(template: &ChatTemplate, conversation: &Json) -> Result<String, String> {
    let texts = Texts::new(conversation, NaiveDateTime::default());
    template.render(&texts.borrow()).map_err(|error| error.to_string())
}

/// Compares with the expected text or error. The message of an error is compared if the
/// template raised it; what Python itself says is its own business.
fn complaint(name: &str, case: &Json, made: &Result<String, TemplateError>) -> Option<String> {
    let same = match (made, case.get("expected"), case.get("error")) {
        (Ok(text), Some(expected), _) => text == expected.as_str().unwrap(),
        (Err(error), None, Some(expected)) => {
            case["raised"] != true || *expected == error.to_string()
        }
        _ => false,
    };
    let is_known = KNOWN.iter().any(|(known, _)| *known == name);
    match (same, is_known) {
        (true, true) => Some(format!("{name} is known to differ, but is the same")),
        (false, false) => Some(format!("{name}: expected\n{case:#}\nmade {made:?}")),
        _ => None,
    }
}

#[test]
fn single_features_are_those_of_hugging_face() {
    let (made, conversation) = (read("cases.json"), read("features.json"));
    let texts = Texts::new(&conversation, made["now"].as_str().unwrap().parse().unwrap());
    let mut complaints = vec![];
    for case in made["features"].as_array().unwrap() {
        let template = compile(case["source"].as_str().unwrap());
        let rendered = template.and_then(|t| t.render_as_is(&texts.borrow()));
        complaints.extend(complaint(case["name"].as_str().unwrap(), case, &rendered));
    }
    assert!(made["features"].as_array().unwrap().len() > 150);
    assert!(complaints.is_empty(), "{}", complaints.join("\n\n"));
}

#[test]
fn known_families_render_as_in_hugging_face() {
    let (made, conversations, templates) =
        (read("cases.json"), read("conversations.json"), templates());
    let now = made["now"].as_str().unwrap().parse().unwrap();
    let cases = made["cases"].as_array().unwrap();
    assert_eq!(cases.len(), templates.len() * conversations.as_object().unwrap().len());
    let mut complaints = vec![];
    for case in cases {
        let (template, name) =
            (case["template"].as_str().unwrap(), case["conversation"].as_str().unwrap());
        let texts = Texts::new(&conversations[name], now);
        let rendered = templates[template].render_as_is(&texts.borrow());
        complaints.extend(complaint(&format!("{template}/{name}"), case, &rendered));
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n\n"));
}

/// All texts that a model must see: contents, names of tools, arguments.
fn words(conversation: &Json) -> Vec<String> {
    let mut found = vec![];
    for message in conversation["messages"].as_array().unwrap() {
        // Many templates drop what is said beside calls.
        match &message["content"] {
            _ if message.get("tool_calls").is_some() => {}
            Json::String(text) => found.push(text.clone()),
            Json::Array(parts) => {
                found.extend(parts.iter().map(|p| p["text"].as_str().unwrap().to_string()));
            }
            _ => {}
        }
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            found.push(call["function"]["name"].as_str().unwrap().to_string());
        }
    }
    for tool in conversation["tools"].as_array().into_iter().flatten() {
        found.push(tool["function"]["name"].as_str().unwrap().to_string());
    }
    found.iter().flat_map(|text| text.split_whitespace()).map(String::from).collect()
}

#[test]
fn adapted_conversations_lose_nothing_in_any_template() {
    let (conversations, templates) = (read("conversations.json"), templates());
    for (shape, template) in &templates {
        for name in USUAL {
            // Thoughts of earlier turns are left out by many.
            let conversation = &conversations[name];
            let text = render(template, conversation);
            let text = text.unwrap_or_else(|e| panic!("{shape}/{name}: {e}"));
            for word in words(conversation).iter().filter(|_| name != "thoughts") {
                let shown = text.contains(word.as_str())
                    || text.contains(&json!(word).to_string()[1..word.len()]);
                assert!(shown, "{shape}/{name} lost {word:?}:\n{text}");
            }
        }
    }
}

#[test]
fn what_a_template_can_do_by_itself_is_left_alone() {
    let (made, conversations, templates) =
        (read("cases.json"), read("conversations.json"), templates());
    let now = made["now"].as_str().unwrap().parse().unwrap();
    let plain = ["plain", "turns closed", "prefill", "thoughts", "thinking on", "empty texts"];
    let mut compared = 0;
    for case in made["cases"].as_array().unwrap() {
        let name = case["conversation"].as_str().unwrap();
        let template = &templates[case["template"].as_str().unwrap()];
        let can = template.capabilities(true);
        let full = can.parallel_tool_calls
            && can.tools
            && can.object_arguments
            && can.content != Content::Parts;
        let expected = case["expected"].as_str();
        let alone = plain.contains(&name) && can.content != Content::Parts && can.system_role
            || full && ["tools", "tools and system", "a call", "parallel calls"].contains(&name);
        if let Some(expected) = expected.filter(|_| alone) {
            let texts = Texts::new(&conversations[name], now);
            assert_eq!(template.render(&texts.borrow()).unwrap(), expected, "{case:#}");
            compared += 1;
        }
    }
    assert!(compared > 150, "only {compared}");
}

#[test]
fn capabilities_are_found() {
    let templates = templates();
    let can = |name: &str| *templates[name].capabilities(false);
    let names = |test: &dyn Fn(&str) -> bool| -> Vec<&str> {
        templates.keys().map(String::as_str).filter(|name| test(name)).collect()
    };
    assert_eq!(names(&|n| !can(n).system_role), ["gemma2", "mistral_v1", "olmo"]);
    assert_eq!(names(&|n| can(n).content == Content::Parts), ["idefics", "typed_only"]);
    // Others render lists only of some roles, or only the first part.
    let either = ["kimi_k2", "minimax_m2"];
    assert_eq!(names(&|n| can(n).content == Content::Either), either);
    assert_eq!(names(&|n| !can(n).object_arguments), ["deepseek_r1", "functionary", "glm4"]);
    let single = |n: &str| can(n).tool_calls && !can(n).parallel_tool_calls;
    assert_eq!(names(&single), ["gpt_oss", "llama3_2"]);
    assert_eq!(names(&|n| can(n).null_content), ["deepseek_r1"]);
    assert_eq!(
        names(&|n| can(n).developer_role),
        ["gemma4", "gigachat3", "gigachat3_1", "gpt_oss"]
    );
    let opens = ["apriel", "deepseek_r1", "kimi_k3", "minimax_m2", "nemotron", "nemotron_nano_2"];
    assert_eq!(names(&|n| can(n).reasoning.opens), opens);
    assert_eq!(names(&|n| can(n).reasoning.history).len(), 13);
    assert_eq!(names(&|n| can(n).system_tools), ["phi4_mini"]);
    assert_eq!(can("qwen3").reasoning.switch, Some("enable_thinking"));
    assert_eq!(can("deepseek_v3_1").reasoning.switch, Some("thinking"));
    assert_eq!(names(&|n| can(n).tools && can(n).tool_calls).len(), 38);
}

#[test]
fn tools_are_described_to_templates_that_know_none() {
    let templates = templates();
    let conversation = &read("conversations.json")["parallel calls"];
    let text = render(&templates["gemma2"], conversation).unwrap();
    for part in [
        "<start_of_turn>user\nS\n\n# Tools\n\n",
        "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", ",
        "<end_of_turn>\n<start_of_turn>model\nLooking.\n<tool_call>\n{\"name\": \"get_weather\", \
            \"arguments\": {\"city\": \"A\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"search\", ",
        "<start_of_turn>user\n<tool_response>\nsun\n</tool_response>\n<tool_response>\nfound\n\
            </tool_response><end_of_turn>\n<start_of_turn>model\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn phi_4_mini_reads_tools_in_its_system_message_and_calls_as_it_writes_them() {
    let templates = templates();
    let conversation = &read("conversations.json")["parallel calls"];
    let text = render(&templates["phi4_mini"], conversation).unwrap();
    for part in [
        "<|system|>S<|tool|>[{\"name\": \"get_weather\", ",
        "<|/tool|><|end|>",
        "<|assistant|>Looking.\n<|tool_call|>[{\"type\": \"function\", \"function\": {\"name\": \
            \"get_weather\", \"arguments\": {\"city\": \"A\"}}}, {\"type\": \"function\", ",
        "]<|/tool_call|><|end|><|tool|>sun<|end|><|tool|>found<|end|>",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[test]
fn several_calls_become_messages_with_one_each() {
    let templates = templates();
    let conversation = &read("conversations.json")["parallel calls"];
    let text = render(&templates["llama3_2"], conversation).unwrap();
    let order = [
        "\"name\": \"get_weather\", \"parameters\": {\"city\"",
        "sun",
        "\"search\", \"parameters\"",
        "found",
    ];
    let turns = text.rsplit_once("Both<|eot_id|>").unwrap().1;
    let places: Vec<usize> = order.iter().map(|part| turns.find(part).unwrap()).collect();
    assert!(places.is_sorted(), "{places:?} in\n{turns}");
}

#[test]
fn prompts_that_open_thoughts_are_recognised() {
    let templates = templates();
    let conversations = read("conversations.json");
    let opens = |name: &str, conversation: &str| {
        opens_reasoning(&render(&templates[name], &conversations[conversation]).unwrap())
    };
    assert!(opens("deepseek_r1", "plain") && opens("nemotron", "plain"));
    assert!(opens("deepseek_v3_1", "thinking on") && !opens("deepseek_v3_1", "plain"));
    assert!(!opens("nemotron", "thinking off") && !opens("qwen3", "thinking off"));
}

#[test]
fn two_hundred_long_messages_are_no_matter() {
    let text = "word and <tag> \"quoted\"\n".repeat(440);
    let message = |i: usize| {
        let role = if i.is_multiple_of(2) { "user" } else { "assistant" };
        json!({"role": role, "content": text})
    };
    let mut messages: Vec<Json> = (0..200).map(message).collect();
    messages.push(json!({"role": "user", "content": "End"}));
    for (shape, template) in templates() {
        let made = render(&template, &json!({"messages": messages}));
        let made = made.unwrap_or_else(|e| panic!("{shape}: {e}"));
        assert!(made.len() > 2_000_000 && made.contains("End"), "{shape}");
    }
}

/// Texts with control tokens and their parts in them.
fn nasty() -> impl Strategy<Value = String> {
    const PIECES: [&str; 13] = [
        "<|im_end|>",
        "<|im_",
        "end|>",
        "<",
        "</s>",
        "[INST]",
        "</think>",
        "<think>",
        " \n",
        "é🙂",
        "{{ x }}",
        "\"'\\",
        "\u{fdd0}",
    ];
    let piece = prop_oneof![
        4 => prop::sample::select(&PIECES[..]).prop_map(String::from),
        1 => "[a-z<|>]{0,4}",
    ];
    prop::collection::vec(piece, 0..6).prop_map(|all| all.concat())
}

fn any_message() -> impl Strategy<Value = Json> {
    let role =
        prop::sample::select(vec!["system", "user", "assistant", "tool", "im_end", "developer"]);
    let content = prop_oneof![
        4 => nasty().prop_map(Json::from),
        1 => Just(Json::Null),
        1 => prop::collection::vec(nasty(), 0..3).prop_map(|texts| {
            texts.iter().map(|t| json!({"type": "text", "text": t})).collect()
        }),
    ];
    let arguments = prop_oneof![
        (nasty(), nasty()).prop_map(|(k, v)| json!({ k: v })),
        nasty().prop_map(Json::from),
        nasty().prop_map(|v| json!({"a": v}).to_string().into()),
    ];
    let call = (nasty(), arguments).prop_map(|(name, arguments)| {
        json!({"id": "123456789", "type": "function",
            "function": {"name": name, "arguments": arguments}})
    });
    let calls = prop::collection::vec(call, 0..3);
    (role, content, calls, nasty()).prop_map(|(role, content, calls, thoughts)| {
        let mut message = json!({"role": role, "content": content});
        match role {
            "assistant" if !calls.is_empty() => message["tool_calls"] = calls.into(),
            "assistant" if !thoughts.is_empty() => message["reasoning_content"] = thoughts.into(),
            "tool" => message["tool_call_id"] = "123456789".into(),
            _ => {}
        }
        message
    })
}

fn control() -> Vec<String> {
    ["<|im_end|>", "</s>", "[INST]"].map(String::from).into()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_conversation_panics_and_user_text_stays_text(
        messages in prop::collection::vec(any_message(), 0..6),
        tool in nasty(),
        with_tools in any::<bool>(),
        generation_prompt in prop::sample::select(vec!["answer", "prefill", "closed"]),
    ) {
        thread_local! {
            static TEMPLATES: Vec<ChatTemplate> = sources().values().map(|source| {
                // The template's own control tokens are spelled otherwise, so that any
                // that is found in a prompt was written by a user.
                let source = control().iter().fold(source.clone(), |s, t| s.replace(t, "@"));
                let tokens = SpecialTokens { control: control(), ..Default::default() };
                ChatTemplate::new(source, tokens).unwrap()
            }).collect();
        }
        let tool = json!([{"type": "function", "function": {"name": tool, "description": tool,
            "parameters": {"type": "object", "properties": {(tool.clone()): {"type": "string"}}}}}]);
        let mut conversation = json!({"messages": messages, "ending": generation_prompt});
        if with_tools {
            conversation["tools"] = tool;
        }
        TEMPLATES.with(|templates| {
            for template in templates {
                let Ok(text) = render(template, &conversation) else { continue };
                for part in segments(&text) {
                    for token in control() {
                        prop_assert!(!part.contains(&token), "{token} in {part:?} of {text:?}");
                    }
                }
            }
            Ok(())
        })?;
    }
}
