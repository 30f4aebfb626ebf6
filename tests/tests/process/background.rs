//! Responses in the background, read by the package of OpenAI while the gateway and its nodes are
//! killed: no client misses an event, and each response is what an undisturbed fleet makes.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::Duration;

use fleet_tests::client::Client;
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::{ADMIN_KEY, Fleet, Folder, metric, run_command};
use fleet_tests::{eventually, eventually_within, root};
use serde_json::{Value, json};

use super::batches::gateway_with_small_disk;

/// Streams, how often the gateway is killed, and how often a node before each of these: `make
/// kills` says more.
const STREAMS: usize = 150;
const GATEWAY_KILLS: usize = 3;
const NODE_KILLS: usize = 1;
/// Streams that ask for different things.
pub(super) const KINDS: usize = 20;
/// Streams at a time: more than there are slots.
const CLIENTS: usize = 40;

/// A number of the environment, or the default.
pub(super) fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |number| number.parse().unwrap())
}

/// The interpreter with OpenAI's package. `None` without it.
pub(super) fn python() -> Option<PathBuf> {
    let python = root().join("target/sdk/openai/bin/python");
    if !python.exists() {
        eprintln!("skipped: there is no {}; 'make setup-test' installs it", python.display());
        return None;
    }
    Some(python)
}

/// A running script that reads streams.
pub(super) struct Script {
    child: Child,
    lines: Receiver<String>,
    pub(super) done: Vec<Value>,
}

impl Script {
    /// Reads so many streams.
    pub(super) fn start(python: &PathBuf, fleet: &Fleet, streams: usize) -> Self {
        Self::with(python, fleet, streams, &[])
    }

    /// Reads so many streams, and starts more until [`Self::end`], so that streams are running at
    /// every kill, however fast the fleet is.
    pub(super) fn start_many(python: &PathBuf, fleet: &Fleet, least: usize) -> Self {
        Self::with(python, fleet, least, &["more"])
    }

    fn with(python: &PathBuf, fleet: &Fleet, streams: usize, more: &[&str]) -> Self {
        let mut command = Command::new(python);
        command.arg(root().join("tests/sdk/background_streams.py"));
        command.args([streams.to_string(), CLIENTS.to_string()]).args(more);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("OPENAI_BASE_URL", format!("{}/v1", fleet.url));
        let mut child = command.env("OPENAI_API_KEY", &fleet.key).spawn().unwrap();
        let (sender, lines) = sync_channel(CLIENTS);
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        Self { child, lines, done: Vec::new() }
    }

    pub(super) async fn until(&mut self, done: usize) {
        eventually_within(Duration::from_secs(600), "streams to end", async || {
            self.read();
            (self.done.len() >= done).then_some(())
        })
        .await;
    }

    /// Lets no more streams begin, and waits for those that have.
    pub(super) async fn end(&mut self) {
        drop(self.child.stdin.take());
        eventually_within(Duration::from_secs(600), "the script to end", async || {
            let has_ended = self.child.try_wait().unwrap().is_some();
            (self.read() && has_ended).then_some(())
        })
        .await;
    }

