//! Chat templates from model files, and conversations that are rendered with them.

use std::sync::LazyLock;

use chrono::{DateTime, NaiveDateTime};
use inference_core::text::chat_template::{
    ChatTemplate, Conversation, GenerationPrompt, SpecialTokens, TemplateError, segments,
};
use serde_json::json;

use crate::input::{split, text};

/// Most bytes of a rendered prompt.
const PROMPT_BYTES_MAX: usize = 32 << 20;
/// Control tokens that users must not be able to write.
const CONTROL: [&str; 10] = [
    "<|im_start|>",
    "<|im_end|>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|begin_of_text|>",
];
const CHAT: &str = r#"[{"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "id": "call00001",
        "function": {"name": "look", "arguments": {"city": "Paris", "n": [1, 2.5, null]}}}]},
    {"role": "tool", "tool_call_id": "call00001", "content": "It is."},
    {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
    {"role": "assistant", "content": "Yes", "reasoning_content": "Hm."}]"#;
const TOOLS: &str = r#"[{"type": "function", "function": {"name": "look", "description": "Looks.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]"#;

/// Templates of models, with which users are tried.
static KNOWN: LazyLock<Vec<ChatTemplate>> = LazyLock::new(|| {
    let sources = [
        include_str!("../../inference-core/tests/chat_templates/chatml.jinja"),
        include_str!("../../inference-core/tests/chat_templates/mistral_v1.jinja"),
        include_str!("../../inference-core/tests/chat_templates/llama3.jinja"),
    ];
    sources.map(|source| compile(source).expect("a template that is known")).into()
});

fn compile(source: &str) -> Result<ChatTemplate, TemplateError> {
    let control = CONTROL.map(String::from).into();
    let tokens = SpecialTokens { bos: "<s>".into(), eos: "</s>".into(), control };
    ChatTemplate::new(source.to_string(), tokens)
}

fn now() -> NaiveDateTime {
    DateTime::from_timestamp(1_700_000_000, 0).expect("a time").naive_utc()
}

/// A template is refused or renders within its limits, the same each time. With an empty one, a
/// conversation is tried on templates that are known: no control token comes of what users write.
pub fn chat_template(data: &[u8]) {
    let (source, rest) = split(data);
    let (messages, rest) = split(rest);
    if source.is_empty() {
        return KNOWN.iter().for_each(|template| check_user(template, text(messages)));
    }
    let template = match compile(text(source)) {
        Ok(template) => template,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let messages = if messages.is_empty() { CHAT } else { text(messages) };
    let variables = text(rest);
    for (tools, generation_prompt) in [
        (None, GenerationPrompt::Add),
        (Some(TOOLS), GenerationPrompt::Add),
        (None, GenerationPrompt::ContinueFinalMessage),
    ] {
        let conversation = Conversation {
            tools,
            generation_prompt,
            variables: (!variables.is_empty()).then_some(variables),
            ..Conversation::new(messages, now())
        };
        let first = template.render(&conversation);
        match &first {
            Ok(prompt) => assert!(prompt.len() <= PROMPT_BYTES_MAX, "{} bytes", prompt.len()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
        assert_eq!(template.render(&conversation), first, "a rendering depends on the one before");
    }
}

/// Whatever `content` is, a prompt has as many control tokens as one with a plain word.
fn check_user(template: &ChatTemplate, content: &str) {
    if content.trim().is_empty() {
        return;
    }
    let tokens = |content: &str| {
        let messages = json!([{"role": "user", "content": content},
            {"role": "assistant", "content": content}, {"role": "user", "content": content}]);
        let messages = messages.to_string();
        let prompt = template.render(&Conversation::new(&messages, now())).expect("a good chat");
        let count = |token: &str| segments(&prompt).map(|s| s.matches(token).count()).sum();
        CONTROL.map(|token| -> usize { count(token) })
    };
    assert_eq!(tokens(content), tokens("word"), "{content:?}");
}
