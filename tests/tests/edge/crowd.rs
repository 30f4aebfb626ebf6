//! Ten thousand connections that do next to nothing.

use std::net::Ipv4Addr;
use std::process::Command;
use std::time::{Duration, Instant};

use fleet_tests::client::Client;
use fleet_tests::eventually;
use fleet_tests::process::{Folder, Server, binary, metric};
use fleet_tests::raw::{Raw, statuses};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Answered;

const CROWD: u64 = 10_000;
/// Fewer than one address may have by default.
const EACH: u64 = 500;
const GROWTH_MIB_MAX: f64 = 256.0;
/// Files that test and gateway need beside those connections.
const SPARE: u64 = 500;

/// As many connections as the limits on open files allow, here and in the gateway.
fn crowd() -> u64 {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let crowd = maximum.unwrap_or(u64::MAX).saturating_sub(SPARE).min(CROWD);
    if crowd < CROWD {
        eprintln!("only {crowd} connections: the hard limit on open files is {maximum:?}");
    }
    crowd
}

/// Half of them have been answered and are idle; half have begun to say something.
async fn join_crowd(answered: &Answered, number: u64) -> Raw {
    let source = Ipv4Addr::new(127, 0, 1, (number / EACH) as u8 + 1).into();
    let mut raw = Raw::connect_from(source, answered.fleet.client.address()).await.unwrap();
    if number.is_multiple_of(2) {
        raw.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert_eq!(statuses(&raw.next().await), [200]);
    } else {
        raw.send(b"POST /v1/chat/completions HTTP/1.1\r\n").await;
    }
    raw
}

/// Others are answered meanwhile; the slowest answer.
async fn others_are_served(answered: &Answered) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let begun = Instant::now();
        answered.works().await;
        slowest = slowest.max(begun.elapsed());
    }
    slowest
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_slow_connections_cost_little_and_hinder_nobody() {
    let wanted = crowd();
    let limits = "limits: {connections_max: 20000}\n\
        timeouts: {header_ms: 12000, keep_alive_ms: 12000}\n";
    let answered = Answered::start(limits).await;
    answered.works().await;
    let before = answered.fleet.rss_mib();
    let begun = Instant::now();
    let mut crowd = Vec::new();
    for number in 0..wanted {
        crowd.push(join_crowd(&answered, number).await);
    }
    let joined = begun.elapsed();
    for letter in b"host:" {
        for raw in crowd.iter_mut().skip(1).step_by(2) {
            raw.send(&[*letter]).await;
        }
    }
    let slowest = others_are_served(&answered).await;
    let open = metric(&answered.fleet.admin, "gateway_connections_open").await;
    let grown = answered.fleet.rss_mib() - before;
    eprintln!("{open} connections in {joined:?}: {grown:.1} MiB more, slowest answer {slowest:?}");
    if begun.elapsed() < Duration::from_secs(11) {
        assert!(open >= wanted as f64, "{open} are open");
    }
    assert!(grown <= GROWTH_MIB_MAX, "{grown} MiB more");
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    for why in ["slow_head", "idle"] {
        eventually("all to be closed by their deadlines", async || {
            (answered.closed(why).await >= (wanted / 2) as f64).then_some(())
        })
        .await;
    }
    eventually("all of them to be gone", async || {
        let open = metric(&answered.fleet.admin, "gateway_connections_open").await;
        (open < 10.0).then_some(())
    })
    .await;
    answered.works().await;
}

/// A shell allows it 64 at first.
#[tokio::test]
async fn a_gateway_that_may_open_more_files_does() {
    let folder = Folder::new();
    let nodes = "nodes: {static: [{url: 'http://127.0.0.1:1'}]}\n";
    let admin = "admin: {listen: '127.0.0.1:0'}\n";
    let text = format!("listen: 127.0.0.1:0\nallow_anonymous: true\n{admin}{nodes}");
    let config = folder.write("gateway.yaml", text);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -Sn 64; exec \"$@\"", "sh"]);
    command.arg(binary("flotilla-gateway")).args(["run", "--config"]).arg(config);
    let server = Server::spawn(command);
    let admin = Client::new(server.address(), None);
    let client = Client::new(server.address(), None);
    let mut crowd = Vec::new();
    for _ in 0..200 {
        let mut raw = Raw::connect(client.address()).await;
        raw.send(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").await;
        assert_eq!(statuses(&raw.next().await), [200]);
        crowd.push(raw);
    }
    assert!(metric(&admin, "gateway_connections_open").await > 200.0);
    assert!(!server.log().contains("accept failed"));
}