    /// Reads what has ended. True if that was all.
    fn read(&mut self) -> bool {
        let has_failed = self.child.try_wait().unwrap().is_some_and(|status| !status.success());
        assert!(!has_failed, "the script failed: its stderr says why");
        loop {
            match self.lines.try_recv() {
                Ok(line) => self.done.push(serde_json::from_str(&line).unwrap()),
                Err(error) => return error == TryRecvError::Disconnected,
            }
        }
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How often streams broke that are the same as those that nobody disturbed.
pub(super) fn breaks_of(streams: &[Value], undisturbed: &[Value]) -> u64 {
    let key = |stream: &Value| stream["number"].as_u64().unwrap() as usize % KINDS;
    let expected: BTreeMap<usize, &Value> =
        undisturbed.iter().map(|stream| (key(stream), stream)).collect();
    assert!(expected.values().all(|stream| stream["breaks"] == 0));
    let mut breaks = 0;
    for stream in streams {
        let right = &expected[&key(stream)];
        for part in ["text", "events", "usage"] {
            assert_eq!(stream[part], right[part], "{part} of stream {}", stream["number"]);
        }
        breaks += stream["breaks"].as_u64().unwrap();
    }
    breaks
}

/// Waits until streams are being made: clients may be slower than nodes.
pub(super) async fn streams_run(fleet: &Fleet) {
    eventually("streams to run", async || {
        let active = metric(&fleet.admin, "gateway_background_tasks_active").await;
        (active >= 3.0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_in_the_background_miss_no_event_while_gateway_and_nodes_are_killed() {
    let Some(python) = python() else { return };
    let folder = Folder::new();
    let mut fleet = Fleet::start(&format!("store: {{dir: '{}'}}\n", folder.path().display())).await;
    let first = fleet.join("a", &["--slots", "2"]).await;
    let mut others = VecDeque::from([fleet.join("b", &["--slots", "2"]).await]);
    others.push_back(fleet.join("c", &["--slots", "2"]).await);
    let mut undisturbed = Script::start(&python, &fleet, KINDS);
    undisturbed.until(KINDS).await;

    let count = number("FLOTILLA_BACKGROUND_STREAMS", STREAMS);
    let gateway_kills = number("FLOTILLA_BACKGROUND_KILLS", GATEWAY_KILLS);
    let node_kills = number("FLOTILLA_BACKGROUND_NODE_KILLS", NODE_KILLS);
    let kills = gateway_kills * (node_kills + 1);
    let mut script = Script::start_many(&python, &fleet, count);
    for kill in 1..=kills {
        script.until(count * kill / (2 * (kills + 1))).await;
        streams_run(&fleet).await;
        fleet.kill_in_turn(kill, node_kills, &mut others).await;
    }
    script.end().await;
    let breaks = breaks_of(&script.done, &undisturbed.done);
    println!("{} streams, {kills} kills, {breaks} breaks", script.done.len());
    assert!(breaks as usize >= gateway_kills, "{breaks}");
    // A client whose request was cut off before it had an id has asked twice: nothing is left.
    eventually_within(Duration::from_secs(120), "all responses to end", async || {
        let active = metric(&fleet.admin, "gateway_background_tasks_active").await;
        (active == 0.0).then_some(())
    })
    .await;
    drop((first, others));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_disk_is_full_a_response_goes_on_and_its_end_waits() {
    let folder = Folder::new();
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let Some(server) = gateway_with_small_disk(&folder, &disk) else { return };
    let admin = Client::new(server.address(), Some(ADMIN_KEY));
    let client = Client::new(server.address(), None);
    let mut node = MockNode::join(client.address(), healthy("a", 1)).await;
    let request = json!({"model": "flotilla-demo", "input": "Hi", "background": true}).to_string();
    let asked = client.post("/v1/responses", request.clone()).await.json();
    let path = format!("/v1/responses/{}", asked["id"].as_str().unwrap());
    let stream = node.asked().await.stream();
    stream.say_marked(&[1], "H").await;
    // The disk as the gateway sees it.
    let seen = format!("/proc/{}/root{}", server.pid().as_raw_nonzero(), disk.display());
    let filler = Path::new(&seen).join("filler");
    let full = std::fs::write(&filler, vec![1; 4 << 20]);
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // Longer than what is left in a page of the log.
    stream.say_marked(&[2], &"long ".repeat(20_000)).await;
    stream.say_delta(3, &json!({"content": "!"}), &json!("stop")).await;
    stream.close(": u 9 3 0\ndata: [DONE]\n\n").await;
    eventually_within(Duration::from_secs(60), "the store to fail", async || {
        (metric(&admin, "gateway_store_available").await == 0.0).then_some(())
    })
    .await;
    let refused = client.post("/v1/responses", request).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "store_unavailable"));
    assert_ne!(client.get(&path).await.json()["status"], "failed");
    std::fs::remove_file(filler).unwrap();
    let done = eventually_within(Duration::from_secs(60), "it to be complete", async || {
        let response = client.get(&path).await.json();
        (response["status"] == "completed").then_some(response)
    })
    .await;
    let text = done["output"][0]["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with("Hlong") && text.ends_with("long !"));
    assert!(node.is_asked().is_none(), "nothing is made again");
    // It was in memory before.
    eventually_within(Duration::from_secs(60), "its end to be stored", async || {
        let ended = "gateway_background_tasks_total{outcome=\"completed\"}";
        (metric(&admin, ended).await == 1.0).then_some(())
    })
    .await;
    assert_eq!(metric(&admin, "gateway_store_available").await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_the_documentation_reads_responses_with_the_package_of_openai() {
    let Some(python) = python() else { return };
    let page = std::fs::read_to_string(root().join("docs/background.md")).unwrap();
    let examples = page.split("```python\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let folder = Folder::new();
    let fleet = Fleet::start(&format!("store: {{dir: '{}'}}\n", folder.path().display())).await;
    let _agent = fleet.join("a", &["--slots", "2"]).await;
    let mut command = Command::new(python);
    command.args(["-c", &examples.collect::<String>()]);
    command.env("OPENAI_BASE_URL", format!("{}/v1", fleet.url)).env("OPENAI_API_KEY", &fleet.key);
    let ran = tokio::task::block_in_place(|| run_command(command));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let said = "completed The capital of France is Paris.\nThe capital of Kenya is Nairobi.\n\
        queued 0\ncompleted The capital of Italy is Rome.\nThe capital of France is Paris.\n";
    assert_eq!(ran.stdout, said);
}
