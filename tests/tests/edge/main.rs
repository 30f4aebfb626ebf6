//! The edge of the public listener: a real gateway, nodes that do what each test tells them, and
//! clients that mean no good. Whatever they send, the gateway goes on, keeps little of it, and
//! answers everybody else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stderr, reason = "skipped tests and measures say so")]

mod addresses;
mod corpora;
mod cors;
mod crowd;
mod floods;
mod malformed;
mod overload;
mod slow;

use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::{Fleet, metric};
use fleet_tests::{chat, eventually};
use tokio::task::JoinHandle;

/// Most memory that hostile clients may cost.
const GROWTH_MIB_MAX: f64 = 64.0;

/// A gateway and a node that answers every chat at once with what it was told.
struct Answered {
    fleet: Fleet,
    answering: JoinHandle<()>,
}

impl Drop for Answered {
    fn drop(&mut self) {
        self.answering.abort();
    }
}

impl Answered {
    async fn start(more: &str) -> Self {
        let fleet = Fleet::start(more).await;
        let mut node = join(&fleet, 64).await;
        let answering = tokio::spawn(async move {
            loop {
                let asked = node.asked().await;
                let said = asked.body["messages"][0]["content"].as_str().unwrap_or("-").to_string();
                asked.answer(&said);
            }
        });
        Self { fleet, answering }
    }

    /// Anybody else is served.
    async fn works(&self) {
        let answer = self.fleet.client.chat(&chat("Hello?")).await;
        assert_eq!((answer.status, answer.content().as_str()), (200, "Hello?"));
    }

    /// It is as it was: alive, idle, and about as large.
    async fn is_unharmed(&self, before: f64) -> f64 {
        self.works().await;
        eventually("nothing to be in flight", async || {
            (self.fleet.in_flight().await == [0; 4]).then_some(())
        })
        .await;
        let grown = self.fleet.rss_mib() - before;
        assert!(grown <= GROWTH_MIB_MAX, "it grew by {grown:.1} MiB");
        assert!(!self.fleet.server.log().contains("panicked"));
        grown
    }

    async fn closed(&self, reason: &str) -> f64 {
        closed(&self.fleet, reason).await
    }
}

async fn join(fleet: &Fleet, slots: u32) -> MockNode {
    let node = MockNode::join(fleet.client.address(), healthy("m", slots)).await;
    fleet.wait_for_slots("m").await;
    node
}

/// Connections that the gateway refused or cut for this reason; a reason that nothing had yet has
/// no line.
async fn closed(fleet: &Fleet, reason: &str) -> f64 {
    let name = format!("gateway_connections_closed_total{{reason=\"{reason}\"}}");
    let text = String::from_utf8(fleet.admin.get("/metrics").await.body.to_vec()).unwrap();
    match text.contains(&name) {
        true => metric(&fleet.admin, &name).await,
        false => 0.0,
    }
}
