//! An engine that was installed by `scripts/engines.sh`, and a gateway before it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use fleet_tests::client::Client;
use fleet_tests::process::{Fleet, Server};
use fleet_tests::{eventually_within, root};
use hyper::Method;
use rustix::process::{Signal, kill_process};
use tokio::net::TcpListener;

/// vLLM takes so long to start on two cores.
const START: Duration = Duration::from_secs(600);

/// Where the engines are.
pub fn installed(path: &str) -> PathBuf {
    root().join("target/engines").join(path)
}

/// A running engine.
pub struct Engine {
    start: Box<dyn Fn(u16) -> Command>,
    address: SocketAddr,
    server: Server,
}

impl Engine {
    /// Starts an engine by its command for a port.
    pub async fn start(start: impl Fn(u16) -> Command + 'static) -> Self {
        // None of them logs the port that it gets.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let server = Server::spawn(start(address.port()));
        let mut engine = Self { start: Box::new(start), address, server };
        engine.is_ready().await;
        engine
    }

    /// Its own API.
    pub fn client(&self) -> Client {
        Client::new(self.address, None)
    }

    /// Waits until it answers.
    pub async fn is_ready(&mut self) {
        let (client, server) = (self.client(), &mut self.server);
        eventually_within(START, "the engine to start", async || {
            assert!(!server.has_ended(), "it ended instead of starting");
            let answered = client.try_send(Method::GET, "/v1/models", Bytes::new()).await;
            answered.is_ok_and(|answer| answer.status == 200).then_some(())
        })
        .await;
    }

    /// Kills it with all its processes.
    pub async fn dies(&mut self) {
        let mut pids = self.server.children();
        pids.push(self.server.pid());
        for pid in pids {
            let _ = kill_process(pid, Signal::KILL);
        }
        self.server.ended().await;
    }

    /// Starts it again on the same port.
    pub async fn starts_again(&mut self) {
        self.server = Server::spawn((self.start)(self.address.port()));
        self.is_ready().await;
    }

    /// A gateway that has nothing else.
    pub async fn gateway(&self) -> Fleet {
        let url = format!("http://{}/v1", self.address);
        // It lists its model by itself.
        let entry = format!("name: gpu, url: '{url}'");
        let nodes = "nodes: {join_key_file: join.key}\n";
        let fleet =
            Fleet::start(&format!("  external: prefer\n{nodes}external: [{{{entry}}}]\n")).await;
        serves(&fleet, true).await;
        fleet
    }
}

/// Waits until the gateway lists the model, or no longer.
pub async fn serves(fleet: &Fleet, is_served: bool) {
    fleet_tests::eventually("the list of models", async || {
        let listed = fleet.client.get("/v1/models").await.json();
        (listed["data"].as_array().unwrap().is_empty() != is_served).then_some(())
    })
    .await;
}
