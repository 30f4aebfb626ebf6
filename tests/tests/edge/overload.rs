//! Ten times more requests than the nodes can answer. Nodes take a fixed time for an answer, so
//! that what they can do is known; requests arrive at a steady rate, whatever became of those
//! before.
//!
//! `make overload` runs two minutes of it and prints what it measured; the test is shorter, and
//! asserts what does not depend on how busy the machine is.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fleet_tests::batches::{batch, begun, line};
use fleet_tests::mock_node::{Asked, MockNode, healthy};
use fleet_tests::process::{Fleet, Folder, metric};
use fleet_tests::{chat, eventually, streamed};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use inference_protocol::resume::{Mark, Usage};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::interval;

const NODES: usize = 4;
const SLOTS: u32 = 8;
/// From a request to its first token, and to its end.
const FIRST_TOKEN: Duration = Duration::from_millis(50);
const ANSWER: Duration = Duration::from_millis(200);
/// What the nodes can answer in a second.
const CAPACITY: f64 = NODES as f64 * SLOTS as f64 * 1000.0 / 200.0;
const OVERLOAD: f64 = 10.0;
const TICK: Duration = Duration::from_millis(5);
/// Each may have 200 requests side by side.
const CONNECTIONS: usize = 24;
const SECONDS: u64 = 8;
/// How long what is normal is measured.
const CALM: Duration = Duration::from_secs(3);
const CONFIG: &str = "limits: {queue_depth_max: 256}\n\
    timeouts: {queue_interactive_ms: 2000, queue_ms: 2000, queue_batch_ms: 2000}\n";

/// A node that answers every request in the same time.
fn steady(mut node: MockNode) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut computed = HashSet::new();
        loop {
            let asked = node.asked().await;
            let is_cached = !computed.insert(asked.resume.id.clone());
            tokio::spawn(answer(asked, is_cached));
        }
    })
}

async fn passes(time: Duration) {
    let mut ticks = interval(time);
    ticks.tick().await;
    ticks.tick().await;
}

/// Two tokens, with marks, as an agent writes them: the gateway learns from them what requests
/// take. A line of a batch has ten, and continues where it was; its prompt is computed again by a
/// node that has not seen it.
async fn answer(asked: Asked, is_cached: bool) {
    let is_streamed = asked.body["stream"] == true;
    if !is_streamed {
        return answer_line(asked, is_cached).await;
    }
    let stream = asked.stream();
    passes(FIRST_TOKEN).await;
    if stream.offer(piece(1)).await {
        passes(ANSWER - FIRST_TOKEN).await;
        let mut end = piece(2);
        Mark::Usage(Usage { prompt: 20, completion: 2, cached: 0 }).write(&mut end);
        stream.offer(end + "data: [DONE]\n\n").await;
    }
}

/// Tokens of a line.
const LINE: usize = 10;

async fn answer_line(asked: Asked, is_cached: bool) {
    let known = asked.resume.choices.first().map_or(0, |choice| choice.tokens.len());
    let stream = asked.stream();
    if !is_cached {
        passes(FIRST_TOKEN).await;
    }
    for token in known..LINE {
        passes((ANSWER - FIRST_TOKEN) / LINE as u32).await;
        let mut mark = String::new();
        Mark::Tokens { choice: 0, tokens: vec![token as u32] }.write(&mut mark);
        if !stream.offer(mark + "\n").await {
            return;
        }
    }
    stream.offer(whole()).await;
}

fn whole() -> String {
    let completion = LINE as u64;
    let (mut event, usage) = (String::new(), Usage { prompt: 20, completion, cached: 0 });
    Mark::Usage(usage).write(&mut event);
    let message = json!({"role": "assistant", "content": "aa"});
    let said = json!({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]});
    format!("{event}data: {said}\n\n")
}

fn piece(token: u32) -> String {
    let mut event = String::new();
    Mark::Tokens { choice: 0, tokens: vec![token] }.write(&mut event);
    let said = json!({"choices": [{"index": 0, "delta": {"content": "a"}}]});
    format!("{event}data: {said}\n\n")
}

/// What became of a request.
#[derive(Debug, Clone)]
struct Outcome {
    class: &'static str,
    /// The error code; none for an answer.
    refused: Option<String>,
    /// Until the first of its answer, or its refusal.
    first: Duration,
    is_whole: bool,
    /// When it was over.
    ended: Instant,
}

type Sender = SendRequest<Full<Bytes>>;

