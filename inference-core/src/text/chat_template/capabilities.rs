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
    /// Renders several system messages in a row, before any other.
    pub many_system: bool,
    /// Renders system messages after a turn.
    pub late_system: bool,
    /// Supports the role `developer`.
    pub developer_role: bool,
    /// Lists the available tools.
    pub tools: bool,
    /// Prints the field `tools` of the system message instead, which is JSON.
    pub system_tools: bool,
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
    /// Renders the content of a message with calls.
    pub text_beside_calls: bool,
    /// Renders the `name` of a user message.
    pub names: bool,
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
        let content = can.content;
        let say = |role: &str, text: &str| message(role, content, text);
        let user = say("user", "Hi");

        probe_system(template, &mut can);
        // The word alone says nothing: some templates refuse the role, and others drop its text.
        let developer = render(template, vec![say("developer", NEEDLE), user.clone()], &[]);
        can.developer_role = template.source.contains("developer")
            && developer.is_some_and(|text| text.contains(NEEDLE));
        let tools = render(template, vec![user.clone()], &[tool(NEEDLE)]);
        can.tools = tools.is_some_and(|text| text.contains(NEEDLE));
        can.system_tools = !can.tools && {
            let mut system = say("system", "Hi");
            system.insert("tools".into(), NEEDLE.into());
            let text = render(template, vec![system, user.clone()], &[]);
            text.is_some_and(|text| text.contains(NEEDLE))
        };

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
        can.text_beside_calls =
            can.tool_calls && !can.null_content && calls.writes_text(can.object_arguments);
        can.enforces_call_ids = can.tool_calls && !calls.takes_long_ids(can.object_arguments);
        can.call_ids = match can.enforces_call_ids {
            true => CallIds::Mistral,
            false => CallIds::detect(&template.source),
        };
        if can.content == Content::Either && !takes_parts_everywhere(template, &can, &calls) {
            can.content = Content::Text;
        }
        let mut named = message("user", can.content, "Hi");
        named.insert("name".into(), NEEDLE.into());
        can.names = render(template, vec![named], &[]).is_some_and(|text| text.contains(NEEDLE));
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

/// Probes system messages: one, two in a row, and one after a turn.
fn probe_system(template: &Compiled, can: &mut Capabilities) {
    let content = can.content;
    let say = |role: &str, text: &str| message(role, content, text);
    let user = || say("user", "Hi");
    let shows = |messages, words: &[&str]| {
        let text = render(template, messages, &[]).unwrap_or_default();
        words.iter().all(|word| text.contains(word))
    };
    let one = vec![say("system", NEEDLE), user()];
    let two = vec![say("system", SECOND), say("system", NEEDLE), user()];
    let turn = [say("system", SECOND), user(), say("assistant", "Hello")];
    let late = turn.into_iter().chain([say("system", NEEDLE), user()]).collect();
    let both = [NEEDLE, SECOND];
    (can.system_role, can.many_system, can.late_system) =
        (shows(one, &[NEEDLE]), shows(two, &both), shows(late, &both));
}

/// True if the text is in a rendered prompt, and not because a list was printed as is, which shows
/// quotes.
fn is_shown(text: &str, word: &str) -> bool {
    let quoted = [format!("'{word}'"), format!("\"{word}\"")];
    text.contains(word) && !quoted.iter().any(|quoted| text.contains(quoted))
}

/// True if messages of all roles may have a list of several parts as content: some templates render
/// only the first part, or lists only of users.
fn takes_parts_everywhere(template: &Compiled, can: &Capabilities, calls: &Calls<'_>) -> bool {
    let user = message("user", Content::Text, "Hi");
    let two = json!([{"type": "text", "text": NEEDLE}, {"type": "text", "text": SECOND}]);
    let parts = |role: &str| object(json!({"role": role, "content": two}));
    let shows = |messages, tools: &[Json]| {
        let text = render(template, messages, tools).unwrap_or_default();
        is_shown(&text, NEEDLE) && is_shown(&text, SECOND)
    };
    let system = !can.system_role || shows(vec![parts("system"), user.clone()], &[]);
    let assistant = shows(vec![user.clone(), parts("assistant"), user.clone()], &[]);
    let user = shows(vec![parts("user")], &[]);
    let tool = || {
        let mut turn = calls.conversation(&[("a", NEEDLE)], can.object_arguments);
        if let Some(result) = turn.last_mut() {
            result.insert("content".into(), two.clone());
        }
        shows(turn, &[tool("f")])
    };
    system && assistant && user && (!can.tool_calls || tool())
}

fn probe_content(template: &Compiled) -> Content {
    let writes = |content| {
        let text = render(template, vec![message("user", content, NEEDLE)], &[]);
        text.is_some_and(|text| is_shown(&text, NEEDLE))
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

    /// True if the content of a message with calls is rendered.
    fn writes_text(&self, as_objects: bool) -> bool {
        let mut turn = self.conversation(&[(SECOND, "R1q")], as_objects);
        if let Some(assistant) = turn.get_mut(1) {
            assistant.insert("content".into(), NEEDLE.into());
        }
        render(self.template, turn, &[tool("f")]).is_some_and(|text| text.contains(NEEDLE))
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
