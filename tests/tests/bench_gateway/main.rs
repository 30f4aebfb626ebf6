//! What the gateway costs, beside nginx and HAProxy in the same run: one line of JSON for each
//! figure (`make bench-gateway`). Upstream and clients are in this process, each proxy is one of
//! its own with one thread for traffic. Nothing is asserted about time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "figures are for people")]

mod choice;
mod idle;
mod load;
mod proxies;
mod stub;

use std::time::Duration;

use load::Call;
use proxies::Proxy;
use serde_json::json;

/// Turns that each proxy gets; figures are medians.
const ROUNDS: usize = 3;
/// Turns of each API: its cost differs less from another's than from one turn to the next.
const API_ROUNDS: usize = 7;
/// How long each turn takes, but for streams, which have a length.
const TURN: Duration = Duration::from_secs(4);
/// Connections side by side.
const CONNECTIONS: usize = 32;
/// Streams side by side, events a second of each, and events.
const STREAMS: usize = 500;
const EVENTS_PER_SECOND: u64 = 50;
const EVENTS: u64 = 300;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print(name: &str, value: f64, aim: &str, how: &str) {
    println!("{}", json!({"name": name, "value": value, "aim": aim, "how": how}));
}

/// The medians of what everything compared measures in turns.
async fn in_turns<T, const N: usize>(
    compared: &[T],
    rounds: usize,
    measure: impl AsyncFn(&T) -> [f64; N],
) -> Vec<[f64; N]> {
    let mut all = vec![Vec::new(); compared.len()];
    for _ in 0..rounds {
        for (one, measured) in compared.iter().zip(&mut all) {
            measured.push(measure(one).await);
        }
    }
    let medians = |rounds: Vec<[f64; N]>| {
        std::array::from_fn(|i| median(rounds.iter().map(|round| round[i]).collect()))
    };
    all.into_iter().map(medians).collect()
}

#[test]
#[ignore = "measures: make bench-gateway"]
fn figures() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        translation().await;
        let Some(proxies) = proxies::start().await else {
            return eprintln!("skipped: nginx and haproxy are not installed");
        };
        requests(&proxies).await;
        streams(&proxies).await;
        latency(&proxies).await;
        idle::figures().await;
    });
    choice::figures();
}

#[test]
#[ignore = "a compiler learns from it: make dist PGO=1"]
fn training() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let gateway = proxies::gateway(stub::start()).await;
        assert!(load::requests(&gateway, Call::Chat, CONNECTIONS, 2 * TURN).await > 0);
        assert!(load::streams(&gateway, Call::Chat, STREAMS).await > 0);
        load::latencies(&gateway, TURN).await;
        // A process that is killed leaves nothing of what it learned.
        gateway.stops().await;
    });
}

fn line(proxies: &[Proxy], values: &[f64], name: &str, unit: &str, what: &str) {
    for (proxy, value) in proxies.iter().zip(values).filter(|(proxy, _)| proxy.is_proxy()) {
        let how = format!("{what}, median of {ROUNDS} turns");
        print(&format!("{name}_{}_{unit}", proxy.name), *value, "-", &how);
    }
    let of = |name: &str| proxies.iter().position(|p| p.name == name).map(|i| values[i]);
    let (ours, nginx) = (of("flotilla").unwrap(), of("nginx").unwrap());
    let how = format!("{what}: the gateway / nginx with least_conn and kept connections, one run");
    print(&format!("{name}_over_nginx"), ours / nginx, "<= 1.0", &how);
}

async fn requests(proxies: &[Proxy]) {
    let measured = in_turns(proxies, ROUNDS, async |proxy| {
        let before = proxy.cpu_seconds();
        let count = load::requests(proxy, Call::Chat, CONNECTIONS, TURN).await;
        [(proxy.cpu_seconds() - before) * 1e6 / count as f64, count as f64 / TURN.as_secs_f64()]
    })
    .await;
    let cpu: Vec<f64> = measured.iter().map(|m| m[0]).collect();
    let what =
        format!("CPU time of a chat of 700 bytes that is not streamed, {CONNECTIONS} connections");
    line(proxies, &cpu, "request_cpu", "us", &what);
    for (proxy, [_, rate]) in proxies.iter().zip(&measured) {
        print(&format!("requests_{}_per_s", proxy.name), *rate, "-", "closed loop, same run");
    }
}

async fn streams(proxies: &[Proxy]) {
    let measured = in_turns(proxies, ROUNDS, async |proxy| {
        let before = proxy.cpu_seconds();
        let tokens = load::streams(proxy, Call::Chat, STREAMS).await;
        [(proxy.cpu_seconds() - before) * 1e6 / tokens as f64]
    })
    .await;
    let cpu: Vec<f64> = measured.iter().map(|m| m[0]).collect();
    let what = format!("CPU time of a streamed token, {STREAMS} streams of {EVENTS_PER_SECOND}/s");
    line(proxies, &cpu, "token_cpu", "us", &what);
}

/// What clients of translated APIs cost, beside those of chat completions.
async fn translation() {
    let gateway = proxies::gateway(stub::start()).await;
    let calls = [Call::Chat, Call::Messages, Call::Responses];
    let measured = in_turns(&calls, API_ROUNDS, async |call| {
        let before = gateway.cpu_seconds();
        let count = load::requests(&gateway, *call, CONNECTIONS, TURN / 2).await;
        let between = gateway.cpu_seconds();
        let tokens = load::streams(&gateway, *call, STREAMS).await;
        let of = |seconds: f64, count: f64| seconds * 1e6 / count;
        [of(between - before, count as f64), of(gateway.cpu_seconds() - between, tokens as f64)]
    })
    .await;
    for (i, what) in ["request", "token"].into_iter().enumerate() {
        for (call, values) in calls.iter().zip(&measured).skip(1) {
            let name = format!("{what}_cpu_{call:?}_over_chat").to_lowercase();
            let how = format!(
                "CPU time of a {what}: translated / chat completions, medians of {API_ROUNDS} turns"
            );
            print(&name, values[i] / measured[0][i], "<= 1.15", &how);
        }
        print(&format!("{what}_cpu_chat_us"), measured[0][i], "-", "the same run");
    }
}

async fn latency(proxies: &[Proxy]) {
    let measured =
        in_turns(proxies, ROUNDS, async |proxy| load::latencies(proxy, TURN).await).await;
    let direct = measured[proxies.iter().position(|p| !p.is_proxy()).unwrap()];
    for (i, name) in ["p50", "p99"].into_iter().enumerate() {
        let added: Vec<f64> = measured.iter().map(|m| m[i] - direct[i]).collect();
        for (proxy, added) in proxies.iter().zip(&added).filter(|(proxy, _)| proxy.is_proxy()) {
            let aim = match (proxy.name, i) {
                ("flotilla", 0) => "<= nginx + 100",
                ("flotilla", _) => "<= nginx + 1000",
                _ => "-",
            };
            let how = "added to asking the upstream directly, 8 connections, 800 requests/s at random times";
            print(&format!("latency_{name}_{}_us", proxy.name), *added, aim, how);
        }
    }
}
