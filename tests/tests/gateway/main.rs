//! The gateway in this process, with nodes that do what each test tells them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod affinity;
mod answers;
mod background;
mod batch_slots;
mod batches;
mod bodies;
mod budgets;
mod classes;
mod dialects;
mod encryption;
mod external;
mod files;
mod hand_over;
mod health;
mod hedge;
mod jobs;
mod keys;
mod lengths;
mod limits;
mod links;
mod llama_server;
mod lying;
mod message_batches;
mod messages;
mod ollama;
mod payment;
mod queue;
mod reload;
mod rerank;
mod responses;
mod resume;
mod retries;
mod shares;
mod split;
mod stored_keys;
mod stored_responses;
mod streams;
mod traces;
mod usage;
mod users;
mod users_of_apis;
mod work;

use std::net::SocketAddr;

use fleet_tests::client::{Answer, Client, Transcript};
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::{ADMIN_KEY, Folder, JOIN_KEY};
use fleet_tests::{SOON, chat, eventually, streamed};
use flotilla_gateway::app;
use flotilla_gateway::config::load::load;
use flotilla_gateway::context::settings::LiveSettings;
use flotilla_gateway::tasks::reload::Source;
use inference_protocol::fleet::NodeStatus;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

struct Gateway {
    address: SocketAddr,
    client: Client,
    admin: Client,
    settings: LiveSettings,
    stop: CancellationToken,
    running: JoinHandle<()>,
    folder: Folder,
}

/// What all have in common, and `more`.
fn config(more: &str) -> String {
    let admin = "admin: {listen: '127.0.0.1:0', key_file: admin.key}";
    let nodes = if more.contains("nodes:") { "" } else { "nodes: {join_key_file: join.key}\n" };
    format!("listen: 127.0.0.1:0\n{admin}\n{nodes}{more}")
}

/// Posts a body in the background.
fn posts(gateway: &Gateway, path: &'static str, body: Value) -> JoinHandle<Answer> {
    let client = gateway.client.clone();
    tokio::spawn(async move { client.post(path, body.to_string()).await })
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Gateway {
    async fn start(more: &str) -> Self {
        Self::start_with_keys("allow_anonymous: true\n", more).await
    }

    async fn start_with_keys(keys: &str, more: &str) -> Self {
        let folder = Folder::new();
        folder.write("join.key", JOIN_KEY);
        folder.write("admin.key", ADMIN_KEY);
        let more = format!("{keys}{more}");
        let file = folder.write("gateway.yaml", config(&more));
        let settings = LiveSettings::new(load(&file).unwrap()).await.unwrap();
        let address = settings.public().address().unwrap();
        let admin = Client::new(settings.admin().address().unwrap(), Some(ADMIN_KEY));
        let stop = CancellationToken::new();
        let serving = app::run(settings.clone(), Source::new(file).unwrap(), stop.clone());
        let running = tokio::spawn(async move { serving.await.unwrap() });
        let client = Client::new(address, None);
        Self { address, client, admin, settings, stop, running, folder }
    }

    /// Writes another configuration and waits until it is in force.
    async fn reconfigure(&self, more: &str) {
        let mut changes = self.settings.changes();
        changes.mark_unchanged();
        self.folder.write("gateway.yaml", config(more));
        timeout(SOON, changes.changed()).await.expect("it is taken over").unwrap();
    }

    /// Asks in the background, for an answer as a whole.
    fn asks(&self, text: &str) -> JoinHandle<Answer> {
        let (client, request) = (self.client.clone(), chat(text));
        tokio::spawn(async move { client.chat(&request).await })
    }

    /// Asks in the background, for a stream, and reads it to its end.
    fn streams(&self, text: &str) -> JoinHandle<Transcript> {
        let (client, request) = (self.client.clone(), streamed(chat(text)));
        tokio::spawn(async move { client.stream(&request).await.finish().await })
    }

    async fn node(&self, name: &str, slots: u32) -> MockNode {
        self.node_with(healthy(name, slots)).await
    }

    async fn node_with(&self, status: NodeStatus) -> MockNode {
        let linked = self.linked().await;
        let node = MockNode::join(self.address, status).await;
        eventually("the node to be linked", async || (self.linked().await > linked).then_some(()))
            .await;
        node
    }

    async fn health(&self, path: &str) -> u64 {
        let health = self.client.get("/health").await.json();
        health.pointer(path).and_then(Value::as_u64).unwrap()
    }

    async fn linked(&self) -> u64 {
        self.health("/nodes/linked").await
    }

    /// Every in-flight figure is zero.
    async fn is_idle(&self) {
        for path in ["/slots/leased", "/queue_depth", "/requests_in_flight"] {
            eventually(path, async || (self.health(path).await == 0).then_some(())).await;
        }
    }
}
