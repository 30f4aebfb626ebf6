//! PURE. Detects what a template supports by rendering tiny conversations and looking for their
//! words in the result, as llama.cpp does.

use chrono::NaiveDateTime;
use serde_json::{Map, Value as Json, json};

use super::control::{Control, opens_reasoning};
use super::input::ParsedChat;
use super::{Compiled, GenerationPrompt, Message};
use crate::text::output::{CallFormat, CallIds};

/// A word that no template contains.
const NEEDLE: &str = "Zq7xNeedle";
/// Another one.
const SECOND: &str = "Zq7xSecond";
/// Names of the variable that turns reasoning on and off.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// The form of message content that a template supports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Content {
    /// A string.
    #[default]
    Text,
    /// A list of parts.
    Parts,
    /// Both.
    Either,
}

/// A template's support for reasoning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReasoningSupport {
    /// True if it renders the `reasoning_content` of some earlier messages.
    pub history: bool,
    /// The variable that turns reasoning on and off.
    pub switch: Option<&'static str>,
    /// True if a prompt ends inside reasoning by default.
    pub opens: bool,
}

/// What a template supports by itself. The rest is emulated when a conversation is rendered (see
/// the module `adapt`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Supported form of content.
    pub content: Content,
    /// Renders messages with the role `system`.
    pub system_role: bool,
    /// Supports the role `developer`.
    pub developer_role: bool,
    /// Lists the available tools.
    pub tools: bool,
    /// Notation in which tools are described, and calls are written, if the template does neither.
    pub described: CallFormat,
    /// Renders an assistant's calls and their results.
    pub tool_calls: bool,
    /// Renders several calls of one message.
    pub parallel_tool_calls: bool,
    /// Requires call arguments as objects, not as JSON strings.
    pub object_arguments: bool,
    /// Renders calls only of messages whose content is null.
    pub null_content: bool,
    /// Format of the IDs of calls.
    pub call_ids: CallIds,
    /// Refuses or drops calls with IDs in another format.
    pub enforces_call_ids: bool,
    /// Support for reasoning.
    pub reasoning: ReasoningSupport,
}

impl Capabilities {
    /// Detects the capabilities of a template.
    pub(super) fn probe(template: &Compiled) -> Self {
        let mut can = Self { content: probe_content(template), ..Self::default() };
        let say = |role: &str, text: &str| message(role, can.content, text);
        let user = say("user", "Hi");

        let system = render(template, vec![say("system", NEEDLE), user.clone()], &[]);
        can.system_role = system.is_some_and(|text| text.contains(NEEDLE));
        // The word alone says nothing: some templates refuse the role, and others drop its text.
        let developer = render(template, vec![say("developer", NEEDLE), user.clone()], &[]);
        can.developer_role = template.source.contains("developer")
            && developer.is_some_and(|text| text.contains(NEEDLE));
        let tools = render(template, vec![user.clone()], &[tool(NEEDLE)]);
        can.tools = tools.is_some_and(|text| text.contains(NEEDLE));

        let mut calls =
            Calls { template, user: &user, content: can.content, null: false, long_ids: false };
        can.object_arguments = calls.wants_objects();
        can.tool_calls = calls.writes(&[(NEEDLE, "R1q")], can.object_arguments);
        if !can.tool_calls {
            calls.null = true;
            let as_objects = calls.wants_objects();
            can.null_content = calls.writes(&[(NEEDLE, "R1q")], as_objects);
            if can.null_content {
                (can.tool_calls, can.object_arguments) = (true, as_objects);
            }
        }
        let two = [(NEEDLE, "R1q"), (SECOND, "R2q")];
        can.parallel_tool_calls = can.tool_calls && calls.writes(&two, can.object_arguments);
        can.enforces_call_ids = can.tool_calls && !calls.takes_long_ids(can.object_arguments);
        can.call_ids = match can.enforces_call_ids {
            true => CallIds::Mistral,
            false => CallIds::detect(&template.source),
        };
        can.described = CallFormat::detect(&template.source).described();
        can.reasoning = probe_reasoning(template, &user, &calls);
        can
    }
}

fn object(value: Json) -> Message {
    match value {
        Json::Object(map) => map,
        _ => Map::new(),
    }
}

fn message(role: &str, content: Content, text: &str) -> Message {
    object(match content {
        Content::Parts => json!({"role": role, "content": [{"type": "text", "text": text}]}),
        Content::Text | Content::Either => json!({"role": role, "content": text}),
    })
}

fn tool(name: &str) -> Json {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "string",
        "description": "A"}}, "required": ["a"]});
    json!({"type": "function", "function": {"name": name, "description": "Does it",
        "parameters": parameters}})
}

fn render(template: &Compiled, messages: Vec<Message>, tools: &[Json]) -> Option<String> {
    render_with(template, messages, tools, Map::new())
}

