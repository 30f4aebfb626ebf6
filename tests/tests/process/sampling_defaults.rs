//! Sampling parameters that a model file recommends: for requests that do not set them, on every
//! node that continues a response.

use std::path::PathBuf;

use fleet_tests::process::{Agent, Fleet, Folder};
use fleet_tests::{chat, streamed};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::split_model::with_fractions;

/// Greedy, but for what a strong penalty leaves.
const RECOMMENDED: [(&str, f32); 3] = [
    ("general.sampling.temp", 0.0),
    ("general.sampling.penalty_repeat", 5.0),
    ("general.sampling.mirostat", 2.0),
];

fn model(folder: &Folder) -> PathBuf {
    folder.write("flotilla-demo.gguf", with_fractions(&RECOMMENDED))
}

/// A chat that sets no sampling parameters.
fn question() -> Value {
    let mut chat = chat("Count from 1 to 40.");
    chat.as_object_mut().unwrap().remove("temperature");
    chat["max_tokens"] = 60.into();
    chat
}

fn with(mut chat: Value, fields: Value) -> Value {
    chat.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    chat
}

#[tokio::test]
async fn a_request_that_sets_no_parameters_gets_those_of_the_model() {
    let folder = Folder::new();
    let agent = Agent::start_with_model(&model(&folder), &[]).await;
    let ready = agent.server.wait_for_line("engine ready");
    assert!(ready.contains("temperature 0, repeat_penalty 5"), "{ready}");
    let listed = agent.client.get("/v1/models").await.json();
    let expected = json!({"temperature": 0.0, "repeat_penalty": 5.0});
    assert_eq!(listed["data"][0]["sampling_defaults"], expected);

    let plain = Agent::start(&[]).await;
    plain.server.wait_for_line("\"sampling_defaults\":\"none\"");
    let none = plain.client.get("/v1/models/flotilla-demo").await.json();
    assert!(none.get("sampling_defaults").is_none(), "{none}");
    let same = json!({"temperature": 0, "repeat_penalty": 5.0});
    let explicit = plain.client.chat(&with(question(), same)).await.content();
    let greedy = plain.client.chat(&with(question(), json!({"temperature": 0}))).await.content();
    assert_ne!(explicit, greedy, "the penalty makes a difference");
    for seed in [1, 2] {
        let chat = with(question(), json!({"seed": seed}));
        assert_eq!(agent.client.chat(&chat).await.content(), explicit);
    }
    // What the request sets wins.
    let without = with(question(), json!({"repeat_penalty": 1.0}));
    assert_eq!(agent.client.chat(&without).await.content(), greedy);
}

#[tokio::test]
async fn a_response_continues_on_another_node_with_the_same_parameters() {
    let folder = Folder::new();
    let path = model(&folder);
    let fleet = Fleet::start("").await;
    let one = fleet.join_with_model("one", &path, &[]).await;
    let whole = one.client.chat(&question()).await.content();
    let mut stream = fleet.client.stream(&streamed(question())).await;
    assert!(stream.next_chunk().await);
    // It would be done before anybody could go on.
    kill_process(one.engine(), Signal::STOP).unwrap();
    let _two = fleet.join_with_model("two", &path, &[]).await;
    one.kill();
    let said = stream.finish().await;
    assert_eq!((said.text, said.done, said.errors.len()), (whole, true, 0));
}

#[tokio::test]
async fn files_that_differ_only_in_their_recommendation_are_two_models() {
    let folder = Folder::new();
    let warmer = RECOMMENDED.map(|(key, value)| (key, value + 0.5));
    let other = folder.write("other.gguf", with_fractions(&warmer));
    let mut digests = Vec::new();
    for path in [model(&folder), other] {
        let agent = Agent::start_with_model(&path, &[]).await;
        let health = agent.client.get("/health").await.json();
        digests.push(health["models"][0]["digest"].as_str().unwrap().to_string());
    }
    assert_ne!(digests[0], digests[1]);
}
