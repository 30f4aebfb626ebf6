//! Any request that can be formed over HTTP leaves the engine process alive: each is answered
//! with 200 and a whole body, or with 4xx and an error in OpenAI's form, within a minute. A stream
//! that has begun may instead end with the event of an error that is the client's.
//!
//! Two variables of the environment choose what is tried: `FLOTILLA_FUZZ_SEED` repeats a run (each
//! prints its seed), `FLOTILLA_FUZZ_REQUESTS` says how many random requests there are.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fleet_tests::client::{Answer, Client};
use fleet_tests::process::Agent;
use fleet_tests::{chat, eventually, root};
use futures_util::StreamExt;
use hyper::Method;
use inference_protocol::sse::payloads;
use serde_json::Value;

mod big;
mod bombs;
mod fields;
mod random;
mod suites;
mod vectors;

/// No answer may take longer, with eight clients on two cores.
const PATIENCE: Duration = Duration::from_secs(60);
/// Requests side by side.
const CLIENTS: usize = 8;
/// Requests between two questions whose answer is known.
const CANARY_EVERY: usize = 1000;
/// So much of a body is shown when its answer is wrong.
const SHOWN_BYTES: usize = 1000;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// A request that somebody might send.
#[derive(Debug, Clone)]
struct Hostile {
    path: &'static str,
    body: Bytes,
}

impl Hostile {
    fn new(path: &'static str, body: impl Into<Bytes>) -> Self {
        Self { path, body: body.into() }
    }

    fn beginning(&self, bytes: usize) -> String {
        let shown = String::from_utf8_lossy(&self.body[..self.body.len().min(bytes)]);
        format!("{} ({} bytes): {shown}", self.path, self.body.len())
    }
}

/// What became of many requests.
#[derive(Debug, Default)]
struct RoutingStats {
    served: usize,
    refused: usize,
    slowest: Duration,
    /// The beginning of what took longest.
    slow: String,
    /// What should not have happened.
    wrong: Vec<String>,
}

impl RoutingStats {
    fn add(&mut self, request: &Hostile, judged: Result<u16, String>, took: Duration) {
        if took > self.slowest {
            self.slowest = took;
            self.slow = request.beginning(160);
        }
        match judged {
            Ok(200) => self.served += 1,
            Ok(_) => self.refused += 1,
            Err(why) => self.wrong.push(why),
        }
    }
}

/// Sends requests, some side by side, asks in between what is known, and panics if anything is
/// answered wrongly or the engine died.
async fn survive(
    what: &str,
    agent: &Agent,
    requests: impl Iterator<Item = Hostile>,
) -> RoutingStats {
    let begun = Instant::now();
    let mut tally = RoutingStats::default();
    let mut requests = requests.peekable();
    while requests.peek().is_some() {
        let some: Vec<Hostile> = requests.by_ref().take(CANARY_EVERY).collect();
        let tried = some.into_iter().map(|request| attempt(&agent.client, request));
        let mut tried = futures_util::stream::iter(tried).buffer_unordered(CLIENTS);
        while let Some((request, judged, took)) = tried.next().await {
            tally.add(&request, judged, took);
            if tally.wrong.len() > CLIENTS {
                break;
            }
        }
        let wrong = tally.wrong.join("\n\n");
        assert!(
            tally.wrong.is_empty(),
            "{what}: {} answers are wrong:\n{wrong}",
            tally.wrong.len()
        );
        unharmed(agent).await;
    }
    let RoutingStats { served, refused, slowest, slow, .. } = &tally;
    let took = begun.elapsed();
    eprintln!("{what}: {served} served, {refused} refused in {took:.1?}");
    eprintln!("  the slowest took {slowest:.1?}: {slow}");
    tally
}

async fn attempt(client: &Client, request: Hostile) -> (Hostile, Result<u16, String>, Duration) {
    let begun = Instant::now();
    let sent = client.try_send(Method::POST, request.path, request.body.clone());
    let judged = match tokio::time::timeout(PATIENCE, sent).await {
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
        Ok(Err(why)) => Err(why),
        Ok(Ok(answer)) => judge(request.path, &answer),
    };
    let judged = judged.map_err(|why| format!("{why}\n{}", request.beginning(SHOWN_BYTES)));
    (request, judged, begun.elapsed())
}

