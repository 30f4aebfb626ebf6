//! Mixed traffic for as long as one likes (`make soak MINUTES=30`), with drafts from texts, from
//! predictions and from a draft model, with prefixes in memory and on disk, and with slots that are
//! saved, restored and erased: memory does not grow, and nothing is left in flight.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fleet_tests::client::Client;
use fleet_tests::process::{Agent, Folder, Server};
use fleet_tests::{chat, conversation, streamed};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use rustix::process::Pid;
use serde_json::{Value, json};

use crate::hostile::{idle, number};

/// Clients side by side.
const CLIENTS: u64 = 6;
/// Memory is looked at this often; the first look ends the warm-up.
const LOOK: Duration = Duration::from_secs(60);
/// Growth after the warm-up that is no leak: a share of what was taken, and allocators' slack.
const GROWTH_PERCENT_MAX: u64 = 10;
const GROWTH_SLACK_KIB: u64 = 8 * 1024;

/// Conversations that come again and again: more than the KV cache holds, and more than there is
/// memory for, but not more than the disk holds.
const CONVERSATIONS: u64 = 24;
const TURNS: usize = 12;
const KV_CELLS: &str = "3072";
const SAVED_PREFIX_MIB: &str = "8";
const DISK_MIB: f64 = 64.0;

const ACCEPTED: &str = "node_accepted_tokens_total";
const MEMORY_HITS: &str = "node_saved_prefix_hits_total{tier=\"memory\"}";
const DISK_HITS: &str = "node_saved_prefix_hits_total{tier=\"disk\"}";
const DISK_BYTES: &str = "node_saved_prefix_disk_bytes";
const EVICTIONS: &str = "node_kv_evictions_total";

/// An agent with little room for prefixes and slots, whose files are in `cache`.
async fn start(cache: &Folder) -> Agent {
    let slots = cache.path().join("slots");
    let saves = ["--slot-save-path", slots.to_str().unwrap(), "--slot-save-mib", "4"];
    let model = fleet_tests::demo_model();
    let disk = DISK_MIB.to_string();
    let sizes = ["--slots", "4", "--kv-cells", KV_CELLS, "--saved-prefix-mib", SAVED_PREFIX_MIB];
    let usual = ["serve", "--listen", "127.0.0.1:0", "--threads", "1", "--prefix-disk-mib", &disk];
    let model = model.to_str().unwrap();
    let models = ["--model", model, "--draft-model", model];
    let all = [&usual[..], &sizes, &models, &saves].concat();
    let variables = [("FLOTILLA_CACHE_DIR", cache.path().to_str().unwrap())];
    let server = Server::start_with("flotilla-agent", &all, &variables);
    let client = Client::new(server.address(), None);
    let agent = Agent { server, client };
    agent.ready().await;
    agent
}

/// What each conversation was answered first.
type Responses = Mutex<BTreeMap<u64, String>>;

/// Asks for the response of a conversation, which is always the same.
async fn converse(client: &Client, number: u64, responses: &Responses) {
    let mut request = conversation(number as usize, TURNS);
    request["max_tokens"] = json!(24);
    let response = client.chat(&request).await.content();
    let first = responses.lock().unwrap().entry(number).or_insert(response.clone()).clone();
    assert_eq!(response, first, "conversation {number}");
}

