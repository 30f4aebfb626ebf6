//! A stopping node hands its saved conversations to another node, which continues them with the
//! same tokens and without computing them again.

use std::path::{Path, PathBuf};

use fleet_tests::client::Client;
use fleet_tests::eventually;
use fleet_tests::process::{Agent, Fleet, Folder, Server, run};
use rustix::process::Signal;
use serde_json::{Value, json};

const ON: &str = "nodes: {join_key_file: join.key, hand_over: true}\n";
const OFF: &str = "nodes: {join_key_file: join.key}\n";

/// A node that keeps prefixes on its own disk.
struct Node {
    agent: Agent,
    cache: Folder,
}

async fn serve(model: &Path, more: &[&str], variables: &[(&str, &str)]) -> Agent {
    let usual = ["serve", "--listen", "127.0.0.1:0", "--threads", "1", "--slots", "2"];
    let sizes = ["--context-tokens", "2048", "--model-name", "m"];
    let all = [&usual[..], &sizes, &["--model", model.to_str().unwrap()], more].concat();
    let server = Server::start_with("flotilla-agent", &all, variables);
    let client = Client::new(server.address(), None);
    let agent = Agent { server, client };
    agent.ready().await;
    agent
}

impl Node {
    async fn join(fleet: &Fleet, name: &str, model: &Path, more: &[&str]) -> Self {
        let (cache, key) = (Folder::new(), fleet.folder().path().join("join.key"));
        let joins = ["--name", name, "--join", &fleet.url, "--join-key-file"];
        let files = [key.to_str().unwrap(), "--prefix-disk-mib", "64"];
        let variables = [("FLOTILLA_CACHE_DIR", cache.path().to_str().unwrap())];
        let agent = serve(model, &[&joins[..], &files, more].concat(), &variables).await;
        fleet.wait_for_slots(name).await;
        Self { agent, cache }
    }

    async fn leaves(mut self) -> Folder {
        self.agent.server.signal(Signal::TERM);
        assert_eq!(self.agent.server.ended().await, Some(0), "{}", self.agent.server.log());
        self.cache
    }

    async fn received(&self) -> f64 {
        self.agent.metric("node_received_prefixes_total").await
    }
}

fn model(folder: &Folder, shape: &str) -> PathBuf {
    let model = folder.path().join(format!("{shape}.gguf"));
    let arguments = ["synth", "--shape", shape, "--quant", "f16", model.to_str().unwrap()];
    assert_eq!(run("flotilla-agent", &arguments).code, Some(0));
    model
}