/// Whether an answer is in order; its status.
fn judge(path: &str, answer: &Answer) -> Result<u16, String> {
    let text = String::from_utf8_lossy(&answer.body);
    let wrong = |what: &str| Err(format!("{} with {what}: {text:.2000}", answer.status));
    let streams = answer.header("content-type").is_some_and(|t| t.starts_with("text/event-stream"));
    match answer.status {
        200 if streams => judge_stream(answer),
        200 => match serde_json::from_slice::<Value>(&answer.body) {
            Ok(json) if is_whole(path, &json) => Ok(200),
            Ok(_) => wrong("half an answer"),
            Err(e) => wrong(&e.to_string()),
        },
        400..=499 => match serde_json::from_slice::<Value>(&answer.body) {
            Ok(json) if is_error(&json["error"]) => Ok(answer.status),
            _ => wrong("no error in OpenAI's form"),
        },
        _ => wrong("that status"),
    }
}

fn is_error(error: &Value) -> bool {
    let has_text = |key: &str| error[key].as_str().is_some_and(|text| !text.is_empty());
    let named = error["param"].is_string() || error["param"].is_null();
    has_text("message") && has_text("type") && has_text("code") && named
}

fn is_whole(path: &str, json: &Value) -> bool {
    let all = |key: &str, field: &str| {
        let list = json[key].as_array();
        list.is_some_and(|all| !all.is_empty() && all.iter().all(|e| !e[field].is_null()))
    };
    match path {
        CHAT => all("choices", "finish_reason") && all("choices", "message"),
        TEXT => all("choices", "finish_reason") && all("choices", "text"),
        "/v1/embeddings" => all("data", "embedding"),
        "/v1/rerank" => json["results"].is_array(),
        "/tokenize" => json["tokens"].is_array(),
        "/detokenize" => json["content"].is_string(),
        "/apply-template" => json["prompt"].is_string(),
        _ => json.is_object(),
    }
}

/// Every event is JSON without an error, and `[DONE]` is the last; or the last is an error of
/// the client's, which then is what the stream comes to: what a constraint costs may be known
/// only when the answer gets there.
fn judge_stream(answer: &Answer) -> Result<u16, String> {
    let text = || String::from_utf8_lossy(&answer.body);
    let events: Vec<&[u8]> = payloads(&answer.body).collect();
    let Some((last, events)) = events.split_last() else {
        return Err(format!("a stream of nothing: {:.2000}", text()));
    };
    for event in events {
        let event: Value =
            serde_json::from_slice(event).map_err(|e| format!("{e}: {:.2000}", text()))?;
        if event.get("error").is_some() || event.get("choices").is_none() {
            return Err(format!("a stream with {event}"));
        }
    }
    match *last {
        b"[DONE]" if events.is_empty() => Err("a stream of nothing".into()),
        b"[DONE]" => Ok(200),
        last if is_clients_error(last) => Ok(400),
        _ => Err(format!("a stream without an end: {:.2000}", text())),
    }
}

fn is_clients_error(event: &[u8]) -> bool {
    serde_json::from_slice::<Value>(event).is_ok_and(|event| {
        is_error(&event["error"]) && event["error"]["type"] == "invalid_request_error"
    })
}

/// The engine that began is still there, answers as ever, and has nothing left to do.
async fn unharmed(agent: &Agent) {
    assert_eq!(agent.metric("node_engine_restarts_total").await, 0.0, "the engine died");
    let answer = agent.client.chat(&chat("What is the capital of France?")).await;
    // Models with random weights go by another name, and have nothing to say.
    if answer.status != 404 {
        assert_eq!(answer.content(), "The capital of France is Paris.");
    }
    idle(agent).await;
}

/// Waits until every in-flight figure is 0.
pub async fn idle(agent: &Agent) {
    for name in [
        "node_engine_requests_in_flight",
        "node_http_requests_in_flight",
        "node_slots_busy",
        "node_queue_depth",
        "node_requests_parked",
        "node_kv_cells_in_use",
    ] {
        eventually(name, async || (agent.metric(name).await == 0.0).then_some(())).await;
    }
}

/// A number from the environment.
pub fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().unwrap())
}

/// A folder of public test data; none, with a message, where it is not.
fn data(name: &str) -> Option<PathBuf> {
    let folder = root().join("../shared/data").join(name);
    if !folder.is_dir() {
        eprintln!("skipped: there is no {}", folder.display());
        return None;
    }
    Some(folder)
}
