//! Encrypted stores (`store.encryption_key_file`) of gateways that are killed, that share a
//! database, and that keep files in a bucket.

use std::path::Path;
use std::time::Duration;

use fleet_tests::batches::{begun, ended, line, lines_of, stored};
use fleet_tests::mock_node::{Asked, MockNode, healthy};
use fleet_tests::postgres::{Postgres, free_port, psql};
use fleet_tests::process::{Fleet, Folder};
use fleet_tests::{chat, eventually, eventually_within};
use inference_protocol::resume::Usage;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::bucket::{self, Storage};
use super::shared_store::Shared;

const QUESTION: &str = "a secret question";
/// What another gateway takes over when it is silent for ten seconds.
const TAKEN_OVER: Duration = Duration::from_secs(60);

fn key_file(folder: &Folder, name: &str, digits: &str) -> String {
    let keys: String = digits.chars().map(|digit| digit.to_string().repeat(64) + "\n").collect();
    let file = folder.write_private(name, keys);
    format!(", encryption_key_file: '{}'", file.display())
}

/// True if a file below a folder has this text.
fn shows(folder: &Path, text: &str) -> bool {
    std::fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        if path.is_dir() {
            return shows(&path, text);
        }
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

/// The id of a new job.
async fn job(fleet: &Fleet) -> String {
    let job = json!({"url": "/v1/chat/completions", "body": chat(QUESTION)});
    let answer = fleet.client.post("/v1/jobs", job.to_string()).await;
    assert_eq!(answer.status, 202, "{:?}", answer.body);
    answer.json()["id"].as_str().unwrap().into()
}

async fn completed(fleet: &Fleet, id: &str) -> Value {
    eventually_within(TAKEN_OVER, "a job to be completed", async || {
        let job = fleet.client.get(&format!("/v1/jobs/{id}")).await.json();
        (job["status"] == "completed").then_some(job)
    })
    .await
}

/// Ends the response of a job with this text.
async fn ends(asked: Asked, text: &str) {
    assert!(asked.body.to_string().contains(QUESTION), "{}", asked.body);
    let message = json!({"role": "assistant", "content": text});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 20});
    let whole = json!({"id": "chatcmpl-1", "choices": [choice], "usage": usage});
    let stream = asked.stream();
    stream.note(&[99]).await;
    let usage = Usage { prompt: 9, completion: 20, cached: 0 };
    stream.close_marked(usage, &whole.to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encrypted_job_continues_from_its_tokens_after_its_gateway_was_killed() {
    let folder = Folder::new();
    let keys = key_file(&folder, "store.keys", "1");
    let place = folder.path().join("store");
    let store = format!("store: {{dir: '{}'{keys}}}\n", place.display());
    let mut fleet = Fleet::start(&store).await;
    let mut node = MockNode::join(fleet.client.address(), healthy("n", 1)).await;
    let id = job(&fleet).await;
    let stream = node.asked().await.stream();
    let mut token = 0;
    eventually("progress to be stored", async || {
        token += 1;
        stream.note(&[token]).await;
        let database = rusqlite::Connection::open(place.join("store.sqlite")).unwrap();
        let sql = "SELECT count(*) FROM tasks WHERE progress IS NOT NULL";
        let count: u64 = database.query_row(sql, [], |row| row.get(0)).ok()?;
        (count > 0).then_some(())
    })
    .await;
    fleet.server.signal(Signal::KILL);
    fleet.server.ended().await;
    assert!(!shows(&place, QUESTION));
    fleet.restart();
    let mut node = MockNode::join(fleet.client.address(), healthy("m", 1)).await;
    let asked = node.asked().await;
    let tokens = asked.resume.choices[0].tokens.clone();
    assert!(!tokens.is_empty(), "it continues");
    assert_eq!(tokens, (1..=tokens.len() as u32).collect::<Vec<_>>());
    ends(asked, "a secret response").await;
    let done = completed(&fleet, &id).await;
    assert!(done.to_string().contains("a secret response"), "{done}");
    assert!(!shows(&place, "a secret response"));
}

#[tokio::test(flavor = "multi_thread")]
async fn work_waits_for_a_gateway_that_has_its_key() {
    let Some(server) = Postgres::start(&[]).await else { return };
    let url = server.database("flotilla");
    let shared = Shared::new(&url);
    let folder = shared.folder.path().display().to_string();
    let gateway = async |keys: &str| {
        let store = format!(
            "store: {{dir: '{folder}/store', postgres_url_file: '{folder}/database.url'{keys}}}\n"
        );
        Fleet::start(&store).await
    };
    let with = key_file(&shared.folder, "with.keys", "1");
    let first = gateway(&with).await;
    let without = gateway(&key_file(&shared.folder, "without.keys", "2")).await;
    let mut node_without = MockNode::join(without.client.address(), healthy("n", 1)).await;
    let id = job(&first).await;
    let batch = begun(&first.client, &line("x", QUESTION)).await;
    let refused = without.client.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!((refused.status, &*refused.error_code()), (503, "store_unavailable"));
    let why = without.server.wait_for_line("its key is not in store.encryption_key_file");
    assert!(why.contains("tasks.document test job_") && why.contains("\"key\""), "{why}");
    first.server.signal(Signal::KILL);
    // It finds the work, and leaves it.
    without.server.wait_for_line("left to other gateways");
    let sql = "SELECT count(*) FROM tasks WHERE owner IS NULL AND is_active = 1";
    eventually_within(TAKEN_OVER, "the job to have no owner", async || {
        (psql(&url, sql).as_deref() == Ok("1")).then_some(())
    })
    .await;
    assert!(node_without.is_asked().is_none());
    // One that has both keys.
    let both = gateway(&key_file(&shared.folder, "both.keys", "21")).await;
    let mut node = MockNode::join(both.client.address(), healthy("m", 2)).await;
    for _ in 0..2 {
        ends(node.asked().await, "a secret response").await;
    }
    completed(&both, &id).await;
    assert_eq!(ended(&both.client, &batch).await["status"], "completed");
    assert!(node_without.is_asked().is_none());
    let dump = psql(&url, "SET bytea_output TO escape; SELECT * FROM tasks").unwrap();
    assert!(dump.contains(&id) && !dump.contains("secret"), "{dump}");
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_in_a_bucket_are_encrypted_there_and_in_copies() {
    let Some(server) = Postgres::start(&[]).await else { return };
    let Some(storage) = Storage::start(free_port()).await else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let folder = shared.folder.path().display().to_string();
    let keys = key_file(&shared.folder, "store.keys", "1");
    let more = format!(", postgres_url_file: '{folder}/database.url'{keys}");
    let a = Fleet::start(&bucket::store(&shared, &storage, "a", &more)).await;
    let b = Fleet::start(&bucket::store(&shared, &storage, "b", &more)).await;
    // In one request, and in parts.
    for content in [QUESTION.to_string(), QUESTION.repeat(1_000_000)] {
        let file = stored(&a.client, &content).await;
        for gateway in [&b, &a] {
            let read = gateway.client.get(&format!("/v1/files/{file}/content")).await;
            assert!(read.status == 200 && read.body == content.as_bytes(), "{}", read.status);
        }
        let object = storage.object(&format!("a/b/{file}")).await;
        assert!(object.len() > content.len());
        assert!(!object.windows(QUESTION.len()).any(|window| window == QUESTION.as_bytes()));
        let copy = shared.folder.path().join("b/files").join(&file);
        assert!(std::fs::read(copy).unwrap() == object, "the copy is the object");
    }
    let mut node = MockNode::join(a.client.address(), healthy("n", 4)).await;
    let id = begun(&a.client, &line("x", QUESTION)).await;
    node.asked().await.answer("a secret response");
    let done = ended(&b.client, &id).await;
    let output = lines_of(&b.client, &done["output_file_id"]).await;
    assert!(output[0].to_string().contains("a secret response"), "{output:?}");
    for name in ["a", "b"] {
        assert!(!shows(&shared.folder.path().join(name), "secret"), "{name}");
    }
}