async fn connect(fleet: &Fleet) -> Sender {
    let stream = TcpStream::connect(fleet.client.address()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let io = TokioIo::new(stream);
    let (sender, connection) = handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn ask(mut sender: Sender, key: Arc<String>, class: &'static str) -> Outcome {
    let asked = Instant::now();
    let body = Full::from(streamed(chat("Hello?")).to_string());
    let request = Request::post("http://gateway/v1/chat/completions")
        .header("authorization", key.as_str())
        .header("x-flotilla-class", class)
        .body(body)
        .unwrap();
    let response = sender.send_request(request).await.unwrap();
    let is_refused = response.status() != 200;
    let (mut all, mut first, mut body) = (Vec::new(), None, response.into_body());
    while let Some(frame) = body.frame().await {
        first.get_or_insert_with(|| asked.elapsed());
        all.extend_from_slice(frame.unwrap().data_ref().map_or(&[][..], |data| data));
    }
    let code = |all: &[u8]| {
        let error: Value = serde_json::from_slice(all).unwrap();
        error["error"]["code"].as_str().unwrap().to_string()
    };
    Outcome {
        class,
        refused: is_refused.then(|| code(&all)),
        first: first.unwrap_or_default(),
        is_whole: all.ends_with(b"data: [DONE]\n\n"),
        ended: Instant::now(),
    }
}

/// One in twenty is interactive, and half of the rest batch.
fn class(number: usize) -> &'static str {
    match number % 20 {
        0 => "interactive",
        n if n % 2 == 0 => "batch",
        _ => "standard",
    }
}

/// Requests at so many a second, for so long; what became of them.
async fn arrive(fleet: &Fleet, rate: f64, time: Duration) -> Vec<Outcome> {
    arrive_as(fleet, rate, time, class).await
}

/// As [`arrive`], of other classes.
async fn arrive_as(
    fleet: &Fleet,
    rate: f64,
    time: Duration,
    class: fn(usize) -> &'static str,
) -> Vec<Outcome> {
    let mut senders = Vec::new();
    for _ in 0..CONNECTIONS {
        senders.push(connect(fleet).await);
    }
    let key = Arc::new(format!("Bearer {}", fleet.key));
    let (mut running, mut ticks) = (JoinSet::new(), interval(TICK));
    let (begun, mut number) = (Instant::now(), 0);
    while begun.elapsed() < time {
        ticks.tick().await;
        let due = (begun.elapsed().as_secs_f64() * rate) as usize;
        for number in number..due {
            let sender = senders[number % senders.len()].clone();
            running.spawn(ask(sender, key.clone(), class(number)));
        }
        number = due.max(number);
    }
    running.join_all().await
}

/// What the nodes really do in a second behind this gateway, when there is always somebody who
/// waits: twice as many clients as slots, each of which asks again as soon as it is answered.
async fn capacity(fleet: &Fleet) -> f64 {
    let key = Arc::new(format!("Bearer {}", fleet.key));
    let (mut running, begun) = (JoinSet::new(), Instant::now());
    let until = begun + CALM;
    for _ in 0..2 * NODES * SLOTS as usize {
        let (sender, key) = (connect(fleet).await, key.clone());
        running.spawn(async move {
            let mut answers = 0;
            while Instant::now() < until {
                let outcome = ask(sender.clone(), key.clone(), "standard").await;
                answers += usize::from(outcome.is_whole && outcome.ended < until);
            }
            answers
        });
    }
    let answers: usize = running.join_all().await.into_iter().sum();
    answers as f64 / CALM.as_secs_f64()
}

fn percentile(mut times: Vec<Duration>, share: f64) -> f64 {
    times.sort();
    let place = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
    times.get(place).map_or(f64::NAN, Duration::as_secs_f64) * 1000.0
}

/// The time to the first token of interactive requests that were answered.
fn first_tokens(outcomes: &[Outcome]) -> Vec<Duration> {
    let interactive = outcomes.iter().filter(|o| o.class == "interactive" && o.refused.is_none());
    interactive.map(|o| o.first).collect()
}

/// The share of waits that came out as foretold.
async fn forecasts_right(fleet: &Fleet) -> f64 {
    let count = async |result: &str| {
        let series = format!("gateway_wait_forecasts_total{{result=\"{result}\"}}");
        metric(&fleet.admin, &series).await
    };
    let right = count("right").await;
    right / (right + count("too_long").await + count("too_short").await)
}

async fn steady_nodes(fleet: &Fleet) -> Vec<JoinHandle<()>> {
    let mut nodes = Vec::new();
    for number in 0..NODES {
        let status = healthy(&format!("n{number}"), SLOTS);
        let node = MockNode::join(fleet.client.address(), status).await;
        fleet.wait_for_slots(&format!("n{number}")).await;
        nodes.push(steady(node));
    }
    nodes
}

fn tell(name: &str, value: f64, aim: &str) {
    let how = "tests/tests/edge/overload.rs: 4 nodes x 8 slots, 200 ms an answer, 10x arrivals";
    eprintln!("{}", json!({"name": name, "value": value, "aim": aim, "how": how}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_times_too_many_requests_are_answered_or_refused_and_then_it_is_over() {
    let seconds = std::env::var("FLOTILLA_OVERLOAD").map_or(SECONDS, |s| s.parse().unwrap());
    let time = Duration::from_secs(seconds);
    let fleet = Fleet::start(CONFIG).await;
    let nodes = steady_nodes(&fleet).await;
    let unloaded = arrive(&fleet, CAPACITY / 4.0, CALM).await;
    assert!(unloaded.iter().all(|o| o.is_whole), "nobody is refused while there are slots");
    let capacity = capacity(&fleet).await;
    let (before, begun) = (fleet.rss_mib(), Instant::now());
    let outcomes = arrive(&fleet, CAPACITY * OVERLOAD, time).await;
    let grown = fleet.rss_mib() - before;

    let in_time = outcomes.iter().filter(|o| o.is_whole && o.ended < begun + time).count();
    let goodput = in_time as f64 / time.as_secs_f64() / capacity;
    let at_once = |o: &&Outcome| o.refused.as_deref().is_some_and(|c| c != "queue_timeout");
    let refusals: Vec<Duration> = outcomes.iter().filter(at_once).map(|o| o.first).collect();
    let late = outcomes.iter().filter(|o| o.refused.as_deref() == Some("queue_timeout")).count();
    let ratio =
        percentile(first_tokens(&outcomes), 0.95) / percentile(first_tokens(&unloaded), 0.95);
    tell("overload_capacity_per_s", capacity, "160, if no node ever waited");
    tell("overload_goodput_over_capacity", goodput, ">= 0.95");
    tell("overload_refusal_p99_ms", percentile(refusals.clone(), 0.99), "< 100");
    tell("overload_refusal_max_ms", percentile(refusals, 1.0), "< 100");
    tell("overload_interactive_ttft_p95_over_unloaded", ratio, "<= 2");
    tell("overload_memory_growth_mib", grown, "flat");
    let unmet = outcomes.iter().filter(|o| o.refused.as_deref() == Some("deadline_unmet")).count();
    tell("overload_deadline_unmet_share", unmet as f64 / outcomes.len() as f64, "-");
    tell("overload_timed_out_share", late as f64 / outcomes.len() as f64, "-");
    tell("overload_forecasts_right_share", forecasts_right(&fleet).await, "-");

    for outcome in &outcomes {
        let refused = outcome.refused.as_deref();
        let is_known =
            refused.is_none_or(|c| ["queue_full", "deadline_unmet", "queue_timeout"].contains(&c));
        assert!(is_known && outcome.is_whole == refused.is_none(), "{outcome:?}");
    }
    let interactive = |o: &&Outcome| o.class == "interactive";
    let asked = outcomes.iter().filter(interactive).count() as f64;
    let served = outcomes.iter().filter(interactive).filter(|o| o.is_whole).count() as f64;
    assert!(served > asked * 0.9, "the most urgent are served: {served} of {asked}");
    assert!(goodput > 0.75, "the nodes stay busy: {goodput}");
    assert!(grown < 64.0, "{grown} MiB more");
    eventually("nothing to be in flight", async || {
        (fleet.in_flight().await == [0; 4]).then_some(())
    })
    .await;
    let after = arrive(&fleet, CAPACITY / 4.0, Duration::from_secs(2)).await;
    assert!(after.iter().all(|o| o.is_whole), "as if nothing had been");
    let ratio = percentile(first_tokens(&after), 0.95) / percentile(first_tokens(&unloaded), 0.95);
    tell("overload_ttft_p95_after_over_before", ratio, "1");
    nodes.iter().for_each(JoinHandle::abort);
}

/// Lines of the batch: more than the nodes can answer meanwhile.
const LINES: usize = 3000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_uses_the_slots_that_interactive_requests_leave() {
    let seconds = std::env::var("FLOTILLA_OVERLOAD").map_or(SECONDS, |s| s.parse().unwrap());
    let time = Duration::from_secs(seconds.min(15));
    let folder = Folder::new();
    let fleet = Fleet::start(&format!("store: {{dir: '{}'}}\n", folder.path().display())).await;
    let nodes = steady_nodes(&fleet).await;
    let (rate, interactive) = (CAPACITY / 4.0, |_| "interactive");
    let calm = arrive_as(&fleet, rate, time, interactive).await;
    let capacity = capacity(&fleet).await;
    let lines: String = (0..LINES).map(|i| line(&format!("{i}"), "Hello?")).collect();
    let id = begun(&fleet.client, &lines).await;
    let done = async || {
        let batch = batch(&fleet.client, &id).await;
        batch["request_counts"]["completed"].as_u64().unwrap_or_default()
    };
    eventually("the batch to run", async || (done().await > 50).then_some(())).await;
    let (before, begun) = (done().await, Instant::now());
    let beside = arrive_as(&fleet, rate, time, interactive).await;
    let (after, took) = (done().await, begun.elapsed().as_secs_f64());
    assert!(calm.iter().chain(&beside).all(|outcome| outcome.is_whole), "none is refused");
    assert!(after < LINES as u64, "the batch ended before the measurement: add lines");
    let share = (after - before) as f64 / took / (capacity - beside.len() as f64 / took);
    let of = |outcomes: &[Outcome], share| percentile(first_tokens(outcomes), share);
    tell("batch_interactive_ttft_p50_over_calm", of(&beside, 0.5) / of(&calm, 0.5), "-");
    tell("batch_interactive_ttft_p95_over_calm", of(&beside, 0.95) / of(&calm, 0.95), "<= 1.1");
    tell("batch_share_of_remaining_slots", share, ">= 0.95");
    assert!(share > 0.5, "the batch uses what is left: {share}");
    nodes.iter().for_each(JoinHandle::abort);
}