async fn complete(client: &Client, prompt: &str) -> Value {
    let body = json!({"model": "m", "prompt": prompt, "max_tokens": 30, "temperature": 0,
        "ignore_eos": true});
    client.post("/v1/completions", body.to_string()).await.json()
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn prompt(topic: &str) -> String {
    format!("{topic} to be or not ").repeat(70)
}

/// How many prefixes the gateway has handed over.
async fn moved(fleet: &Fleet) -> f64 {
    let name = "gateway_prefixes_handed_over_total{outcome=\"moved\"}";
    fleet_tests::process::metric(&fleet.admin, name).await
}

#[tokio::test]
async fn conversations_of_a_leaving_node_go_on_elsewhere_with_the_same_tokens() {
    let folder = Folder::new();
    for shape in ["tiny", "tiny-hybrid"] {
        let (model, fleet) = (model(&folder, shape), Fleet::start(ON).await);
        let a = Node::join(&fleet, "a", &model, &[]).await;
        let topics = ["Kings", "Ghosts", "Skulls"];
        let mut first = Vec::new();
        for topic in topics {
            first.push(complete(&fleet.client, &prompt(topic)).await);
        }
        let b = Node::join(&fleet, "b", &model, &[]).await;
        a.leaves().await;
        assert!(moved(&fleet).await >= 3.0, "{shape}: {}", fleet.server.log());
        eventually("the engine to take them", async || (b.received().await >= 3.0).then_some(()))
            .await;
        let plain = serve(&model, &["--no-prefix-cache"], &[]).await;
        for (topic, first) in topics.iter().zip(&first) {
            let next = format!("{}{}. And then? ", prompt(topic), text(first));
            let expected = complete(&plain.client, &next).await;
            let second = complete(&fleet.client, &next).await;
            assert_eq!(text(&second), text(&expected), "{shape}");
            assert!(cached(&second) > 256, "{shape}: {second}");
        }
    }
}

#[tokio::test]
async fn conversations_of_a_drained_node_go_on_elsewhere_while_it_still_runs() {
    let folder = Folder::new();
    for shape in ["tiny", "tiny-hybrid"] {
        let (model, fleet) = (model(&folder, shape), Fleet::start(ON).await);
        let a = Node::join(&fleet, "a", &model, &[]).await;
        let mut first = Vec::new();
        for topic in ["Kings", "Ghosts"] {
            first.push((topic, complete(&fleet.client, &prompt(topic)).await));
        }
        let b = Node::join(&fleet, "b", &model, &[]).await;
        assert_eq!(fleet.admin.post("/admin/v1/nodes/a/drain", "").await.status, 200);
        eventually("b to take them", async || (b.received().await >= 2.0).then_some(())).await;
        let plain = serve(&model, &["--no-prefix-cache"], &[]).await;
        for (topic, first) in first {
            let next = format!("{}{}. And then? ", prompt(topic), text(&first));
            let expected = complete(&plain.client, &next).await;
            let second = complete(&fleet.client, &next).await;
            assert_eq!(text(&second), text(&expected), "{shape}");
            assert!(cached(&second) > 256, "{shape}: {second}");
        }
        // It computes for a client of its own port, and hands that over when it stops.
        let (before, received) = (moved(&fleet).await, b.received().await);
        complete(&a.agent.client, &prompt("Skulls")).await;
        a.leaves().await;
        eventually("b to take it", async || (b.received().await > received).then_some(())).await;
        assert!(moved(&fleet).await > before, "{shape}");
    }
}

#[tokio::test]
async fn a_drained_node_that_has_handed_everything_over_stops_without_doing_it_again() {
    let folder = Folder::new();
    let (model, fleet) = (model(&folder, "tiny"), Fleet::start(ON).await);
    let a = Node::join(&fleet, "a", &model, &[]).await;
    complete(&fleet.client, &prompt("Kings")).await;
    let b = Node::join(&fleet, "b", &model, &[]).await;
    assert_eq!(fleet.admin.post("/admin/v1/nodes/a/drain", "").await.status, 200);
    eventually("b to take it", async || (b.received().await >= 1.0).then_some(())).await;
    let before = moved(&fleet).await;
    a.leaves().await;
    assert_eq!(moved(&fleet).await, before);
}

#[tokio::test]
async fn a_node_leaves_at_once_where_nobody_wants_or_can_use_its_prefixes() {
    let folder = Folder::new();
    let model = model(&folder, "tiny");
    for (config, more) in [(OFF, [].as_slice()), (ON, &["--kv-type", "q8_0"])] {
        let fleet = Fleet::start(config).await;
        let a = Node::join(&fleet, "a", &model, &[]).await;
        complete(&fleet.client, &prompt("Kings")).await;
        let b = Node::join(&fleet, "b", &model, more).await;
        let cache = a.leaves().await;
        assert_eq!(b.received().await, 0.0);
        // They are there for a node that starts again.
        assert!(std::fs::read_dir(cache.path().join("prefixes")).unwrap().count() > 0);
    }
}

#[tokio::test]
async fn only_a_gateway_that_the_agent_dialed_may_send_or_read_prefixes() {
    let folder = Folder::new();
    let (model, fleet) = (model(&folder, "tiny"), Fleet::start(ON).await);
    let a = Node::join(&fleet, "a", &model, &[]).await;
    let client = &a.agent.client;
    assert_eq!(client.get("/fleet/v1/prefixes").await.status, 404);
    assert_eq!(client.get("/fleet/v1/prefixes/1").await.status, 404);
    assert_eq!(client.post("/fleet/v1/prefixes", String::new()).await.status, 404);
    assert_eq!(fleet.client.get("/fleet/v1/prefixes").await.status, 404);
}