fn render_with(
    template: &Compiled,
    messages: Vec<Message>,
    tools: &[Json],
    variables: Map<String, Json>,
) -> Option<String> {
    let tools = (!tools.is_empty()).then(|| tools.to_vec());
    let now = NaiveDateTime::default();
    let chat = ParsedChat {
        messages,
        tools,
        documents: None,
        variables,
        now,
        generation_prompt: GenerationPrompt::Add,
    };
    template.render(chat, &Control::default()).ok()
}

fn probe_content(template: &Compiled) -> Content {
    let writes = |content| {
        let text = render(template, vec![message("user", content, NEEDLE)], &[]);
        // A list that is printed as is shows quotes.
        let shown = text.filter(|t| {
            !t.contains(&format!("'{NEEDLE}'")) && !t.contains(&format!("\"{NEEDLE}\""))
        });
        shown.is_some_and(|t| t.contains(NEEDLE))
    };
    match (writes(Content::Text), writes(Content::Parts)) {
        (false, true) => Content::Parts,
        (true, true) => Content::Either,
        _ => Content::Text,
    }
}

fn probe_reasoning(template: &Compiled, user: &Message, calls: &Calls<'_>) -> ReasoningSupport {
    let mut plain = message("assistant", calls.content, "Hello");
    plain.insert("reasoning_content".into(), NEEDLE.into());
    let mut with_call = calls.conversation(&[(SECOND, "R1q")], true);
    if let Some(assistant) = with_call.get_mut(1) {
        assistant.insert("reasoning_content".into(), NEEDLE.into());
    }
    let plain = render(template, vec![user.clone(), plain], &[]);
    let with_call = render(template, with_call, &[tool("f")]);
    let history = [plain, with_call].into_iter().flatten().any(|text| text.contains(NEEDLE));

    let switched = |name: &str, on: bool| {
        let variables = object(json!({name: on}));
        render_with(template, vec![user.clone()], &[], variables)
    };
    let is_switch = |name: &&&str| switched(name, true) != switched(name, false);
    let switch = SWITCHES.iter().find(is_switch).copied();
    let opens =
        render(template, vec![user.clone()], &[]).is_some_and(|text| opens_reasoning(&text));
    ReasoningSupport { history, switch, opens }
}

/// Tests the rendering of tool calls.
struct Calls<'a> {
    template: &'a Compiled,
    user: &'a Message,
    content: Content,
    /// The content next to the calls is null instead of an empty string.
    null: bool,
    /// The IDs are as long as OpenAI's.
    long_ids: bool,
}

impl Calls<'_> {
    /// The ID of call `i`. All templates accept the short one.
    fn id(&self, i: usize) -> String {
        let long = if self.long_ids { "000000000000000" } else { "" };
        format!("call{long}0000{i}")
    }

    /// True if it renders calls whose IDs are as long as OpenAI's.
    fn takes_long_ids(&self, as_objects: bool) -> bool {
        Self { long_ids: true, ..*self }.writes(&[(NEEDLE, "R1q")], as_objects)
    }

    /// A user message, an assistant message that calls with these arguments, and the results.
    fn conversation(&self, calls: &[(&str, &str)], as_objects: bool) -> Vec<Message> {
        let call = |(i, (argument, _)): (usize, &(&str, &str))| {
            let arguments = json!({"a": argument});
            let arguments = if as_objects { arguments } else { arguments.to_string().into() };
            json!({"id": self.id(i), "type": "function",
                "function": {"name": "f", "arguments": arguments}})
        };
        let made: Vec<Json> = calls.iter().enumerate().map(call).collect();
        let content = if self.null { Json::Null } else { "".into() };
        let assistant = json!({"role": "assistant", "content": content, "tool_calls": made});
        let result = |(i, (_, text)): (usize, &(&str, &str))| {
            let mut result = message("tool", self.content, text);
            result.insert("tool_call_id".into(), self.id(i).into());
            result.insert("name".into(), "f".into());
            result
        };
        let results = calls.iter().enumerate().map(result);
        [self.user.clone(), object(assistant)].into_iter().chain(results).collect()
    }

    fn render(&self, calls: &[(&str, &str)], as_objects: bool) -> Option<String> {
        render(self.template, self.conversation(calls, as_objects), &[tool("f")])
    }

    /// True if all arguments and results are rendered.
    fn writes(&self, calls: &[(&str, &str)], as_objects: bool) -> bool {
        let text = self.render(calls, as_objects).unwrap_or_default();
        calls.iter().all(|(argument, result)| text.contains(argument) && text.contains(result))
    }

    /// True unless it renders objects as Python does, or not at all, but renders JSON strings as
    /// they are.
    fn wants_objects(&self) -> bool {
        let calls = [(NEEDLE, "R1q")];
        let objects = self.render(&calls, true).unwrap_or_default();
        let as_python = format!("'{NEEDLE}'");
        if objects.contains(NEEDLE) && !objects.contains(&as_python) {
            return true;
        }
        let texts = self.render(&calls, false).unwrap_or_default();
        !texts.contains(&format!("\"{NEEDLE}\""))
    }
}
