//! An encrypted store (`store.encryption_key_file`): what is in its files and its database.

use std::path::Path;

use fleet_tests::batches::{begun, ended, line, lines_of};
use fleet_tests::client::Client;
use fleet_tests::mock_node::{Asked, MockNode};
use fleet_tests::postgres::{database_of, is_encrypted, psql};
use fleet_tests::process::{Folder, metric, write_private};
use fleet_tests::{chat, eventually, streamed};
use hyper::Method;
use serde_json::{Value, json};

use super::batches::Kept;
use super::jobs::count_in;

/// What clients send.
const SENT: [&str; 4] =
    ["a secret question", "a-secret-name", "secret-note", "secret-instructions"];
const GOT: &str = "a secret response";
const MESSAGES: &str = "/v1/messages/batches";

async fn start(folder: &Path, keys: Option<&str>) -> Kept {
    let only_decrypts = format!("none\n{}", key("9"));
    let keys = keys.or(is_encrypted().then_some(&*only_decrypts));
    let setting = keys.map(|keys| {
        let file = write_private(folder, "store.keys", keys);
        format!(", encryption_key_file: '{}'", file.display())
    });
    Kept::start(folder, &setting.unwrap_or_default()).await
}

fn key(digit: &str) -> String {
    digit.repeat(64) + "\n"
}

/// All bytes in the files of a store and in its database.
fn raw(folder: &Path) -> String {
    let mut raw = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        raw += &match path.is_dir() {
            true => self::raw(&path),
            false => String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned(),
        };
    }
    raw
}

fn dump(folder: &Path) -> String {
    let Some(url) = database_of(folder) else { return String::new() };
    let tables = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'";
    let tables = psql(&url, tables).unwrap();
    // Bytes as the text that they are.
    let read = |table| psql(&url, &format!("SET bytea_output TO escape; SELECT * FROM {table}"));
    tables.lines().map(|table| read(table).unwrap()).collect()
}

/// Which of these texts a store shows to whoever reads its files or its database.
fn shown<'a>(folder: &Path, texts: &[&'a str]) -> Vec<&'a str> {
    let all = raw(folder) + &dump(folder);
    texts.iter().copied().filter(|text| all.contains(text)).collect()
}

fn is_secret(asked: &Asked) {
    assert!(asked.body.to_string().contains(SENT[0]), "{}", asked.body);
}

async fn answers(node: &mut MockNode, count: usize) {
    for _ in 0..count {
        let asked = node.asked().await;
        is_secret(&asked);
        asked.answer(GOT);
    }
}

async fn posted(client: &Client, path: &str, body: &Value) -> Value {
    let answer = client.post(path, body.to_string()).await;
    assert!([200, 202].contains(&answer.status), "{:?}", answer.body);
    answer.json()
}

fn id(of: &Value) -> &str {
    of["id"].as_str().unwrap()
}

/// Asks for work of each kind, which waits for a node.
struct Work {
    batch: String,
    messages: String,
    job: String,
    response: String,
}

async fn ask(client: &Client) -> Work {
    let [question, name, note, instructions] = SENT;
    let lines = line(name, question) + &line("second", question);
    let job = json!({"url": "/v1/chat/completions", "body": chat(question),
        "metadata": {note: "1"}});
    let response = json!({"model": "flotilla-demo", "input": question, "background": true,
        "stream": false, "instructions": instructions, "metadata": {note: "1"}});
    let params = json!({"model": "flotilla-demo", "max_tokens": 9,
        "messages": [{"role": "user", "content": question}]});
    let messages = json!({"requests": [{"custom_id": name, "params": params}]});
    Work {
        batch: begun(client, &lines).await,
        messages: id(&posted(client, MESSAGES, &messages).await).into(),
        job: id(&posted(client, "/v1/jobs", &job).await).into(),
        response: id(&posted(client, "/v1/responses", &response).await).into(),
    }
}

async fn becomes(client: &Client, path: &str, field: &str, value: &str) -> Value {
    eventually(value, async || {
        let found = client.get(path).await.json();
        (found[field] == value).then_some(found)
    })
    .await
}

/// Checks that all work has ended well, and that what it has made is read.
async fn check(client: &Client, work: &Work) {
    let batch = ended(client, &work.batch).await;
    assert_eq!(batch["status"], "completed", "{batch}");
    let output = lines_of(client, &batch["output_file_id"]).await;
    assert_eq!(output.len(), 2);
    assert!(output.iter().all(|line| line.to_string().contains(GOT)), "{output:?}");
    let path = format!("{MESSAGES}/{}", work.messages);
    becomes(client, &path, "processing_status", "ended").await;
    let results = client.get(&format!("{path}/results")).await;
    assert!(String::from_utf8_lossy(&results.body).contains(GOT), "{:?}", results.body);
    let job = becomes(client, &format!("/v1/jobs/{}", work.job), "status", "completed").await;
    assert!(job.to_string().contains(GOT) && job["metadata"][SENT[2]] == "1", "{job}");
    let path = format!("/v1/responses/{}", work.response);
    let response = becomes(client, &path, "status", "completed").await;
    assert!(response.to_string().contains(GOT), "{response}");
}

