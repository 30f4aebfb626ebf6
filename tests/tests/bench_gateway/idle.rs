//! What a node costs that has joined and does nothing but tell its status.

use fleet_tests::eventually;
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::Fleet;
use serde_json::Value;

use crate::print;

const NODES: u64 = 1000;
/// Statuses that each of them tells before memory is looked at again: two a second.
const STATUSES: u32 = 10;

/// Prints it.
pub async fn figures() {
    let fleet = Fleet::start("limits: {connections_per_ip_max: 4096}\n").await;
    let address = fleet.client.address();
    // What the first nodes need, all have.
    let first = MockNode::join(address, healthy("first", 4)).await;
    linked(&fleet, 1).await;
    let before = fleet.rss_mib();
    let mut nodes = vec![first];
    for number in 0..NODES {
        nodes.push(MockNode::join(address, healthy(&format!("n{number}"), 4)).await);
    }
    linked(&fleet, NODES + 1).await;
    for _ in 0..STATUSES {
        nodes.iter().for_each(|node| node.says(|status| status.queued ^= 1));
        tokio::time::timeout(std::time::Duration::from_millis(500), std::future::pending::<()>())
            .await
            .unwrap_err();
    }
    linked(&fleet, NODES + 1).await;
    let each = (fleet.rss_mib() - before) * 1024.0 / NODES as f64;
    let how = "memory of the gateway for each of 1,000 nodes that have joined, after some statuses";
    print("idle_node_memory_kib", each, "<= 64", how);
}

async fn linked(fleet: &Fleet, nodes: u64) {
    eventually("the nodes to be linked", async || {
        let health = fleet.client.get("/health").await.json();
        let told = health.pointer("/nodes/linked").and_then(Value::as_u64);
        (told == Some(nodes)).then_some(())
    })
    .await;
}
