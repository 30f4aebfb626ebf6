//! The gateway in this process, with nodes that do what each test tells them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]

mod affinity;
mod answers;
mod classes;
mod health;
mod limits;
mod links;
mod queue;
mod resume;
mod retries;

use std::net::SocketAddr;

use fleet_tests::client::{Answer, Client, Transcript};
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::{Folder, JOIN_KEY};
use fleet_tests::{chat, eventually, streamed};
use flotilla_gateway::{app, config};
use inference_protocol::fleet::NodeStatus;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct Gateway {
    address: SocketAddr,
    client: Client,
    stop: CancellationToken,
    running: JoinHandle<()>,
    _folder: Folder,
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
        let text = format!("{keys}nodes: {{join_key_file: join.key}}\n{more}");
        let config = config::load::load(&folder.write("gateway.yaml", text)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let serving = app::run(config, listener, stop.clone());
        let running = tokio::spawn(async move { serving.await.unwrap() });
        Self { address, client: Client::new(address, None), stop, running, _folder: folder }
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
