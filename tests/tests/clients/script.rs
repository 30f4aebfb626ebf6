//! The model: nodes that do what a script says, and die where it says so.

use futures_util::future::select_all;

use fleet_tests::mock_node::{Asked, MockNode, healthy};
use fleet_tests::process::Fleet;
use inference_protocol::resume::{Mark, Usage};
use serde_json::{Value, json};

/// The model's name.
pub const MODEL: &str = "scripted";
/// Gateways ask nodes nothing of their own.
const QUIET: &str = "health: {probe_interval_ms: 0}\n";
/// More than any prompt of the programs.
const CONTEXT_TOKENS: u32 = 200_000;

/// A part of a response: a delta, and the reason why it ends.
pub type Part = (Value, Value);

/// A response of text.
pub fn text(pieces: &[&str]) -> Vec<Part> {
    let said = pieces.iter().map(|piece| (json!({ "content": piece }), Value::Null));
    opened().into_iter().chain(said).chain([(json!({}), json!("stop"))]).collect()
}

/// A call of a tool; the arguments arrive eight characters at a time.
pub fn call(name: &str, arguments: &Value) -> Vec<Part> {
    let call = |fields: Value| (json!({ "tool_calls": [fields] }), Value::Null);
    let head = json!({"index": 0, "id": "call_1", "type": "function",
        "function": {"name": name, "arguments": ""}});
    let arguments: Vec<char> = arguments.to_string().chars().collect();
    let pieces = arguments.chunks(8).map(String::from_iter);
    let pieces = pieces.map(|piece| json!({"index": 0, "function": {"arguments": piece}}));
    let mut parts = opened();
    parts.push(call(head));
    parts.extend(pieces.map(call));
    parts.push((json!({}), json!("tool_calls")));
    parts
}

fn opened() -> Vec<Part> {
    vec![(json!({"role": "assistant", "content": ""}), Value::Null)]
}

/// The results of tools that a conversation has.
pub fn results(body: &Value) -> Vec<&Value> {
    let messages = body["messages"].as_array().unwrap().iter();
    messages.filter(|message| message["role"] == "tool").collect()
}

/// A request that a node got.
pub struct Seen {
    /// The chat completion request, as it was sent.
    pub raw: String,
    /// The same, parsed.
    pub body: Value,
    /// Events that the client already had from a node that is gone.
    pub events: u64,
}

/// Nodes with one script. The last of them does not die.
pub struct Model {
    nodes: Vec<MockNode>,
    /// How many parts of a response the first nodes send, one entry for each.
    losses: Vec<usize>,
    /// Every request, in order.
    pub seen: Vec<Seen>,
}

/// A gateway that is quiet.
pub async fn fleet() -> Fleet {
    Fleet::start(QUIET).await
}

/// A node with the model.
pub async fn node(fleet: &Fleet, name: &str, slots: u32) -> MockNode {
    let mut status = healthy(name, slots);
    status.models[0].id = MODEL.into();
    status.models[0].context_tokens = CONTEXT_TOKENS;
    let node = MockNode::join(fleet.client.address(), status).await;
    fleet.wait_for_slots(name).await;
    node
}

impl Model {
    /// Starts one node more than there are losses: each loss is the number of parts after which a
    /// node is lost.
    pub async fn start(fleet: &Fleet, losses: &[usize]) -> Self {
        let mut nodes = Vec::new();
        for number in 0..=losses.len() {
            nodes.push(node(fleet, &format!("scripted-{number}"), 8).await);
        }
        Self { nodes, losses: losses.to_vec(), seen: Vec::new() }
    }

    /// Plays the model until `program` ends: `respond` is the model.
    pub async fn play<T>(
        &mut self,
        program: impl Future<Output = T>,
        respond: impl Fn(&Value) -> Vec<Part>,
    ) -> T {
        tokio::select! {
            ended = program => ended,
            () = self.serve(respond) => unreachable!("it serves for ever"),
        }
    }

    async fn serve(&mut self, respond: impl Fn(&Value) -> Vec<Part>) {
        let mut lost = None;
        loop {
            let all = self.nodes.iter_mut().map(|node| Box::pin(node.asked()));
            let (asked, index, _) = select_all(all).await;
            // The gateway has all that this node sent, and asks another one.
            if let Some(node) = lost.take() {
                MockNode::dies(&node);
            }
            let parts = respond(&asked.body);
            let events = asked.resume.choices.first().map_or(0, |choice| choice.events);
            let raw = String::from_utf8(asked.raw.to_vec()).unwrap();
            self.seen.push(Seen { raw, body: asked.body.clone(), events });
            let is_lost = self
                .losses
                .first()
                .is_some_and(|after| *after > events as usize && *after < parts.len());
            let end = if is_lost { self.losses.remove(0) } else { parts.len() };
            say(asked, events as usize, &parts[..end], !is_lost).await;
            if is_lost {
                lost = Some(self.nodes.remove(index));
            }
        }
    }
}

/// Sends the parts that the client does not have yet. Without an end, the stream breaks.
async fn say(asked: Asked, events: usize, parts: &[Part], is_ended: bool) {
    let stream = asked.stream();
    for (index, (delta, finish)) in parts.iter().enumerate().skip(events) {
        let mut event = String::new();
        Mark::Tokens { choice: 0, tokens: vec![index as u32] }.write(&mut event);
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        stream.send(format!("{event}data: {}\n\n", json!({"choices": [choice]}))).await;
    }
    if is_ended {
        let mut mark = String::new();
        let usage = Usage { prompt: 9, completion: parts.len() as u64, cached: 0 };
        Mark::Usage(usage).write(&mut mark);
        let counts = json!({"prompt_tokens": 9, "completion_tokens": parts.len()});
        stream.send(format!("{mark}data: {}\n\n", json!({"choices": [], "usage": counts}))).await;
        stream.send("data: [DONE]\n\n").await;
    }
}
