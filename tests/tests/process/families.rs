//! Model families end to end: a real engine with the vocabulary, the chat template and the control
//! tokens of a family writes what its models write ([`fleet_tests::reciter`]), cut into tokens at
//! any byte. What clients get is the same for all.
//!
//! families.json says of each family: the shape of its template (inference-core/tests/
//! chat_templates), its control tokens and other words that are one token, the token that ends
//! responses, and three responses.

use fleet_tests::process::{Agent, Folder};
use fleet_tests::reciter::{Reciter, Special};
use fleet_tests::root;
use serde::Deserialize;
use serde_json::{Value, json};

/// What a family writes, and what of it is reasoning and content.
#[derive(Debug, Deserialize)]
struct Family {
    template: String,
    pre: String,
    control: Vec<String>,
    words: Vec<String>,
    end: String,
    bos: Option<String>,
    reasoning: Option<String>,
    /// The content before the call of `one`.
    content: Option<String>,
    one: String,
    two: String,
    plain: String,
    /// The IDs that the model writes itself; `{}` stands for the function's name.
    ids: Option<Vec<String>>,
    /// How many calls `two` has, if not two.
    calls: Option<usize>,
}

/// Where responses begin: tokens of the prompts that they answer.
const ONE: usize = 4096;
const TWO: usize = 5120;
const PLAIN: usize = 6144;
/// The user's message, as often as it takes to get there. One token each.
const FILLER: &str = "x";

fn families() -> Vec<Family> {
    serde_json::from_str(include_str!("families.json")).unwrap()
}

fn tools() -> Value {
    let properties = json!({
        "city": {"type": "string"}, "days": {"type": "integer"},
        "deep": {"type": "object", "properties": {"a": {"type": "array"}}},
    });
    let function = |name: &str, parameters: Value| {
        let function = json!({"name": name, "description": "does it", "parameters": parameters});
        json!({"type": "function", "function": function})
    };
    let usual = json!({"type": "object", "properties": properties});
    json!([
        function("get_weather", usual.clone()),
        function("send", usual),
        function("now", json!({"type": "object", "properties": {}}))
    ])
}

/// A family's model behind an agent.
struct Model {
    family: Family,
    agent: Agent,
    _folder: Folder,
}

impl Model {
    async fn start(family: Family, sizes: &[usize]) -> Self {
        let folder = Folder::new();
        let shapes = root().join("inference-core/tests/chat_templates");
        let template = shapes.join(format!("{}.jinja", family.template));
        let template = std::fs::read_to_string(template).unwrap();
        let special = Special { control: &family.control, words: &family.words };
        let mut reciter = Reciter::new(special, &family.end);
        let texts = [(ONE, &family.one), (TWO, &family.two), (PLAIN, &family.plain)];
        texts.iter().for_each(|(prompt, text)| reciter.recite(*prompt, text, sizes));
        let file = folder.path().join("model.gguf");
        reciter.write(&file, &template, &family.pre, family.bos.as_deref());
        let flags = ["--model-name", "m", "--ctx-size", "8192", "--parallel", "1"];
        let agent = Agent::start_with_model(&file, &flags).await;
        Self { family, agent, _folder: folder }
    }

