//! Flotilla beside llama-server, Paddler, and nginx in front of llama-server, on this machine, with
//! the same model file: one table for one machine, and one for two nodes behind one endpoint
//! (`make bench-peers`, docs/benchmarks.md). Each row is measured of all servers in turns; figures
//! are medians. Nothing is asserted about time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "figures are for people")]

mod fleet;
mod load;
mod peers;
mod speculation;
mod table;
mod work;

use std::path::{Path, PathBuf};
use std::time::Instant;

use fleet_tests::process::{Folder, run};
use load::{ask, text, user};
use peers::Peer;
use table::Table;

/// Slots of each of two nodes.
const NODE_SLOTS: usize = 4;

fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

/// NaN of no values.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

/// Words separated by commas, or the default.
fn chosen(variable: &str, default: &str) -> Vec<String> {
    let all = std::env::var(variable).unwrap_or_else(|_| default.into());
    all.split(',').map(Into::into).collect()
}

/// Turns that each server gets.
fn rounds() -> u64 {
    chosen("FLOTILLA_BENCH_ROUNDS", "3")[0].parse().unwrap()
}

fn model(folder: &Folder, shape: &str, quant: &str) -> PathBuf {
    let path = folder.path().join(format!("{shape}-{quant}.gguf"));
    let arguments = ["synth", "--shape", shape, "--quant", quant, path.to_str().unwrap()];
    let ran = run("flotilla-agent", &arguments);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    path
}

#[test]
#[ignore = "measures: make bench-peers"]
fn figures() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let folder = Folder::new();
    let shape = &chosen("FLOTILLA_BENCH_SHAPE", "qwen2.5-0.5b")[0];
    for quant in chosen("FLOTILLA_BENCH_QUANTS", "q4_0,q4_k_m") {
        let model = model(&folder, shape, &quant);
        runtime.block_on(one_machine(&model, &format!("{shape}, {quant}, one machine")));
        if is_chosen("nginx") || is_chosen("paddler") {
            runtime.block_on(two_nodes(&model, &format!("{shape}, {quant}, two nodes")));
        }
    }
}

#[test]
#[ignore = "measures: make bench-drafts"]
fn drafts_from_texts() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(speculation::texts());
}

#[test]
#[ignore = "measures: make bench-drafts"]
fn drafts_of_models() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(speculation::models());
}

#[test]
#[ignore = "measures: make bench-drafts"]
fn drafts_of_heads() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(speculation::heads());
}

/// Asks each once: weights are read from the disk, and buffers are allocated.
async fn warm_up(peers: &[Peer]) {
    for peer in peers {
        let timing = ask(peer, user(text(1, 20)), 8, |_| ()).await;
        assert!(timing.is_complete, "{} does not answer: {timing:?}", peer.name);
    }
}

/// True for one of the servers to measure.
fn is_chosen(name: &str) -> bool {
    chosen("FLOTILLA_BENCH_SERVERS", "llama-server,paddler,nginx").iter().any(|all| all == name)
}

async fn start_llama_server(model: &Path) -> Option<Peer> {
    if is_chosen("llama-server") { peers::llama_server(model).await } else { None }
}

/// Each server in turn, alone, from its start to its first token.
async fn cold_starts(model: &Path, table: &mut Table) {
    for _ in 0..rounds() {
        let begun = Instant::now();
        if let Some(peer) = start_llama_server(model).await {
            first_token(table, &peer, begun).await;
        }
        let begun = Instant::now();
        let own = peers::flotilla(model, 1, work::SLOTS).await;
        first_token(table, &own, begun).await;
    }
}

async fn first_token(table: &mut Table, peer: &Peer, begun: Instant) {
    ask(peer, user(text(2, 20)), 1, |_| ()).await;
    table.add("start to first token, s", peer, begun.elapsed().as_secs_f64());
}

async fn one_machine(model: &Path, title: &str) {
    let mut table = Table::new(title, &[]);
    cold_starts(model, &mut table).await;
    let llama_server = start_llama_server(model).await;
    let paddler =
        if is_chosen("paddler") { peers::paddler(model, 1, work::SLOTS).await } else { None };
    let own = peers::flotilla(model, 1, work::SLOTS).await;
    let peers: Vec<Peer> = [llama_server, paddler].into_iter().flatten().chain([own]).collect();
    warm_up(&peers).await;
    for round in 0..rounds() {
        for clients in [1, 4, 8, 16] {
            let name = format!("tokens/s, {clients} at a time, prompts of 60 tokens");
            for (salt, peer) in table.turn(round, &peers) {
                table.add(&name, peer, work::decode(peer, salt, clients).await);
            }
        }
        for (salt, peer) in table.turn(round, &peers) {
            let name = "tokens/s, 4 at a time, beside a busy program on each core";
            table.add(name, peer, work::decode_beside_others(peer, salt).await);
        }
        for tokens in [500, 1000, 2000] {
            let name = format!("first token of a prompt of {tokens} tokens, s");
            for (salt, peer) in table.turn(round, &peers) {
                table.add(&name, peer, work::long_prompt(peer, salt, tokens).await);
            }
        }
        for (salt, peer) in table.turn(round, &peers) {
            let [speed, gap] = work::beside_long_prompts(peer, salt).await;
            table.add("tokens/s of 4 responses beside 2 prompts of 1,000 tokens", peer, speed);
            table.add("99th percentile between two of these tokens, ms", peer, gap);
        }
        for (salt, peer) in table.turn(round, &peers) {
            let name = "first token of 8 requests with one system prompt of 400 tokens, s";
            table.add(name, peer, work::shared_prompt(peer, salt).await);
        }
    }
    for peer in &peers {
        table.add("largest resident memory, MiB", peer, peer.peak_mib());
    }
    table.print();
}

async fn two_nodes(model: &Path, title: &str) {
    let mut table = Table::new(title, &[]);
    for round in 0..rounds() {
        let others =
            [peers::nginx(model, 2, NODE_SLOTS).await, peers::paddler(model, 2, NODE_SLOTS).await];
        let own = peers::flotilla(model, 2, NODE_SLOTS).await;
        let mut peers: Vec<Peer> = others.into_iter().flatten().chain([own]).collect();
        warm_up(&peers).await;
        for (salt, peer) in table.turn(round, &peers) {
            let name = "first token of the second turn of a chat, first message of 800 tokens, s";
            table.add(name, peer, fleet::second_turn(peer, salt).await);
        }
        for (salt, peer) in table.turn(round, &peers) {
            let [first, complete] = fleet::two_users(peer, salt).await;
            table.add("first token of one user while another has sent 24 requests, s", peer, first);
            table.add("of these 25 requests, complete", peer, complete);
        }
        // Last, because then a node is missing.
        for peer in &mut peers {
            let complete = fleet::killed(peer, 1000 + round).await;
            table.add("of 8 responses, complete after one of two nodes is killed", peer, complete);
        }
    }
    table.print();
}
