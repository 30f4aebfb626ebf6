//! Harness: real processes on port 0, and a client that sees every byte.
//!
//! Tests wait for events with a deadline, never for time to pass. Every process that is
//! started here is killed when its handle is dropped.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stderr, reason = "logs of what failed")]

pub mod batches;
pub mod browser;
pub mod client;
pub mod collector;
pub mod events;
pub mod file_server;
pub mod frames;
pub mod gguf;
pub mod losses;
pub mod mock_node;
pub mod postgres;
pub mod process;
pub mod raw;
pub mod reciter;
pub mod tools;
pub mod wire;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use inference_protocol::time::unix_seconds;

/// Longest wait for something that is expected to happen soon.
pub const SOON: Duration = Duration::from_secs(60);

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests lie in the repository").into()
}

/// What configurations are compared with: the schema that is published for editors.
pub fn config_validator() -> jsonschema::Validator {
    let text = std::fs::read_to_string(root().join("docs/gateway.schema.json")).unwrap();
    jsonschema::validator_for(&serde_json::from_str(&text).unwrap()).unwrap()
}

/// The demo model.
pub fn demo_model() -> PathBuf {
    root().join("inference-core/demo-model/flotilla-demo.gguf")
}

/// Asks `poll` again and again until it has an answer.
pub async fn eventually<T>(what: &str, poll: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(SOON, what, poll).await
}

/// The same for what takes longer.
pub async fn eventually_within<T>(
    time: Duration,
    what: &str,
    mut poll: impl AsyncFnMut() -> Option<T>,
) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = poll().await {
            return found;
        }
        assert!(begun.elapsed() < time, "waited in vain for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for the next day (in UTC) if this one ends within a minute: what is counted by day or by
/// month would begin anew in the middle of a test.
pub async fn not_before_midnight() {
    const DAY: u64 = 24 * 60 * 60;
    let left = || DAY - unix_seconds(SystemTime::now()) % DAY;
    let time = Duration::from_secs(90);
    eventually_within(time, "midnight to pass", async || (left() > 60).then_some(())).await;
}

/// Held-out questions for the demo model: domain, request fields, expected answer.
pub fn questions() -> Vec<(String, serde_json::Value, String)> {
    let text =
        std::fs::read_to_string(root().join("inference-core/demo-model/eval.jsonl")).unwrap();
    let read = |line: &str| {
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        let expect = line["expect"].as_str().unwrap().to_string();
        let domain = line["domain"].as_str().unwrap().to_string();
        let fields = line.as_object_mut().unwrap();
        fields.retain(|key, _| key == "messages" || key == "tools");
        fields.insert("model".into(), "flotilla-demo".into());
        fields.insert("temperature".into(), 0.into());
        (domain, line, expect)
    };
    let all: Vec<_> = text.lines().map(read).collect();
    assert!(all.len() >= 300, "the evaluation has {} questions", all.len());
    all
}

/// A conversation of questions and answers that ends with a question.
pub fn conversation(number: usize, turns: usize) -> serde_json::Value {
    let questions = questions();
    let short = |(_, request, _): &&(String, serde_json::Value, String)| {
        request["tools"].is_null() && request["messages"].as_array().unwrap().len() == 1
    };
    let mut asked = questions.iter().filter(short).cycle().skip(number * turns);
    let mut messages = Vec::new();
    for (_, request, expected) in asked.by_ref().take(turns) {
        messages.push(request["messages"][0].clone());
        messages.push(serde_json::json!({"role": "assistant", "content": expected}));
    }
    let mut request = asked.next().unwrap().1.clone();
    messages.push(request["messages"][0].clone());
    request["messages"] = messages.into();
    request
}

/// A chat request with one user message, at temperature 0.
pub fn chat(text: &str) -> serde_json::Value {
    serde_json::json!({
        "model": "flotilla-demo",
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
    })
}

/// The same, streamed.
pub fn streamed(mut request: serde_json::Value) -> serde_json::Value {
    request["stream"] = true.into();
    request
}