/// A stream that can be read on, and its events afterwards.
async fn stream(kept: &Kept, node: &mut MockNode) {
    let client = kept.ada.with_header("x-flotilla-resumable", "true");
    let body = streamed(chat(SENT[0])).to_string();
    let asking = tokio::spawn(async move { client.post("/v1/chat/completions", body).await });
    let asked = node.asked().await;
    is_secret(&asked);
    let stream = asked.stream();
    stream.say_marked(&[1], GOT).await;
    stream.say_delta(2, &json!({"content": "."}), &json!("stop")).await;
    stream.close(": u 9 2 0\ndata: [DONE]\n\n").await;
    let answer = asking.await.unwrap();
    let id = answer.header("x-flotilla-stream").unwrap();
    let again = kept.ada.get(&format!("/v1/streams/{id}")).await;
    assert!(String::from_utf8_lossy(&again.body).contains(GOT), "{:?}", again.body);
}

/// A response that its client gets at once, and that is kept for the next one.
async fn turn(kept: &Kept, node: &mut MockNode) -> String {
    let body = json!({"model": "flotilla-demo", "input": SENT[0]});
    let client = kept.ada.clone();
    let asking = tokio::spawn(async move { posted(&client, "/v1/responses", &body).await });
    answers(node, 1).await;
    id(&asking.await.unwrap()).into()
}

#[tokio::test]
async fn an_encrypted_store_shows_nothing_of_what_clients_have_sent_and_got() {
    for (keys, is_shown) in [(None, true), (Some(key("1")), false)] {
        let folder = Folder::new();
        let kept = start(folder.path(), keys.as_deref()).await;
        let work = ask(&kept.ada).await;
        let waiting = shown(folder.path(), &SENT);
        assert_eq!(waiting, if is_shown { SENT.to_vec() } else { Vec::new() }, "while it waits");
        let mut node = kept.gateway.node("a", 8).await;
        answers(&mut node, 5).await;
        check(&kept.ada, &work).await;
        stream(&kept, &mut node).await;
        let turn = turn(&kept, &mut node).await;
        eventually("the turn to be stored", async || {
            (count_in(folder.path(), "SELECT count(*) FROM turns") > 0).then_some(())
        })
        .await;
        let all = [&SENT[..3], &[GOT]].concat();
        let expected = if is_shown { all.clone() } else { Vec::new() };
        assert_eq!(shown(folder.path(), &all), expected, "while it runs");
        kept.stop().await;
        assert_eq!(shown(folder.path(), &all), expected, "afterwards");

        let kept = start(folder.path(), keys.as_deref()).await;
        check(&kept.ada, &work).await;
        let mut node = kept.gateway.node("a", 8).await;
        let body = json!({"model": "flotilla-demo", "input": "And?", "previous_response_id": turn});
        let client = kept.ada.clone();
        let asking = tokio::spawn(async move { posted(&client, "/v1/responses", &body).await });
        let asked = node.asked().await;
        is_secret(&asked);
        assert!(asked.body.to_string().contains(GOT), "the conversation goes on: {}", asked.body);
        asked.answer("Well.");
        asking.await.unwrap();
        kept.stop().await;
    }
}

#[tokio::test]
async fn keys_are_rotated_and_without_theirs_records_are_refused_and_work_waits() {
    let folder = Folder::new();
    let kept = start(folder.path(), Some(&key("1"))).await;
    let work = ask(&kept.ada).await;
    kept.stop().await;

    // Without the key, nothing is asked, failed or deleted.
    for keys in [None, Some(key("2"))] {
        let kept = start(folder.path(), keys.as_deref()).await;
        let mut node = kept.gateway.node("a", 8).await;
        let files = kept.ada.get("/v1/files").await;
        assert_eq!((files.status, &*files.error_code()), (503, "store_unavailable"));
        for path in [
            format!("/v1/batches/{}", work.batch),
            format!("{MESSAGES}/{}", work.messages),
            format!("/v1/jobs/{}", work.job),
            format!("/v1/responses/{}", work.response),
            "/v1/jobs".into(),
        ] {
            let refused = kept.ada.get(&path).await;
            assert_eq!(refused.status, 503, "{path}: {:?}", refused.body);
        }
        // It does what is its own.
        let client = kept.bob.clone();
        let own = json!({"url": "/v1/chat/completions", "body": chat("mine")});
        let own = posted(&client, "/v1/jobs", &own).await;
        let asked = node.asked().await;
        assert!(asked.body.to_string().contains("mine"), "{}", asked.body);
        asked.answer("Well.");
        let path = format!("/v1/jobs/{}", id(&own));
        becomes(&client, &path, "status", "completed").await;
        assert!(node.is_asked().is_none(), "nothing of what it cannot read");
        assert_eq!(client.try_send(Method::DELETE, &path, "".into()).await.unwrap().status, 200);
        let listed = kept.gateway.admin.get("/admin/v1/tasks").await.json();
        assert_eq!(listed["tasks"].as_array().unwrap().len(), 2, "operators see it: {listed}");
        kept.stop().await;
    }

    let kept = start(folder.path(), Some(&(key("2") + &key("1")))).await;
    let mut node = kept.gateway.node("a", 8).await;
    answers(&mut node, 5).await;
    check(&kept.ada, &work).await;
    assert!(shown(folder.path(), &[SENT[0], GOT]).is_empty());
    assert_eq!(metric(&kept.gateway.admin, "gateway_store_available").await, 1.0);
    kept.stop().await;
}

#[tokio::test]
async fn what_was_stored_before_stays_readable_and_what_is_new_is_encrypted() {
    let folder = Folder::new();
    let kept = start(folder.path(), None).await;
    let work = ask(&kept.ada).await;
    kept.stop().await;
    let kept = start(folder.path(), Some(&key("1"))).await;
    let mut node = kept.gateway.node("a", 8).await;
    answers(&mut node, 5).await;
    check(&kept.ada, &work).await;
    assert_eq!(shown(folder.path(), &[GOT]), Vec::<&str>::new(), "its results are new");
    kept.stop().await;
}
