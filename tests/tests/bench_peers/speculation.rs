//! Speculation of Flotilla and of llama-server on the same work: models in which each token follows
//! from the last one (`flotilla-agent synth --chain`), with draft models that know a part of that,
//! and prompts of which a response repeats a part. Whole requests are timed, prompts included.

use std::path::{Path, PathBuf};
use std::time::Instant;

use fleet_tests::process::{Folder, run};
use futures_util::future::join_all;
use serde_json::json;

use crate::peers::{self, Peer};
use crate::table::Table;
use crate::{chosen, is_chosen, rounds};

/// Requests that are computed side by side.
const SLOTS: usize = 4;
/// Tokens of a response.
const TOKENS: u32 = 128;
/// Tokens of a prompt of which a response repeats a part.
const REPEATED: u64 = 200;
/// The first token that no text is tokenized to, and how many follow that are no control tokens.
const FIRST: u64 = 1000;
const ORDINARY: u64 = 70_000;
/// As in `inference-core/src/tools/synth/chain.rs`: texts stay in a half of the vocabulary.
const STRIDE: u64 = 7919;
const HALF: u64 = 151_936 / 2;

fn model(folder: &Folder, shape: &str, quant: &str, percent: u64) -> PathBuf {
    chain(folder, shape, quant, &["--chain", &percent.to_string()])
}

fn chain(folder: &Folder, shape: &str, quant: &str, more: &[&str]) -> PathBuf {
    let path = folder.path().join(format!("{shape}-{quant}{}.gguf", more.concat()));
    let arguments = [&["synth", "--shape", shape, "--quant", quant], more].concat();
    let ran = run("flotilla-agent", &[&arguments[..], &[path.to_str().unwrap()]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    path
}

/// A number below `below`, always the same.
fn drawn(salt: u64, index: u64, below: u64) -> u64 {
    let mixed = (salt.wrapping_mul(1 << 20) + index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) % below
}

fn ordinary(salt: u64, index: u64) -> u64 {
    FIRST + drawn(salt, index, ORDINARY)
}

/// A prompt of `length` tokens, of which so many percent are those that follow its last one, in
/// their order.
fn prompt(salt: u64, length: u64, percent: u64) -> Vec<u64> {
    let begin = ordinary(salt, 0);
    let follows = |index: u64| (begin + index * STRIDE) % HALF;
    let token = |index: u64| match drawn(salt, 1000 + index, 100) < percent {
        true => follows(index),
        false => ordinary(salt, index),
    };
    (0..length).map(token).chain([begin]).collect()
}

/// Tokens per second of `clients` responses.
async fn speed(peer: &Peer, salt: u64, clients: u64, (length, percent): (u64, u64)) -> f64 {
    let begun = Instant::now();
    let all = (0..clients).map(async |client| {
        let prompt = prompt(salt * 10 + client, length, percent);
        let body = json!({"model": "m", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0,
            "ignore_eos": true});
        let answer = peer.client.post("/v1/completions", body.to_string()).await;
        answer.json()["usage"]["completion_tokens"].as_f64().unwrap()
    });
    let tokens: f64 = join_all(all).await.into_iter().sum();
    tokens / begun.elapsed().as_secs_f64()
}

async fn turns(table: &mut Table, peers: &[Peer], cases: &[(String, (u64, u64))]) {
    for peer in peers {
        speed(peer, 7, 1, (20, 0)).await;
    }
    for round in 0..rounds() {
        for (name, case) in cases {
            for clients in [1, 2, 4] {
                let row = format!("tokens/s, {clients} at a time{name}");
                for (salt, peer) in table.turn(round, peers) {
                    table.add(&row, peer, speed(peer, salt, clients, *case).await);
                }
            }
        }
    }
    table.print();
}

/// Each server with its ways to find drafts in a text, and without.
async fn repeating(model: &Path, title: &str) {
    let mut table = Table::new(title, &[]);
    let own = [("Flotilla, no drafts", &["--no-speculation"][..]), ("Flotilla", &[])];
    let theirs = [
        ("llama-server, no drafts", &[][..]),
        ("llama-server, --spec-default", &["--spec-default"]),
        ("llama-server, ngram-simple", &["--spec-type", "ngram-simple"]),
    ];
    let peers = started(model, &own, &theirs).await;
    let case = |percent: u64| (format!(", {percent} % copied"), (REPEATED, percent));
    turns(&mut table, &peers, &[100, 95, 80, 0].map(case)).await;
}

/// Each server with a draft model, and without.
async fn drafted(model: &Path, small: &Path, title: &str) {
    let mut table = Table::new(title, &[]);
    let small = small.to_str().unwrap();
    let own = [
        ("Flotilla, no drafts", &["--no-speculation"][..]),
        ("Flotilla", &["--draft-model", small]),
    ];
    let theirs = [
        ("llama-server, no drafts", &[][..]),
        ("llama-server", &["-md", small, "--spec-type", "draft-simple"]),
        (
            "llama-server, 8 drafts, p 0.5",
            &[
                "-md",
                small,
                "--spec-type",
                "draft-simple",
                "--spec-draft-n-max",
                "8",
                "--spec-draft-p-min",
                "0.5",
            ],
        ),
    ];
    let peers = started(model, &own, &theirs).await;
    turns(&mut table, &peers, &[(String::new(), (20, 0))]).await;
}

/// Each server with the head in the model's file, and without.
async fn with_head(model: &Path, title: &str) {
    let mut table = Table::new(title, &[]);
    let own = [("Flotilla, no drafts", &["--no-speculation"][..]), ("Flotilla", &[])];
    let theirs = [
        ("llama-server, no drafts", &[][..]),
        ("llama-server, draft-mtp", &["--spec-type", "draft-mtp"]),
    ];
    let peers = started(model, &own, &theirs).await;
    turns(&mut table, &peers, &[(String::new(), (20, 0))]).await;
}

type Variant<'a> = (&'static str, &'a [&'a str]);

