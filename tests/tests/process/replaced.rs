//! Model files that change while they are served: an answer goes on with the weights that it began
//! with, or not at all.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fleet_tests::client::Transcript;
use fleet_tests::process::{Agent, Fleet, Folder, run};
use fleet_tests::{chat, demo_model, eventually, streamed};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::split_model::split;

/// "1, 2, ..."
fn counted(to: u32) -> String {
    (1..=to).map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
}

/// A copy of the demo model.
fn copied(folder: &Folder) -> PathBuf {
    let path = folder.path().join("model.gguf");
    std::fs::copy(demo_model(), &path).unwrap();
    path
}

/// Changes a byte of the last weights.
fn change(path: &Path) {
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let at = file.metadata().unwrap().len() - 100;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Puts a file with other weights in its place, as `pull` and package managers do.
fn replace(path: &Path) {
    let new = path.with_extension("new");
    std::fs::copy(path, &new).unwrap();
    change(&new);
    std::fs::rename(&new, path).unwrap();
}

/// What the agent serves: its digest, once there is an engine.
async fn digest(agent: &Agent) -> Option<String> {
    let health: Value = agent.client.get("/health").await.json();
    Some(health.pointer("/models/0/digest")?.as_str()?.to_string())
}

async fn other_digest(agent: &Agent, before: &str) -> String {
    eventually("another digest", async || digest(agent).await.filter(|now| now != before)).await
}

#[tokio::test]
async fn a_replaced_model_file_is_served_under_its_own_digest_after_a_crash() {
    let folder = Folder::new();
    let model = copied(&folder);
    let agent = Agent::start_with_model(&model, &["--model-name", "flotilla-demo"]).await;
    let before = digest(&agent).await.unwrap();
    replace(&model);
    // The engine has the file that it opened, and goes on with it.
    assert_eq!(agent.client.chat(&chat("Count from 1 to 5.")).await.content(), counted(5));
    assert_eq!(digest(&agent).await.as_ref(), Some(&before));
    kill_process(agent.engine(), Signal::KILL).unwrap();
    let after = other_digest(&agent, &before).await;
    assert_eq!(agent.client.chat(&chat("Count from 1 to 5.")).await.status, 200);
    agent.server.wait_for_line("the model file was replaced");
    // The same file again, from another engine.
    kill_process(agent.engine(), Signal::KILL).unwrap();
    eventually("the next engine", async || {
        (agent.metric("node_engine_restarts_total").await == 2.0).then_some(())
    })
    .await;
    agent.ready().await;
    assert_eq!(digest(&agent).await, Some(after));
}

/// A stream on a node whose model file is replaced while its engine dies; and that node.
async fn stream_over_a_replacement(fleet: &Fleet, other: bool) -> (Transcript, Agent) {
    let folder = Folder::new();
    let model = copied(&folder);
    let named = ["--slots", "2", "--model-name", "flotilla-demo"];
    let a = fleet.join_with_model("a", &model, &named).await;
    let before = digest(&a).await.unwrap();
    let mut stream = fleet.client.stream(&streamed(chat("Count from 1 to 40."))).await;
    assert!(stream.next_chunk().await);
    // It would be done before anybody could go on.
    kill_process(a.engine(), Signal::STOP).unwrap();
    let b = if other { Some(fleet.join("b", &["--slots", "2"]).await) } else { None };
    replace(&model);
    kill_process(a.engine(), Signal::KILL).unwrap();
    let said = stream.finish().await;
    other_digest(&a, &before).await;
    drop(b);
    (said, a)
}

#[tokio::test]
async fn a_stream_does_not_go_on_with_other_weights() {
    let fleet = Fleet::start("timeouts: {resume_ms: 3000, queue_ms: 3000}\n").await;
    let (said, _a) = stream_over_a_replacement(&fleet, false).await;
    assert!(!said.done && said.errors.len() == 1, "{said:?}");
    assert!(counted(40).starts_with(&said.text), "{said:?}");
    eventually("the node with its new weights to be used", async || {
        (fleet.client.chat(&chat("Count from 1 to 5.")).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_stream_goes_on_at_a_node_that_still_has_its_weights() {
    let fleet = Fleet::start("").await;
    let (said, _a) = stream_over_a_replacement(&fleet, true).await;
    assert!(said.done && said.errors.is_empty(), "{said:?}");
    assert_eq!(said.text, counted(40));
}

#[tokio::test]
async fn writing_into_a_model_file_ends_its_engine_and_changes_its_digest() {
    let folder = Folder::new();
    let model = copied(&folder);
    let agent = Agent::start_with_model(&model, &[]).await;
    let before = digest(&agent).await.unwrap();
    change(&model);
    agent.server.wait_for_line("the model file was modified");
    let after = other_digest(&agent, &before).await;
    change(&model);
    assert_eq!(other_digest(&agent, &after).await, before, "it is as it was");
}

#[tokio::test]
async fn a_model_file_that_is_no_model_any_more_is_not_served_until_it_is_mended() {
    let folder = Folder::new();
    let model = copied(&folder);
    let agent = Agent::start_with_model(&model, &[]).await;
    let before = digest(&agent).await.unwrap();
    std::fs::rename(folder.write("other", "this is no model"), &model).unwrap();
    kill_process(agent.engine(), Signal::KILL).unwrap();
    agent.server.wait_for_line("is not a GGUF model file");
    assert_eq!(agent.client.get("/readyz").await.status, 503);
    std::fs::copy(demo_model(), folder.path().join("right")).unwrap();
    std::fs::rename(folder.path().join("right"), &model).unwrap();
    agent.ready().await;
    assert_eq!(digest(&agent).await, Some(before));
}

#[tokio::test]
async fn every_file_of_a_split_model_is_loaded_and_counts_in_its_digest() {
    let folder = Folder::new();
    let [first, second] = split(&folder);
    let agent = Agent::start_with_model(&first, &["--model-name", "flotilla-demo"]).await;
    assert_eq!(agent.client.chat(&chat("Count from 1 to 5.")).await.content(), counted(5));
    let before = digest(&agent).await.unwrap();
    replace(&second);
    kill_process(agent.engine(), Signal::KILL).unwrap();
    let after = other_digest(&agent, &before).await;
    change(&second);
    assert_eq!(other_digest(&agent, &after).await, before, "it is as it was");
    let alone = run("flotilla-agent", &["check", second.to_str().unwrap()]);
    assert!(alone.stdout.contains("name the first one"), "{}", alone.stdout);
}

#[tokio::test]
async fn a_node_does_not_take_a_request_that_is_meant_for_other_weights() {
    let agent = Agent::start(&[]).await;
    let ask = async |digest: &str| {
        let client = agent.client.with_header("x-flotilla-digest", digest);
        client.chat(&chat("Count from 1 to 5.")).await
    };
    let right = digest(&agent).await.unwrap();
    assert_eq!(ask(&right).await.content(), counted(5));
    let refused = ask(&"0".repeat(64)).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "model_changed"));
    let invalid = ask("none").await;
    assert_eq!((invalid.status, invalid.error_code().as_str()), (400, "invalid_value"));
}