    /// The message that answers a prompt of so many tokens, whole or put together from a stream,
    /// and why it ended.
    async fn answer(&self, tokens: usize, more: Value, is_streamed: bool) -> (Value, String) {
        let mut request = json!({"model": "m", "temperature": 0, "max_tokens": 1,
            "messages": [{"role": "user", "content": FILLER}], "tools": tools()});
        let fields = more.as_object().unwrap().clone();
        request.as_object_mut().unwrap().extend(fields);
        let counted = self.agent.client.chat(&request).await;
        let name = &self.family.template;
        assert_eq!(counted.status, 200, "{name}: {}", counted.json());
        let has = counted.json()["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
        assert!(has <= tokens, "{name}: a prompt has {has} tokens");
        request["messages"][0]["content"] = FILLER.repeat(tokens - has + 1).into();
        request["max_tokens"] = 400.into();
        request["stream"] = is_streamed.into();
        let answer = self.agent.client.chat(&request).await;
        if answer.status != 200 {
            return (answer.json(), "an error".into());
        }
        if is_streamed {
            return collected(std::str::from_utf8(&answer.body).unwrap());
        }
        let usage = &answer.json()["usage"];
        let reasoning = usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
        let total = usage["completion_tokens"].as_u64().unwrap();
        assert!(reasoning < total && (reasoning > 0) == self.family.reasoning.is_some(), "{name}");
        let choice = &answer.json()["choices"][0];
        (choice["message"].clone(), choice["finish_reason"].as_str().unwrap().into())
    }

    /// What is wrong with an answer; empty if nothing is.
    fn complaints(&self, what: &str, answer: &(Value, String), expected: &Expected) -> String {
        let (message, finish) = answer;
        let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
        let said = |field: &str| message[field].as_str().unwrap_or_default().trim().to_string();
        let read = |call: &Value| {
            let function = &call["function"];
            let text = function["arguments"].as_str().unwrap();
            let arguments = serde_json::from_str(text).unwrap_or_else(|_| json!(text));
            (function["name"].as_str().unwrap().to_string(), arguments)
        };
        let ids = || calls.iter().map(|call| call["id"].as_str().unwrap_or_default());
        let names = expected.calls.iter().map(|(name, _)| name.as_str());
        let are_ids = self.family.ids.as_ref().is_none_or(|given| {
            let given = given.iter().zip(names).map(|(id, name)| id.replace("{}", name));
            given.eq(ids())
        });
        let is_right = calls.iter().map(read).eq(expected.calls.iter().cloned())
            && said("content") == expected.content
            && said("reasoning_content") == self.family.reasoning.clone().unwrap_or_default()
            && finish == (if expected.calls.is_empty() { "stop" } else { "tool_calls" })
            && (are_ids && ids().all(|id| !id.is_empty()));
        if is_right {
            return String::new();
        }
        format!("{} {what}: {finish} {message}\n", self.family.template)
    }
}

struct Expected {
    content: String,
    calls: Vec<(String, Value)>,
}

impl Family {
    /// The prompt's tokens and what the answer must be.
    fn expected(&self) -> [(usize, Expected); 3] {
        let one = ("get_weather".to_string(), json!({"city": "Paris", "days": 3}));
        let hard = "He said \"東京\"\nand left: {x}";
        let two = [
            ("send".to_string(), json!({"city": hard, "deep": {"a": [1, "ö"]}})),
            ("now".to_string(), json!({})),
        ];
        let two = two[..self.calls.unwrap_or(2)].to_vec();
        let before = self.content.clone().unwrap_or_default();
        [
            (ONE, Expected { content: before, calls: vec![one] }),
            (TWO, Expected { content: String::new(), calls: two }),
            (PLAIN, Expected { content: "Hello, wörld!".into(), calls: Vec::new() }),
        ]
    }
}

/// The message of a stream.
fn collected(stream: &str) -> (Value, String) {
    let mut message = json!({"content": "", "reasoning_content": "", "tool_calls": []});
    let mut finish = String::new();
    let append = |to: &mut Value, more: &Value| {
        if let Some(more) = more.as_str() {
            *to = format!("{}{more}", to.as_str().unwrap_or_default()).into();
        }
    };
    for line in stream.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let Ok(chunk) = serde_json::from_str::<Value>(line) else { continue };
        let choice = &chunk["choices"][0];
        for field in ["content", "reasoning_content"] {
            append(&mut message[field], &choice["delta"][field]);
        }
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            let calls = message["tool_calls"].as_array_mut().unwrap();
            if index == calls.len() {
                calls.push(json!({"id": call["id"], "function": {"name": "", "arguments": ""}}));
            }
            for field in ["name", "arguments"] {
                append(&mut calls[index]["function"][field], &call["function"][field]);
            }
        }
        finish = choice["finish_reason"].as_str().map_or(finish, String::from);
    }
    (message, finish)
}

impl Model {
    /// What is wrong with all answers, and with what is asked after one.
    async fn all_complaints(&self) -> String {
        let mut complaints = String::new();
        for (tokens, expected) in self.family.expected() {
            for is_streamed in [false, true] {
                let what = format!("after {tokens} tokens, streamed {is_streamed}");
                let answer = self.answer(tokens, json!({}), is_streamed).await;
                complaints += &self.complaints(&what, &answer, &expected);
                if tokens == TWO {
                    let required = json!({"tool_choice": "required"});
                    let answer = self.answer(tokens, required, is_streamed).await;
                    complaints += &self.complaints(&(what + ", required"), &answer, &expected);
                }
                if tokens == ONE && !is_streamed {
                    complaints += &self.complaint_of_result(answer.0).await;
                }
            }
        }
        complaints
    }

    /// What is wrong when the result of a call is sent back.
    async fn complaint_of_result(&self, message: Value) -> String {
        let id = message["tool_calls"][0]["id"].clone();
        let result = json!({"role": "tool", "tool_call_id": id, "content": "It is sunny."});
        let messages = json!([{"role": "user", "content": "Hi"}, message, result]);
        let request = json!({"model": "m", "messages": messages, "tools": tools()});
        let rendered = self.agent.client.post("/apply-template", request.to_string()).await;
        let text = String::from_utf8_lossy(&rendered.body).into_owned();
        if rendered.status == 200
            && ["get_weather", "Paris", "sunny"].iter().all(|w| text.contains(w))
        {
            return String::new();
        }
        format!("{} after a result: {} {text}\n", self.family.template, rendered.status)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_each_model_family_writes_becomes_calls_reasoning_and_content() {
    let mut complaints = String::new();
    for (index, family) in families().into_iter().enumerate() {
        let sizes = [[1, 3, 2, 7], [5, 1, 4, 9], [2, 2, 11, 6]][index % 3];
        complaints += &Model::start(family, &sizes).await.all_complaints().await;
    }
    assert!(complaints.is_empty(), "{complaints}");
}