async fn started(model: &Path, own: &[Variant<'_>], theirs: &[Variant<'_>]) -> Vec<Peer> {
    let mut all = Vec::new();
    for (name, flags) in own {
        let mut peer = peers::flotilla_with(model, 1, SLOTS, flags).await;
        peer.name = name;
        all.push(peer);
    }
    for (name, flags) in theirs.iter().filter(|_| is_chosen("llama-server")) {
        let Some(mut peer) = peers::llama_server_with(model, SLOTS, flags).await else { continue };
        peer.name = name;
        all.push(peer);
    }
    all
}

/// Drafts from texts.
pub async fn texts() {
    let folder = Folder::new();
    let shape = &chosen("FLOTILLA_BENCH_SHAPE", "qwen2.5-1.5b")[0];
    for quant in chosen("FLOTILLA_BENCH_QUANTS", "q4_0") {
        let large = model(&folder, shape, &quant, 100);
        repeating(&large, &format!("{shape}, {quant}, text that repeats its prompt")).await;
    }
}

/// Drafts of MTP heads.
pub async fn heads() {
    let shape = &chosen("FLOTILLA_BENCH_HEAD_SHAPE", "qwen3.5-4b-mtp")[0];
    for quant in chosen("FLOTILLA_BENCH_QUANTS", "q4_0") {
        for percent in ["90", "70", "50"] {
            let folder = Folder::new();
            let model = chain(&folder, shape, &quant, &["--chain", "100", "--head", percent]);
            let title = format!("{shape}, {quant}, an MTP head that knows {percent} %");
            with_head(&model, &title).await;
        }
    }
}

/// Drafts of models.
pub async fn models() {
    let folder = Folder::new();
    let shape = &chosen("FLOTILLA_BENCH_SHAPE", "qwen2.5-1.5b")[0];
    for quant in chosen("FLOTILLA_BENCH_QUANTS", "q4_0") {
        let large = model(&folder, shape, &quant, 100);
        for percent in [90, 70, 50] {
            let small = model(&folder, "draft-0.1b", "q8_0", percent);
            let title = format!("{shape}, {quant}, a draft model that knows {percent} %");
            drafted(&large, &small, &title).await;
        }
    }
}
