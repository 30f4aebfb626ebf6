//! Gateways that share their store, in a real PostgreSQL: what one has begun, another one shows,
//! continues and ends.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use fleet_tests::batches::{begun, delete, ended, line, stored};
use fleet_tests::events::Events;
use fleet_tests::mock_node::{Asked, MockNode, Streaming, healthy};
use fleet_tests::postgres::{self, Postgres, SlowLink, encryption, psql};
use fleet_tests::process::{Agent, Fleet, Folder, metric};
use fleet_tests::{chat, eventually, eventually_within};
use hyper::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::background::{KINDS, Script, breaks_of, number, python, streams_run};
use super::batches::{check_output, lines_about, singles};

/// Lines of the batch, and how often a gateway and a node are killed: `make kills` says more.
const LINES: usize = 120;
const STREAMS: usize = 150;
const KILLS: usize = 2;
/// Tokens that a slot generates at most before they are stored.
const UNSTORED_MAX: usize = 200;
/// What another gateway takes over when it is silent for ten seconds.
const TAKEN_OVER: Duration = Duration::from_secs(60);

/// A folder that gateways share, and the file with the URL of their database.
pub(super) struct Shared {
    pub(super) folder: Folder,
}

impl Shared {
    pub(super) fn new(url: &str) -> Self {
        let folder = Folder::new();
        folder.write("database.url", url);
        std::fs::create_dir(folder.path().join("store")).unwrap();
        Self { folder }
    }

    pub(super) fn store(&self) -> String {
        let (folder, keys) = (self.folder.path().display(), encryption(self.folder.path()));
        let database = format!("postgres_url_file: '{folder}/database.url'");
        format!("store: {{dir: '{folder}/store', {database}{keys}}}\n")
    }

    /// A key named `poor` with these limits, beside that of the harness, and the file that has it.
    pub(super) fn key(&self, limits: &str) -> (String, String) {
        let made = fleet_tests::process::run("flotilla-gateway", &["key", "new", "--name", "poor"]);
        let key = made.stdout.lines().nth(1).unwrap().to_string();
        let digest = made.stdout.split("sha256: ").nth(1).unwrap();
        let digest = digest.split_whitespace().next().unwrap().trim_end_matches(['}', ',']);
        let keys = format!("keys: [{{name: poor, sha256: {digest}, {limits}}}]\n");
        (key, self.folder.write("keys.yaml", keys).display().to_string())
    }

    pub(super) async fn gateway(&self) -> Fleet {
        Fleet::start(&self.store()).await
    }
}

/// A server, and two gateways that share it. `None` without a server.
async fn two_gateways() -> Option<(Postgres, Shared, Fleet, Fleet)> {
    let server = Postgres::start(&[]).await?;
    let shared = Shared::new(&server.database("flotilla"));
    let a = shared.gateway().await;
    let b = a.another();
    Some((server, shared, a, b))
}

/// Starts an agent that joins both.
async fn join_both(a: &Fleet, b: &Fleet, name: &str) -> Agent {
    let agent = a.join(name, &["--join", &b.url, "--slots", "2"]).await;
    b.wait_for_slots(name).await;
    agent
}

async fn response(fleet: &Fleet, id: &str) -> Value {
    fleet.client.get(&format!("/v1/responses/{id}")).await.json()
}

fn status(response: &Value) -> &str {
    response["status"].as_str().unwrap_or("none")
}

async fn until_status(fleet: &Fleet, id: &str, expected: &str) -> Value {
    eventually_within(TAKEN_OVER, "a status", async || {
        let response = response(fleet, id).await;
        (status(&response) == expected).then_some(response)
    })
    .await
}

/// Asks for a response in the background.
async fn asked(fleet: &Fleet, input: &str) -> Bytes {
    let request = json!({"model": "flotilla-demo", "input": input, "background": true,
        "temperature": 0});
    let answer = fleet.client.post("/v1/responses", request.to_string()).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.body
}

