//! Many streams, and nodes that come and go under them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use fleet_tests::client::{Client, Transcript};
use fleet_tests::process::{Agent, Fleet};
use fleet_tests::{eventually, questions, streamed};
use rustix::process::Signal;
use serde_json::Value;
use tokio::task::JoinSet;

/// Questions that the model answers as expected when nobody else asks. All nodes are asked,
/// so that none begins cold.
async fn known_questions(
    nodes: &[&Agent],
    all: impl Iterator<Item = (Value, String)>,
    wanted: usize,
) -> Vec<(Value, String)> {
    let mut known = Vec::new();
    for (number, (request, expect)) in all.enumerate() {
        let client = &nodes[number % nodes.len()].client;
        if client.chat(&request).await.content() == expect {
            known.push((request, expect));
        }
        if known.len() == wanted {
            return known;
        }
    }
    panic!("the model knows only {} answers", known.len());
}

/// Every seventh question first, so that all domains are among them.
fn of_all_domains() -> impl Iterator<Item = (Value, String)> {
    let all = questions();
    let order: Vec<usize> = (0..7).flat_map(|o| (o..all.len()).step_by(7)).collect();
    order.into_iter().map(move |i| (all[i].1.clone(), all[i].2.clone()))
}

async fn nothing_is_in_flight(fleet: &Fleet, agents: &[&Agent]) {
    eventually("the gateway to be idle", async || {
        (fleet.in_flight().await == [0; 4]).then_some(())
    })
    .await;
    for agent in agents {
        for name in ["node_slots_busy", "node_queue_depth", "node_engine_requests_in_flight"] {
            eventually(name, async || (agent.metric(name).await == 0.0).then_some(())).await;
        }
    }
}

/// Forty streams at once on two nodes; how many each node answered.
async fn forty_streams(slots: &str) -> [usize; 2] {
    let fleet = Fleet::start("").await;
    let a = fleet.join("a", &["--slots", slots]).await;
    let b = fleet.join("b", &["--slots", slots]).await;
    let known = known_questions(&[&a, &b], of_all_domains(), 40).await;

    let mut streams = JoinSet::new();
    for (request, expect) in known {
        let client = fleet.client.clone();
        streams.spawn(async move {
            let stream = client.stream(&streamed(request)).await;
            let node = stream.node();
            (node, expect, stream.finish().await)
        });
    }
    let mut served: BTreeMap<String, usize> = BTreeMap::new();
    for (node, expect, said) in streams.join_all().await {
        assert_eq!(said.text, expect);
        assert_eq!((said.done, said.finish.as_deref()), (true, Some("stop")), "{expect}");
        *served.entry(node).or_default() += 1;
    }
    eprintln!("requests by node: {served:?}");
    nothing_is_in_flight(&fleet, &[&a, &b]).await;
    for log in [fleet.server.log(), a.server.log(), b.server.log()] {
        let told = log.to_lowercase();
        assert!(!told.contains("capital") && !told.contains("messages"), "a prompt in {log}");
    }
    ["a", "b"].map(|node| served[node])
}

#[tokio::test]
async fn forty_concurrent_streams_are_answered_right_and_shared_evenly() {
    let served = forty_streams("20").await;
    assert!(served.iter().all(|n| (16..=24).contains(n)), "not within 40 to 60 %: {served:?}");
}

/// Here most wait in the gateway, and the node that is faster at the moment takes more.
#[tokio::test]
async fn forty_concurrent_streams_on_eight_slots_are_answered_right_by_both_nodes() {
    let served = forty_streams("4").await;
    assert!(served.iter().all(|n| *n >= 8), "{served:?}");
}

/// What became of one request under churn.
#[derive(Debug)]
struct Outcome {
    node: String,
    expect: String,
    result: Result<Transcript, String>,
}

/// Clients that ask until they are told to stop.
struct Traffic {
    stop: Arc<AtomicBool>,
    clients: JoinSet<Vec<Outcome>>,
    /// How many requests each node has answered so far.
    answered: Arc<BTreeMap<String, AtomicUsize>>,
}

