//! What models take in memory beside what was planned for them: shapes in which caches, states or
//! outputs count more than weights.

use std::path::PathBuf;

use fleet_tests::process::{Agent, Folder, run};
use rustix::process::Pid;
use serde_json::{Value, json};

const MEBIBYTE: f64 = 1_048_576.0;

/// The table of the shape with a large vocabulary: tokens, and bytes of each one's row.
const WIDE_TOKENS: u32 = 250_000;
const WIDE_ROW_BYTES: u32 = 256;

fn synth(folder: &Folder, shape: &str) -> PathBuf {
    let path = folder.path().join(format!("{shape}.gguf"));
    let arguments = ["synth", "--shape", shape, "--quant", "f16", path.to_str().unwrap()];
    assert_eq!(run("flotilla-agent", &arguments).code, Some(0));
    path
}

fn plan(model: &str, more: &[&str]) -> Value {
    let ran = run("flotilla-agent", &[&["plan", model, "--quick", "--json"], more].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    serde_json::from_str(&ran.stdout).unwrap()
}

/// Memory that an agent and its engine hold, in MiB. Both run the same program, whose pages count
/// for the engine, and wholly, however many other agents of this machine run it, too.
fn resident(agent: &Agent) -> f64 {
    let held = |pid: Pid, name: &str| {
        let path = format!("/proc/{}/status", pid.as_raw_nonzero());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap() / 1024.0
    };
    held(agent.server.pid(), "RssAnon:") + held(agent.engine(), "VmRSS:")
}

async fn complete(agent: &Agent, body: Value) -> Value {
    agent.client.post("/v1/completions", body.to_string()).await.json()
}

fn agree(what: &str, resident: f64, planned: f64) {
    let ratio = resident / planned;
    assert!((0.9..1.1).contains(&ratio), "{what}: {resident:.1} MiB of {planned:.1} MiB planned");
}

/// A size as programs print it, in MiB.
fn mebibytes(text: &str) -> f64 {
    let mut words = text.split_whitespace();
    let number: f64 = words.next().unwrap().parse().unwrap();
    match words.next() {
        Some("GiB") => number * 1024.0,
        Some("MiB") => number,
        other => panic!("{other:?} in {text}"),
    }
}

#[tokio::test]
async fn vectors_with_a_large_vocabulary_take_what_plan_and_check_say() {
    let folder = Folder::new();
    let path = synth(&folder, "tiny-embed-wide");
    let model = path.to_str().unwrap();
    let sizes = ["--context-tokens", "4096"];
    let planned = plan(model, &sizes);
    let needed = planned["needed_bytes"].as_f64().unwrap() / MEBIBYTE;
    assert!(planned["parts"]["output"].as_u64().unwrap() <= 4096 * 128 * 4, "{planned}");

    let checked =
        run("flotilla-agent", &[&["check", "--threads", "1", model], &sizes[..]].concat());
    assert_eq!(checked.code, Some(0), "{checked:?}");
    let (_, memory) = checked.stdout.trim().split_once("tokens; ").unwrap();
    let (in_memory, said) = memory.split_once(" in memory, ").unwrap();
    agree("what check says was planned", mebibytes(said), needed);
    // Rows of tokens that did not occur stay in the file, but for those on the same pages.
    let table = f64::from(WIDE_TOKENS * WIDE_ROW_BYTES) / MEBIBYTE;
    let saw = mebibytes(in_memory);
    let expected = 0.9 * (needed - table)..1.1 * needed;
    assert!(expected.contains(&saw), "check saw {saw:.1} MiB, not {expected:?}");

    let agent =
        Agent::start_with_model(&path, &[&["--model-name", "m"], &sizes[..]].concat()).await;
    // Tokens of all pages of the table.
    let pages = (0..WIDE_TOKENS).step_by(4096 / WIDE_ROW_BYTES as usize).collect::<Vec<_>>();
    let inputs: Vec<&[u32]> = pages.chunks(4096).collect();
    let body = json!({"model": "m", "input": inputs}).to_string();
    let answer = agent.client.post("/v1/embeddings", body).await;
    assert_eq!(answer.status, 200, "{:?}", answer.json());
    agree("an agent at work", resident(&agent), needed);
}

#[tokio::test]
async fn windows_and_states_take_no_more_than_planned_and_nothing_for_finished_requests() {
    let folder = Folder::new();
    // Small batches: what they would take counts little, whether or not they were full.
    for (shape, most, sizes) in [
        ("tiny-window", 300.0, ["8", "4096", "32768"]),
        ("tiny-hybrid", 210.0, ["64", "4096", "4096"]),
    ] {
        let path = synth(&folder, shape);
        let names = ["--slots", "--context-tokens", "--kv-cells"];
        let mut sizes: Vec<&str> = names.iter().zip(sizes).flat_map(|(n, v)| [*n, v]).collect();
        sizes.extend(["--kv-type", "f32", "--batch-rows", "128", "--saved-prefix-mib", "0"]);
        let planned = plan(path.to_str().unwrap(), &sizes);
        let needed = planned["needed_bytes"].as_f64().unwrap() / MEBIBYTE;
        let more = [&["--model-name", "m"], &sizes[..]].concat();
        let agent = Agent::start_with_model(&path, &more).await;
        let ask = |n: usize| {
            let prompt = "to be or not ".repeat(10 + 4 * n);
            let body = json!({"model": "m", "prompt": prompt, "max_tokens": 8, "temperature": 0});
            complete(&agent, body)
        };
        let (alone, again) = (ask(3).await, ask(3).await);
        let text = |answer: &Value| answer["choices"][0]["text"].to_string();
        assert_eq!(text(&alone), text(&again), "{shape}");
        assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{shape}");
        let together = futures_util::future::join_all((0..16).map(&ask)).await;
        assert_eq!(text(&together[3]), text(&alone), "{shape}: among others");
        // A cache takes memory as it is filled.
        let ratio = resident(&agent) / needed;
        assert!((0.2..1.1).contains(&ratio), "{shape}: {ratio} of {needed} MiB planned");
        assert!(needed < most, "{shape}: {needed} MiB are planned");
    }
}

#[tokio::test]
async fn turns_of_a_conversation_begin_with_a_saved_prefix_within_its_memory() {
    let folder = Folder::new();
    for shape in ["tiny-window", "tiny-hybrid"] {
        let path = synth(&folder, shape);
        let model = path.to_str().unwrap();
        let limited = ["--saved-prefix-mib", "16"];
        let (with, without) = (plan(model, &limited), plan(model, &["--saved-prefix-mib", "0"]));
        let needed = |plan: &Value| plan["needed_bytes"].as_u64().unwrap();
        assert_eq!(needed(&with) - needed(&without), 16 << 20, "{shape}");
        assert!(plan(model, &[])["saved_prefix_bytes"].as_u64().unwrap() > 0, "{shape}");

        let sizes = ["--slots", "2", "--context-tokens", "2048", "--model-name", "m"];
        let saving = Agent::start_with_model(&path, &[&limited[..], &sizes].concat()).await;
        let more = [&["--no-prefix-cache"], &sizes[..]].concat();
        let plain = Agent::start_with_model(&path, &more).await;
        let mut prompt = "to be or not ".repeat(20);
        for turn in 0..6 {
            let body = json!({"model": "m", "prompt": prompt, "max_tokens": 40, "temperature": 0,
                "ignore_eos": true});
            let answer = complete(&saving, body.clone()).await;
            let expected = complete(&plain, body).await;
            assert_eq!(answer["choices"], expected["choices"], "{shape}, turn {turn}");
            let count = |answer: &Value, name: &str| {
                answer["usage"].pointer(name).and_then(Value::as_u64).unwrap()
            };
            let cached = count(&answer, "/prompt_tokens_details/cached_tokens");
            let tokens = count(&answer, "/prompt_tokens");
            let new = if turn == 0 { tokens } else { 80 };
            assert!(cached + new >= tokens, "{shape}, turn {turn}: {cached} of {tokens} tokens");
            assert_eq!(count(&expected, "/prompt_tokens_details/cached_tokens"), 0);
            prompt += answer["choices"][0]["text"].as_str().unwrap();
            prompt += ". And then? ";
        }
        let saved = saving.metric("node_saved_prefix_bytes").await;
        assert!(saved > 0.0 && saved <= f64::from(16 << 20), "{shape}: {saved}");
        assert_eq!(plain.metric("node_saved_prefix_bytes").await, 0.0);
    }
}

#[tokio::test]
async fn requests_that_gave_up_their_cells_begin_again_without_a_shared_beginning() {
    let folder = Folder::new();
    for shape in ["tiny-window", "tiny-hybrid"] {
        let path = synth(&folder, shape);
        let sizes = ["--slots", "4", "--context-tokens", "256", "--kv-cells", "300"];
        let more = [&["--model-name", "m"], &sizes[..]].concat();
        let agent = Agent::start_with_model(&path, &more).await;
        let ask = |n: usize| {
            let body = json!({"model": "m", "prompt": format!("{n} to be"), "max_tokens": 200,
                "temperature": 0, "ignore_eos": true});
            complete(&agent, body)
        };
        let together = futures_util::future::join_all((0..4).map(&ask)).await;
        for (n, answer) in together.iter().enumerate() {
            assert_eq!(answer["usage"]["completion_tokens"], 200, "{shape}: {answer}");
            assert_eq!(answer["choices"], ask(n).await["choices"], "{shape}: {n} alone");
        }
    }
}

/// A model in a file system that has huge pages with every kernel; removed with its handle.
struct InMemory(PathBuf);

impl InMemory {
    /// `None` if there is no such file system, or no memory in one piece for such a page.
    fn new(folder: &Folder) -> Option<Self> {
        let free = std::fs::read_to_string("/proc/buddyinfo").ok()?;
        // "Node 0, zone Normal", and how many pieces of 1, 2, 4, ... pages are free.
        let pieces = |zone: &str| {
            zone.split_whitespace().skip(4 + 9).any(|count| count.parse::<u64>().unwrap_or(0) > 8)
        };
        let path = PathBuf::from("/dev/shm").join(folder.path().file_name()?);
        let has_room =
            free.lines().any(pieces) && path.parent().is_some_and(std::path::Path::is_dir);
        has_room.then(|| std::fs::copy(synth(folder, "tiny-window"), &path).unwrap())?;
        Some(Self(path))
    }
}

impl Drop for InMemory {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[tokio::test]
async fn weights_in_the_file_have_huge_pages_unless_the_operator_refuses_them() {
    // A file keeps its huge pages, so each agent has one of its own.
    let folders = [Folder::new(), Folder::new()];
    let models: Option<Vec<InMemory>> = folders.iter().map(InMemory::new).collect();
    let Some(models) = models else {
        return eprintln!("skipped: no huge pages for files in memory");
    };
    let huge_kib = |agent: &Agent| {
        let path = format!("/proc/{}/smaps_rollup", agent.engine().as_raw_nonzero());
        let sums = std::fs::read_to_string(path).unwrap();
        let sum = sums.lines().find_map(|line| line.strip_prefix("ShmemPmdMapped:")).unwrap();
        sum.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let ask = async |agent: &Agent| {
        let body = json!({"model": "m", "prompt": "to be", "max_tokens": 8, "temperature": 0});
        complete(agent, body).await["choices"][0]["text"].clone()
    };
    let with = Agent::start_with_model(&models[0].0, &["--model-name", "m"]).await;
    fleet_tests::eventually("a huge page", async || (huge_kib(&with) > 0).then_some(())).await;
    let refusing = ["--model-name", "m", "--no-huge-pages"];
    let without = Agent::start_with_model(&models[1].0, &refusing).await;
    assert_eq!(ask(&with).await, ask(&without).await);
    assert_eq!(huge_kib(&without), 0);
}