fn id_of(response: &Bytes) -> String {
    let response: Value = serde_json::from_slice(response).unwrap();
    response["id"].as_str().unwrap_or_else(|| panic!("no id in {response}")).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_gateway_has_begun_another_one_shows_and_ends() {
    let Some((_server, _shared, a, b)) = two_gateways().await else { return };
    // Only a has a node.
    let mut node = MockNode::join(a.client.address(), healthy("n", 2)).await;
    let id = id_of(&asked(&a, "Hi").await);
    let stream = node.asked().await.stream();
    stream.say_marked(&[1], "H").await;
    until_status(&b, &id, "in_progress").await;
    stream.say_delta(2, &json!({"content": "!"}), &json!("stop")).await;
    stream.close(": u 9 2 0\ndata: [DONE]\n\n").await;
    let done = until_status(&b, &id, "completed").await;
    assert_eq!(done["output"][0]["content"][0]["text"], "H!");
    assert_eq!(done, response(&a, &id).await);

    // A file and its batch, canceled where they were not created.
    let file = stored(&a.client, &(line("x", "1") + &line("y", "2"))).await;
    let content = format!("/v1/files/{file}/content");
    assert_eq!(a.client.get(&content).await.body, b.client.get(&content).await.body);
    let batch = begun(&a.client, &line("x", "1")).await;
    let _line = node.asked().await;
    let canceled = b.client.post(&format!("/v1/batches/{batch}/cancel"), "").await;
    assert_eq!(canceled.json()["status"], "cancelling");
    assert_eq!(ended(&b.client, &batch).await["status"], "cancelled");

    // So is a response; one that is deleted there ends as well.
    let id = id_of(&asked(&a, "Hi").await);
    let _ended = node.asked().await;
    let canceled = b.client.post(&format!("/v1/responses/{id}/cancel"), "").await.json();
    assert_eq!(status(&canceled), "cancelled");
    let id = id_of(&asked(&a, "Hi").await);
    let _deleted = node.asked().await;
    assert_eq!(delete(&b.client, &format!("/v1/responses/{id}")).await, 200);
    eventually("nothing to be active", async || {
        (metric(&a.admin, "gateway_background_tasks_active").await == 0.0).then_some(())
    })
    .await;
}

/// The events of a response in the background.
async fn streamed(fleet: &Fleet) -> Events {
    let request =
        json!({"model": "flotilla-demo", "input": "Hi", "background": true, "stream": true});
    let path = "/v1/responses";
    Events::ask(&fleet.client, Method::POST, path, &request.to_string()).await.unwrap()
}

async fn read_on(fleet: &Fleet, id: &str, after: usize) -> Events {
    let path = format!("/v1/responses/{id}?stream=true&starting_after={after}");
    Events::ask(&fleet.client, Method::GET, &path, "").await.unwrap()
}

fn types(events: &[Value]) -> Vec<(&str, &Value)> {
    events.iter().map(|event| (event["type"].as_str().unwrap(), &event["delta"])).collect()
}

/// Says "el", and "lo" as the last token.
async fn says_rest(stream: Streaming) {
    stream.say_marked(&[2], "el").await;
    stream.say_delta(3, &json!({"content": "lo"}), &json!("stop")).await;
    let used = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}});
    stream.close(format!(": u 9 3 0\ndata: {used}\n\ndata: [DONE]\n\n")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_read_on_at_another_gateway_live_and_after_the_first_one_was_killed() {
    let Some((_server, _shared, a, b)) = two_gateways().await else { return };
    let mut of_a = MockNode::join(a.client.address(), healthy("n", 1)).await;
    let mut of_b = MockNode::join(b.client.address(), healthy("m", 1)).await;
    let first = streamed(&a).await;
    let stream = of_a.asked().await.stream();
    stream.say_marked(&[1], "H").await;
    says_rest(stream).await;
    let whole = first.rest().await;
    let id = whole[0]["response"]["id"].as_str().unwrap();
    let afterwards = read_on(&b, id, 2).await.rest().await;
    assert_eq!(afterwards, whole[3..], "the other gateway says the same afterwards");

    let mut made = streamed(&a).await;
    let mut read = vec![made.next().await.unwrap()];
    let id = read[0]["response"]["id"].as_str().unwrap();
    let mut live = read_on(&b, id, 0).await;
    let stream = of_a.asked().await.stream();
    stream.say_marked(&[1], "H").await;
    while read.last().unwrap()["delta"] != "H" {
        read.push(live.next().await.unwrap());
    }
    a.server.signal(Signal::KILL);
    let again = of_b.asked().await;
    assert_eq!(again.resume.choices[0].tokens, [1], "it continues");
    let stream = again.stream();
    stream.say_marked(&[], "H").await;
    says_rest(stream).await;
    read.extend(live.rest().await);
    assert_eq!(types(&read), types(&whole), "no event is missing, or there twice");
    let numbers = read.iter().map(|event| event["sequence_number"].as_u64().unwrap());
    assert!(numbers.eq(0..whole.len() as u64));
    let completed = "gateway_background_tasks_total{outcome=\"completed\"}";
    eventually("the other one to have ended it", async || {
        (metric(&b.admin, completed).await == 1.0).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_goes_on_at_another_gateway_until_it_is_deleted_at_either() {
    let Some((_server, _shared, a, b)) = two_gateways().await else { return };
    let asks = |fleet: &Fleet, previous: Option<&str>| {
        let request =
            json!({"model": "flotilla-demo", "input": "Hi", "previous_response_id": previous});
        let (client, body) = (fleet.client.clone(), request.to_string());
        tokio::spawn(async move { client.post("/v1/responses", body).await })
    };
    let mut of_a = MockNode::join(a.client.address(), healthy("n", 1)).await;
    let mut of_b = MockNode::join(b.client.address(), healthy("m", 1)).await;
    a.wait_for_slots("n").await;
    b.wait_for_slots("m").await;
    let asking = asks(&a, None);
    of_a.asked().await.answer("Hello");
    let first = id_of(&asking.await.unwrap().body);
    let asking = asks(&b, Some(&first));
    let asked = of_b.asked().await;
    assert_eq!(asked.body["messages"][1]["content"], "Hello");
    asked.answer("Well.");
    let second = id_of(&asking.await.unwrap().body);
    until_status(&a, &second, "completed").await;
    // Both have the first one in memory.
    assert_eq!(delete(&b.client, &format!("/v1/responses/{first}")).await, 200);
    eventually("it to be gone everywhere", async || {
        let status = a.client.get(&format!("/v1/responses/{first}")).await.status;
        (status == 404).then_some(())
    })
    .await;
    assert_eq!(asks(&a, Some(&first)).await.unwrap().status, 400);
    assert_eq!(delete(&a.client, &format!("/v1/responses/{second}")).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_stops_leaves_its_work_to_the_other_one_at_once() {
    let Some(server) = Postgres::start(&[]).await else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let mut a = shared.gateway().await;
    let b = a.another();
    let batch = begun(&a.client, &(line("x", "1") + &line("y", "2"))).await;
    let id = id_of(&asked(&a, "Hi").await);
    a.server.signal(Signal::TERM);
    assert_eq!(a.server.ended().await, Some(0));
    let mut node = MockNode::join(b.client.address(), healthy("n", 4)).await;
    for _ in 0..3 {
        answers(node.asked().await).await;
    }
    assert_eq!(ended(&b.client, &batch).await["request_counts"]["completed"], 2);
    until_status(&b, &id, "completed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_that_are_killed_in_turn_lose_nothing_and_do_nothing_twice() {
    let (Some(server), Some(python)) = (Postgres::start(&[]).await, python()) else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let a = shared.gateway().await;
    let mut gateways = [a.another(), a];
    let first = join_both(&gateways[0], &gateways[1], "a").await;
    let mut others = VecDeque::from([join_both(&gateways[0], &gateways[1], "b").await]);
    others.push_back(join_both(&gateways[0], &gateways[1], "c").await);
    let mut undisturbed = Script::start(&python, &gateways[0], KINDS);
    undisturbed.until(KINDS).await;

    let questions = singles();
    let lines = number("FLOTILLA_SHARED_LINES", LINES);
    let streams = number("FLOTILLA_SHARED_STREAMS", STREAMS) / 2;
    let kills = number("FLOTILLA_SHARED_KILLS", KILLS);
    let batch = begun(&gateways[0].client, &lines_about(&questions, lines)).await;
    let mut scripts = [0, 1].map(|at: usize| Script::start_many(&python, &gateways[at], streams));
    let mut generated = 0.0;
    for kill in 1..=kills {
        scripts[kill % 2].until(streams * kill / (3 * kills)).await;
        let gateway = &mut gateways[kill % 2];
        streams_run(gateway).await;
        gateway.server.signal(Signal::KILL);
        gateway.server.ended().await;
        gateway.restart();
        gateway.wait_for_slots("a").await;
        let node = others.pop_front().unwrap();
        generated += node.generated_tokens().await;
        node.kill();
        others.push_back(join_both(&gateways[0], &gateways[1], &format!("n{kill}")).await);
    }
    let mut breaks = 0;
    for script in &mut scripts {
        script.end().await;
        breaks += breaks_of(&script.done, &undisturbed.done);
    }
    let ended: usize = scripts.iter().map(|script| script.done.len()).sum();
    println!("{lines} lines, {ended} streams, {kills} kills of each kind, {breaks} breaks");
    assert!(breaks as usize >= kills, "{breaks}");
    let of_streams = scripts.iter().chain([&undisturbed]).map(output_tokens).sum::<usize>();
    let needed = check_output(&gateways[0], &batch, &questions, lines).await + of_streams;
    for node in others.iter().chain([&first]) {
        generated += node.generated_tokens().await;
    }
    println!("{needed} tokens, {:.2} % generated twice", 100.0 * (generated / needed as f64 - 1.0));
    // What was not stored when a gateway was killed: at most what all slots had generated since.
    let lost_max = kills * 6 * UNSTORED_MAX;
    assert!(generated <= (needed + lost_max) as f64, "{generated} tokens for {needed}");
}

/// The tokens of the streams that have ended.
fn output_tokens(script: &Script) -> usize {
    let tokens = |stream: &Value| stream["usage"][1].as_u64().unwrap() as usize;
    script.done.iter().map(tokens).sum()
}

/// True once a gateway says whether its store works.
pub(super) async fn until_available(fleet: &Fleet, is_available: bool) {
    eventually_within(TAKEN_OVER, "the store to work or fail", async || {
        let available = metric(&fleet.admin, "gateway_store_available").await;
        (available == f64::from(u8::from(is_available))).then_some(())
    })
    .await;
}

/// Answers with one token.
pub(super) async fn answers(asked: Asked) {
    let stream = asked.stream();
    stream.say_delta(1, &json!({"content": "!"}), &json!("stop")).await;
    stream.close(": u 9 1 0\ndata: [DONE]\n\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_database_is_gone_other_requests_are_served_and_nothing_acknowledged_is_lost() {
    let Some(mut server) = Postgres::start(&[]).await else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let a = shared.gateway().await;
    let mut node = MockNode::join(a.client.address(), healthy("n", 4)).await;
    let running = id_of(&asked(&a, "Hi").await);
    let stream = node.asked().await.stream();
    stream.say_marked(&[1], "H").await;
    until_status(&a, &running, "in_progress").await;
    let batch = begun(&a.client, &line("x", "1")).await;
    let of_batch = node.asked().await;

    server.kill();
    until_available(&a, false).await;
    let request = json!({"model": "flotilla-demo", "input": "Hi", "background": true}).to_string();
    let refused = a.client.post("/v1/responses", request).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "store_unavailable"));
    let served = tokio::spawn({
        let client = a.client.clone();
        async move { client.chat(&chat("Hello")).await.status }
    });
    node.asked().await.answer("Hello");
    assert_eq!(served.await.unwrap(), 200);
    // Both end while nothing can be stored.
    stream.say_delta(2, &json!({"content": "!"}), &json!("stop")).await;
    stream.close(": u 9 2 0\ndata: [DONE]\n\n").await;
    answers(of_batch).await;

    server.restart().await;
    until_available(&a, true).await;
    let done = until_status(&a, &running, "completed").await;
    assert_eq!(done["output"][0]["content"][0]["text"], "H!");
    assert_eq!(ended(&a.client, &batch).await["request_counts"]["completed"], 1);
    assert!(node.is_asked().is_none(), "nothing is made again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_stops_answering_fails_requests_in_time_and_is_used_again_afterwards() {
    let Some(server) = Postgres::start(&[]).await else { return };
    let link = SlowLink::start(server.port).await;
    let shared = Shared::new(
        &server
            .database("flotilla")
            .replace(&format!(":{}", server.port), &format!(":{}", link.port)),
    );
    let a = shared.gateway().await;
    let mut node = MockNode::join(a.client.address(), healthy("n", 4)).await;
    // Each message of the database takes a tenth of a second.
    link.delay(Duration::from_millis(100));
    let batch = begun(&a.client, &(line("x", "1") + &line("y", "2"))).await;
    // Each once, although the database is slow. They run side by side.
    let mut texts = Vec::new();
    for _ in 0..2 {
        let line = node.asked().await;
        texts.push(line.body["messages"][0]["content"].to_string());
        answers(line).await;
    }
    texts.sort();
    assert_eq!(texts, ["\"1\"", "\"2\""]);
    assert_eq!(ended(&a.client, &batch).await["request_counts"]["completed"], 2);
    let id = id_of(&asked(&a, "Hi").await);
    answers(node.asked().await).await;
    until_status(&a, &id, "completed").await;

    // It says nothing any more.
    link.delay(Duration::from_secs(3600));
    let begun = std::time::Instant::now();
    let listed = a.client.get("/v1/batches").await;
    assert_eq!((listed.status, listed.error_code().as_str()), (503, "store_unavailable"));
    assert!(begun.elapsed() < Duration::from_secs(30), "requests have a timeout");
    let served = tokio::spawn({
        let client = a.client.clone();
        async move { client.chat(&chat("Hello")).await.status }
    });
    node.asked().await.answer("Hello");
    assert_eq!(served.await.unwrap(), 200);
    link.delay(Duration::ZERO);
    until_available(&a, true).await;
    assert_eq!(a.client.get(&format!("/v1/batches/{batch}")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_server_takes_over_with_everything_that_was_acknowledged() {
    // Committed is what the copy has as well.
    let options = ["-c", "synchronous_standby_names=copy", "-c", "synchronous_commit=local"];
    let Some(mut first) = Postgres::start(&options).await else { return };
    let second = first.copy().await;
    let database = first.database("flotilla");
    psql(&database, "ALTER DATABASE flotilla SET synchronous_commit = 'remote_apply'").unwrap();
    let url = postgres::url(&[first.port, second.port], "flotilla");
    let shared = Shared::new(&url);
    let a = shared.gateway().await;
    let b = a.another();
    let mut node = MockNode::join(a.client.address(), healthy("n", 4)).await;
    let batch = begun(&a.client, &line("x", "1")).await;
    let of_batch = node.asked().await;
    let queued = asked(&b, "Hi").await;

    first.kill();
    second.promote();
    answers(of_batch).await;
    until_available(&a, true).await;
    assert_eq!(ended(&a.client, &batch).await["request_counts"]["completed"], 1);
    // Nobody took the other for dead, although neither was heard of for a while.
    let mut other = MockNode::join(b.client.address(), healthy("m", 4)).await;
    answers(other.asked().await).await;
    until_status(&b, &id_of(&queued), "completed").await;
    assert!(node.is_asked().is_none(), "nothing is made twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_of_a_server_is_verified() {
    let key = rcgen::KeyPair::generate().unwrap();
    let made = rcgen::CertificateParams::new(vec!["localhost".into()]).unwrap();
    let made = made.self_signed(&key).unwrap();
    let Some(mut server) = Postgres::start(&[]).await else { return };
    server.enable_tls(&made.pem(), &key.serialize_pem()).await;
    let url = server.database("flotilla").replace("127.0.0.1", "localhost");
    let url = format!("{url}?sslmode=require");
    let shared = Shared::new(&url);
    let a = shared.gateway().await;
    until_available(&a, false).await;
    drop(a);
    let folder = shared.folder.path().display().to_string();
    shared.folder.write("ca.pem", made.pem());
    let trusting = format!(
        "store: {{dir: '{folder}/store', postgres_url_file: '{folder}/database.url', \
         postgres_ca_file: '{folder}/ca.pem'}}\n"
    );
    let b = Fleet::start(&trusting).await;
    until_available(&b, true).await;
    let id = stored(&b.client, &line("x", "1")).await;
    assert_eq!(b.client.get(&format!("/v1/files/{id}")).await.status, 200);
}