/// Memory of a process that is in use, in KiB.
fn resident_kib(pid: Pid) -> u64 {
    let path = format!("/proc/{}/status", pid.as_raw_nonzero());
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn with(question: &str, fields: Value) -> Value {
    let mut request = chat(question);
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

/// Saves, restores or erases what a slot holds, as far as that is possible.
async fn act_on_slot(client: &Client, seed: u64) {
    let action = ["save", "save", "restore", "restore", "erase"][(seed % 5) as usize];
    let path = format!("/slots/{}?action={action}", seed % 4);
    let body = json!({"filename": format!("slot {}", seed % 7)}).to_string();
    let done = client.post(&path, body).await;
    let code = if done.status == 200 { String::new() } else { done.error_code() };
    let expected = ["", "slot_empty", "slot_file_not_found", "slot_folder_full", "queue_full"];
    assert!(expected.contains(&code.as_str()), "{action}: {done:?}");
}

/// One request of some kind; panics if it is answered wrongly.
async fn ask(client: &Client, dice: u64, responses: &Responses) {
    let seed = dice >> 8;
    match dice % 13 {
        0 | 1 => {
            let known = "The capital of France is Paris.";
            let text = if seed.is_multiple_of(2) { known } else { "The capital of Kenya is" };
            let prediction = json!({"prediction": {"type": "content", "content": text}});
            let request = with("What is the capital of France?", prediction);
            assert_eq!(client.chat(&request).await.content(), known);
        }
        2 => {
            let request = with(
                "Tell me a story.",
                json!({"temperature": 1.5, "seed": seed, "n": 3,
                "max_tokens": 60, "logprobs": true, "top_logprobs": 5}),
            );
            assert_eq!(client.chat(&request).await.status, 200);
        }
        3 | 4 => {
            // Leaves in the middle.
            let request = streamed(with("Count from 1 to 40.", json!({"n": 1 + seed % 4})));
            let mut stream = client.stream(&request).await;
            for _ in 0..seed % 40 {
                stream.next_chunk().await;
            }
        }
        5 => client.send_and_leave(&streamed(chat("Count from 1 to 40."))).await,
        6 => {
            // Prompts that nobody had before, up to more than the context holds.
            let text = format!("{seed} {}", "some more words ".repeat((seed % 300) as usize));
            let status = client.chat(&with(&text, json!({"max_tokens": 8}))).await.status;
            assert!(status == 200 || status == 400, "{status}");
        }
        7 => {
            let name = format!("tool_{}", seed % 1000);
            let tool = json!({"type": "function", "function": {"name": name, "parameters":
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
                 "additionalProperties": false}}});
            let fields = json!({"tools": [tool], "tool_choice": "required", "max_tokens": 40,
                "stream": seed.is_multiple_of(2)});
            assert_eq!(client.chat(&with("Use it.", fields)).await.status, 200);
        }
        8 => {
            // Grammars that were never compiled before.
            let fields = match seed % 3 {
                0 => json!({"guided_regex": format!("(ab){{1,3}}{}", seed % 100_000)}),
                1 => json!({"json_schema": {"enum": [format!("value {seed}"), seed]}}),
                _ => json!({"grammar": format!("root ::= [a-z]+ \"{}\"", seed % 100_000)}),
            };
            let request = with("Hello!", fields);
            assert_eq!(client.chat(&with("Hello!", json!({"max_tokens": 20}))).await.status, 200);
            assert_eq!(client.chat(&request).await.status, 200);
        }
        9 | 10 => converse(client, seed % CONVERSATIONS, responses).await,
        11 => act_on_slot(client, seed).await,
        _ => {
            let body = json!({"model": "flotilla-demo", "input": "a"}).to_string();
            assert_eq!(client.post("/v1/embeddings", body).await.status, 400);
            assert_eq!(client.post("/v1/chat/completions", "{").await.status, 400);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes as long as it is told to: make soak"]
async fn memory_does_not_grow_and_nothing_stays_in_flight() {
    let minutes = number("FLOTILLA_SOAK_MINUTES", 5).max(2);
    let seed = number("FLOTILLA_FUZZ_SEED", 1);
    let cache = Folder::new();
    let agent = start(&cache).await;
    let engine = agent.engine();
    let begun = Instant::now();
    let end = LOOK * u32::try_from(minutes).unwrap();
    let asked = AtomicU64::new(0);
    let responses = Responses::default();
    let clients = futures_util::future::join_all((0..CLIENTS).map(async |n| {
        let mut dice = Pcg64::seed_from_u64(seed ^ (n << 32));
        while begun.elapsed() < end {
            ask(&agent.client, dice.next_u64(), &responses).await;
            asked.fetch_add(1, Ordering::Relaxed);
        }
    }));
    let looks = async {
        let mut looks = tokio::time::interval(LOOK);
        looks.tick().await;
        let mut seen = Vec::new();
        for minute in 1..=minutes {
            looks.tick().await;
            let now = [resident_kib(agent.server.pid()), resident_kib(engine)];
            let [a, e] = now.map(|kib| kib as f64 / 1024.0);
            let asked = asked.load(Ordering::Relaxed);
            eprintln!(
                "minute {minute:3}: {asked:7} requests, agent {a:6.1} MiB, engine {e:6.1} MiB"
            );
            assert!(agent.metric(DISK_BYTES).await <= DISK_MIB * 1_048_576.0);
            seen.push(now);
        }
        seen
    };
    let (_, seen) = tokio::join!(clients, looks);
    idle(&agent).await;
    assert_eq!(agent.metric("node_engine_restarts_total").await, 0.0);
    for used in [ACCEPTED, MEMORY_HITS, DISK_HITS, EVICTIONS] {
        let count = agent.metric(used).await;
        eprintln!("{used} {count}");
        assert!(count > 0.0, "{used}: what this is about did not happen");
    }
    let saved = std::fs::read_dir(cache.path().join("slots")).unwrap().count();
    assert!((1..=7).contains(&saved), "{saved} slots are saved");
    let (warm, last) = (seen[0], seen[seen.len() - 1]);
    for (name, warm, last) in [("agent", warm[0], last[0]), ("engine", warm[1], last[1])] {
        let most = warm + warm * GROWTH_PERCENT_MAX / 100 + GROWTH_SLACK_KIB;
        assert!(last <= most, "the {name} grew from {warm} to {last} KiB");
    }
}