impl Traffic {
    fn start(client: &Client, known: &[(Value, String)], nodes: &[&str], width: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let counters = nodes.iter().map(|n| (n.to_string(), AtomicUsize::new(0)));
        let answered = Arc::new(counters.collect::<BTreeMap<_, _>>());
        let mut clients = JoinSet::new();
        for number in 0..width {
            let (client, known) = (client.clone(), known.to_vec());
            let (stop, answered) = (stop.clone(), answered.clone());
            clients.spawn(async move {
                let mut outcomes = Vec::new();
                let mut turn = number;
                while !stop.load(Ordering::Relaxed) {
                    let (request, expect) = known[turn % known.len()].clone();
                    // Even clients stream, odd ones do not.
                    let (node, result) = match number % 2 {
                        0 => ask_streamed(&client, request).await,
                        _ => ask_whole(&client, request).await,
                    };
                    if let (Ok(_), Some(count)) = (&result, answered.get(&node)) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    outcomes.push(Outcome { node, expect, result });
                    turn += width;
                }
                outcomes
            });
        }
        Self { stop, clients, answered }
    }

    /// Waits until a node has answered some more.
    async fn served_by(&self, node: &str) {
        let count = &self.answered[node];
        let before = count.load(Ordering::Relaxed);
        eventually(&format!("answers of {node}"), async || {
            (count.load(Ordering::Relaxed) >= before + 3).then_some(())
        })
        .await;
    }

    async fn finish(self) -> Vec<Outcome> {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.join_all().await.into_iter().flatten().collect()
    }
}

async fn ask_streamed(client: &Client, request: Value) -> (String, Result<Transcript, String>) {
    match client.try_stream(&streamed(request)).await {
        Ok(stream) if stream.status == 200 => (stream.node(), Ok(stream.finish().await)),
        Ok(stream) => (String::new(), Err(format!("status {}", stream.status))),
        Err(e) => (String::new(), Err(e)),
    }
}

async fn ask_whole(client: &Client, request: Value) -> (String, Result<Transcript, String>) {
    let body = request.to_string().into();
    match client.try_send(hyper::Method::POST, "/v1/chat/completions", body).await {
        Ok(answer) if answer.status == 200 => {
            let node = answer.header("x-flotilla-endpoint").unwrap_or_default().to_string();
            let finish = answer.json().pointer("/choices/0/finish_reason").cloned();
            let finish = finish.and_then(|f| f.as_str().map(Into::into));
            let said =
                Transcript { text: answer.content(), done: true, finish, ..Default::default() };
            (node, Ok(said))
        }
        Ok(answer) => (String::new(), Err(format!("{} {:?}", answer.status, answer.body))),
        Err(e) => (String::new(), Err(e)),
    }
}

#[tokio::test]
async fn nodes_join_leave_and_rejoin_under_traffic() {
    let fleet = Fleet::start("").await;
    let a = fleet.join("a", &[]).await;
    let known = known_questions(&[&a], of_all_domains(), 24).await;
    let traffic = Traffic::start(&fleet.client, &known, &["a", "b"], 8);
    traffic.served_by("a").await;

    // b joins, and leaves politely: nobody notices.
    let mut b = fleet.join("b", &[]).await;
    traffic.served_by("b").await;
    b.server.signal(Signal::TERM);
    assert_eq!(b.server.ended().await, Some(0));
    traffic.served_by("a").await;

    // b comes back, and dies: only its streams notice.
    let b = fleet.join("b", &[]).await;
    traffic.served_by("b").await;
    eventually("a stream on b", async || (busy(&fleet, "b").await > 0).then_some(())).await;
    b.kill();
    drop(b);
    traffic.served_by("a").await;

    // And once more.
    let b = fleet.join("b", &[]).await;
    traffic.served_by("b").await;

    let outcomes = traffic.finish().await;
    let mut broken = 0;
    for Outcome { node, expect, result } in &outcomes {
        let said = result.as_ref().unwrap_or_else(|e| panic!("a request failed: {e}"));
        if said.errors.is_empty() {
            assert_eq!((&said.text, said.done), (expect, true), "from {node}");
        } else {
            assert_eq!(node, "b", "only the streams of the node that died may break");
            assert_eq!(
                (said.errors.as_slice(), said.done),
                (&["node_lost".to_string()][..], false)
            );
            assert!(said.finish.is_none() && expect.starts_with(&said.text), "{said:?}");
            broken += 1;
        }
    }
    eprintln!("{} requests, {broken} streams broken off", outcomes.len());
    assert!(broken <= 4, "more streams broke than the node has slots");
    nothing_is_in_flight(&fleet, &[&a, &b]).await;
}

async fn busy(fleet: &Fleet, node: &str) -> u64 {
    fleet_tests::process::metric(
        &fleet.admin,
        &format!("gateway_node_slots_busy{{node=\"{node}\"}}"),
    )
    .await as u64
}
