//! kill -9 of engines, nodes and gateways.

use std::time::{Duration, Instant};

use fleet_tests::process::{Agent, Fleet, metric};
use fleet_tests::{chat, eventually, streamed};
use rustix::process::{Signal, kill_process};
use tokio::task::JoinSet;

const QUESTION: &str = "Count from 1 to 5.";
const ANSWER: &str = "1, 2, 3, 4, 5";

/// "1, 2, ..."
fn counted(to: u32) -> String {
    (1..=to).map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
}

/// With an own port, so that its metrics can be read.
async fn node(fleet: &Fleet, name: &str) -> Agent {
    fleet.join(name, &["--slots", "2"]).await
}

#[tokio::test]
async fn an_engine_killed_while_idle_serves_again_within_three_seconds() {
    let fleet = Fleet::start("").await;
    let a = node(&fleet, "a").await;
    assert_eq!(fleet.client.chat(&chat(QUESTION)).await.content(), ANSWER);

    let killed = Instant::now();
    kill_process(a.engine(), Signal::KILL).unwrap();
    eventually("an answer", async || {
        let answer = fleet.client.chat(&chat(QUESTION)).await;
        (answer.status == 200).then(|| assert_eq!(answer.content(), ANSWER))
    })
    .await;
    let took = killed.elapsed();
    eprintln!("serving again after {took:?}");
    assert!(took < Duration::from_secs(3), "serving again took {took:?}");

    assert_eq!(a.metric("node_engine_restarts_total").await, 1.0);
    let restarts = "gateway_node_engine_restarts_total{node=\"a\"}";
    eventually("the gateway to hear of the restart", async || {
        (metric(&fleet.admin, restarts).await == 1.0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn requests_that_wait_for_their_first_token_move_to_another_node() {
    let fleet = Fleet::start("").await;
    let a = node(&fleet, "a").await;
    let b = node(&fleet, "b").await;

    // Its engine freezes, so that whatever is sent to it waits for a first token.
    kill_process(a.engine(), Signal::STOP).unwrap();
    let mut clients = JoinSet::new();
    for streams in [true, false].repeat(6) {
        let client = fleet.client.clone();
        clients.spawn(async move {
            let request = chat(QUESTION);
            if !streams {
                return (true, client.chat(&request).await.content());
            }
            let said = client.stream(&streamed(request)).await.finish().await;
            assert_eq!(said.errors, Vec::<String>::new());
            (said.done, said.text)
        });
    }
    let busy = "gateway_node_slots_busy{node=\"a\"}";
    eventually("requests to wait for node a", async || {
        (metric(&fleet.admin, busy).await == 2.0).then_some(())
    })
    .await;
    // Those that b could answer are answered, the two on a are left.
    eventually("the others to be done", async || (fleet.in_flight().await[3] == 2).then_some(()))
        .await;

    a.kill();
    for (done, text) in clients.join_all().await {
        assert_eq!((done, text.as_str()), (true, ANSWER));
    }
    let metrics = fleet.admin.get("/metrics").await.body;
    let metrics = String::from_utf8_lossy(&metrics).into_owned();
    let mut retries = metrics.lines().filter(|line| line.starts_with("gateway_retries_total{"));
    assert!(retries.any(|line| !line.ends_with(" 0")), "{metrics}");
    eventually("the gateway to be idle", async || {
        (fleet.in_flight().await == [0; 4]).then_some(())
    })
    .await;
    drop(b);
}

#[tokio::test]
async fn a_stream_whose_engine_dies_goes_on_with_its_next_engine() {
    let fleet = Fleet::start("").await;
    let a = node(&fleet, "a").await;
    for signals in [&[Signal::KILL][..], &[Signal::STOP]] {
        let mut stream = fleet.client.stream(&streamed(chat("Count from 1 to 40."))).await;
        assert!(stream.next_chunk().await);
        // One that stands still is ended by its agent.
        signals.iter().for_each(|signal| kill_process(a.engine(), *signal).unwrap());
        let said = stream.finish().await;
        assert!(said.done && said.errors.is_empty(), "{said:?}");
        assert_eq!(said.text, counted(40));
    }
    assert_eq!(a.metric("node_engine_restarts_total").await, 2.0);
    let resumes = "gateway_resumes_total{reason=\"engine_lost\"}";
    assert_eq!(metric(&fleet.admin, resumes).await, 2.0);
}

#[tokio::test]
async fn an_agent_that_is_told_to_stop_hands_its_answers_over() {
    let fleet = Fleet::start("").await;
    let mut a = node(&fleet, "a").await;
    let mut stream = fleet.client.stream(&streamed(chat("Count from 1 to 40."))).await;
    assert!(stream.next_chunk().await);
    // It would be done before anybody could go on.
    kill_process(a.engine(), Signal::STOP).unwrap();
    let b = node(&fleet, "b").await;
    a.server.signal(Signal::TERM);
    let said = stream.finish().await;
    assert_eq!((said.text, said.done), (counted(40), true));
    let resumes = "gateway_resumes_total{reason=\"node_leaves\"}";
    assert_eq!(metric(&fleet.admin, resumes).await, 1.0);
    kill_process(a.engine(), Signal::CONT).unwrap();
    assert_eq!(a.server.ended().await, Some(0));
    drop(b);
}

#[tokio::test]
async fn agents_dial_a_gateway_again_that_was_killed() {
    let mut fleet = Fleet::start("").await;
    let _a = node(&fleet, "a").await;
    fleet.server.signal(Signal::KILL);
    fleet.server.ended().await;
    fleet.restart();
    fleet.wait_for_slots("a").await;
    assert_eq!(fleet.client.chat(&chat(QUESTION)).await.content(), ANSWER);
}

#[tokio::test]
async fn a_gateway_that_is_told_to_stop_finishes_its_streams() {
    let mut fleet = Fleet::start("").await;
    let a = node(&fleet, "a").await;
    let mut stream = fleet.client.stream(&streamed(chat("Count from 1 to 20."))).await;
    assert!(stream.next_chunk().await);
    fleet.server.signal(Signal::TERM);
    let said = stream.finish().await;
    assert!(said.done && said.text.ends_with(", 19, 20"), "{said:?}");
    assert_eq!(fleet.server.ended().await, Some(0));
    drop(a);
}

#[tokio::test]
async fn a_log_that_cannot_be_written_hurts_nobody() {
    let fleet = Fleet::start("").await;
    let a = node(&fleet, "a").await;
    fleet.server.stop_reading_log();
    a.server.stop_reading_log();
    for _ in 0..4 {
        assert_eq!(fleet.client.chat(&chat(QUESTION)).await.content(), ANSWER);
    }
    // Agents log what becomes of their engine.
    for restarts in 1..=2 {
        kill_process(a.engine(), Signal::KILL).unwrap();
        eventually("the engine to be back", async || {
            (a.metric("node_engine_restarts_total").await == f64::from(restarts)).then_some(())
        })
        .await;
        assert_eq!(fleet.client.chat(&chat(QUESTION)).await.content(), ANSWER);
    }
}

#[tokio::test]
async fn an_agent_that_is_killed_takes_its_engine_along() {
    let agent = Agent::start(&[]).await;
    let engine = agent.engine();
    agent.server.signal(Signal::KILL);
    eventually("the engine to end", async || {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", engine.as_raw_nonzero()));
        // Nobody may be there to reap it.
        status.map_or(true, |s| s.contains(") Z ")).then_some(())
    })
    .await;
}
