//! Jobs: `/v1/jobs`, requests of any API that are made in the background.

use std::path::Path;

use fleet_tests::batches::{begun, ended, line, lines_of};
use fleet_tests::client::{Answer, Client};
use fleet_tests::eventually;
use fleet_tests::mock_node::{Asked, Streaming};
use fleet_tests::postgres::{database_of, psql};
use fleet_tests::process::{Folder, metric};
use hyper::Method;
use inference_protocol::resume::Usage;
use serde_json::{Value, json};

use super::Gateway;
use super::batches::{Kept, said};

const PATH: &str = "/v1/jobs";
const CHAT: &str = "/v1/chat/completions";

fn chat(text: &str) -> Value {
    json!({"model": "flotilla-demo", "messages": [{"role": "user", "content": text}]})
}

async fn asks(client: &Client, url: &str, body: &Value) -> Answer {
    let asked = json!({"url": url, "body": body, "metadata": {"night": "1"}});
    client.post(PATH, asked.to_string()).await
}

/// The id of a job that is accepted.
async fn accepted(client: &Client, url: &str, body: &Value) -> String {
    let answer = asks(client, url, body).await;
    assert_eq!(answer.status, 202, "{:?}", answer.body);
    answer.json()["id"].as_str().unwrap().into()
}

async fn known(client: &Client, id: &str) -> Value {
    client.get(&format!("{PATH}/{id}")).await.json()
}

async fn becomes(client: &Client, id: &str, status: &str) -> Value {
    eventually(status, async || {
        let job = known(client, id).await;
        (job["status"] == status).then_some(job)
    })
    .await
}

async fn delete(client: &Client, id: &str) -> u16 {
    let path = format!("{PATH}/{id}");
    client.try_send(Method::DELETE, &path, "".into()).await.unwrap().status
}

#[tokio::test]
async fn a_job_is_accepted_at_once_and_its_response_is_there_later() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let first = asks(&kept.ada, CHAT, &chat("one")).await;
    assert_eq!(first.status, 202);
    let first = first.json();
    let id = first["id"].as_str().unwrap();
    assert_eq!((&first["object"], &first["status"]), (&json!("job"), &json!("queued")));
    assert_eq!((&first["task_id"], &first["url"]), (&first["id"], &json!(CHAT)));
    assert_eq!(first["status_url"], format!("{PATH}/{id}"));
    assert_eq!((&first["queue_position"], &first["response"]), (&json!(0), &Value::Null));
    let message = json!({"role": "user", "content": "two"});
    let body = json!({"model": "flotilla-demo", "max_tokens": 9, "messages": [message]});
    let second = asks(&kept.ada, "/v1/messages", &body).await.json();
    assert_eq!(second["queue_position"], 1);
    assert_eq!(kept.bob.get(&format!("{PATH}/{id}")).await.status, 404);

    let mut node = kept.gateway.node("a", 1).await;
    for _ in 0..2 {
        let asked = node.asked().await;
        assert_eq!(asked.tenant, "ada");
        let text = asked.body["messages"][0]["content"].as_str().unwrap().to_string();
        asked.answer(&format!("{text}!"));
    }
    let done = becomes(&kept.ada, id, "completed").await;
    assert_eq!(
        (&done["metadata"]["night"], &done["response"]["status_code"]),
        (&json!("1"), &json!(200))
    );
    assert_eq!(done["response"]["body"]["choices"][0]["message"]["content"], "one!");
    let other = becomes(&kept.ada, second["id"].as_str().unwrap(), "completed").await;
    assert_eq!(other["response"]["body"]["content"][0]["text"], "two!");
    let listed = kept.ada.get(&format!("{PATH}?limit=1")).await.json();
    assert_eq!((&listed["data"][0]["id"], &listed["has_more"]), (&second["id"], &json!(true)));
    let rest =
        kept.ada.get(&format!("{PATH}?after={}", second["id"].as_str().unwrap())).await.json();
    assert_eq!((&rest["data"][0]["id"], &rest["has_more"]), (&first["id"], &json!(false)));
    assert!(kept.bob.get(PATH).await.json()["data"].as_array().unwrap().is_empty());
    let metrics = kept.gateway.admin.get("/metrics").await.body;
    let refused = "gateway_refusals_total{";
    let no_node = String::from_utf8_lossy(&metrics)
        .lines()
        .any(|line| line.starts_with(refused) && line.contains("no_node") && !line.ends_with(" 0"));
    assert!(!no_node, "while there was no node, they waited");
    assert_eq!((delete(&kept.bob, id).await, delete(&kept.ada, id).await), (404, 200));
    assert_eq!(kept.ada.get(&format!("{PATH}/{id}")).await.status, 404);
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn a_job_outlives_its_gateway() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let id = accepted(&kept.ada, CHAT, &chat("one")).await;
    let _cut = node.asked().await;
    assert_eq!(becomes(&kept.ada, &id, "in_progress").await["response"], Value::Null);
    kept.stop().await;
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    node.asked().await.answer("done");
    let done = becomes(&kept.ada, &id, "completed").await;
    assert_eq!(done["response"]["body"]["choices"][0]["message"]["content"], "done");
    kept.stop().await;
    let kept = Kept::start(folder.path(), "").await;
    assert_eq!(known(&kept.ada, &id).await, done);
}

/// The number that a query of the store in a folder finds.
pub(super) fn count_in(folder: &Path, sql: &str) -> u64 {
    if let Some(url) = database_of(folder) {
        return psql(&url, sql).unwrap().parse().unwrap();
    }
    let database = rusqlite::Connection::open(folder.join("store.sqlite")).unwrap();
    database.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Makes tokens until how far that is has been stored.
async fn makes_until_stored(asked: Asked, folder: &Path, sql: &str) -> Streaming {
    let stream = asked.stream();
    let mut token = 0;
    eventually("progress to be stored", async || {
        token += 1;
        stream.note(&[token]).await;
        (count_in(folder, sql) > 0).then_some(())
    })
    .await;
    stream
}

/// Checks that tokens of [`makes_until_stored`] are known, makes the rest, and reports so many
/// tokens of the whole response.
async fn continues(asked: Asked, text: &str) -> u64 {
    let tokens = asked.resume.choices[0].tokens.clone();
    assert_eq!(tokens, (1..=tokens.len() as u32).collect::<Vec<_>>());
    let stream = asked.stream();
    stream.note(&[99]).await;
    let message = json!({"role": "assistant", "content": text});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    let completion = tokens.len() as u64 + 1;
    let usage = Usage { prompt: 9, completion, cached: 0 };
    let told = json!({"prompt_tokens": 9, "completion_tokens": completion});
    let whole = json!({"id": "chatcmpl-1", "choices": [choice], "usage": told});
    stream.close_marked(usage, &whole.to_string()).await;
    completion
}

#[tokio::test]
async fn a_job_continues_from_its_last_tokens_and_its_usage_is_counted_once() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let id = accepted(&kept.ada, CHAT, &chat("one")).await;
    let sql = "SELECT count(*) FROM tasks WHERE progress IS NOT NULL";
    let asked = node.asked().await;
    let first = asked.resume.clone();
    let stream = makes_until_stored(asked, folder.path(), sql).await;
    kept.stop().await;
    stream.is_given_up().await;

    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("b", 1).await;
    let asked = node.asked().await;
    let then = &asked.resume;
    assert_eq!((&then.id, then.created, then.seed), (&first.id, first.created, first.seed));
    let completion = continues(asked, "done").await;
    let done = becomes(&kept.ada, &id, "completed").await;
    assert_eq!(done["response"]["body"]["choices"][0]["message"]["content"], "done");
    let metrics = kept.gateway.admin.get("/metrics").await.body;
    let text = String::from_utf8(metrics.to_vec()).unwrap();
    let counted =
        |line: &&str| line.starts_with("gateway_tokens_total{") && line.contains("completion");
    let counted: Vec<_> = text.lines().filter(counted).collect();
    let all = format!(" {completion}");
    assert!(matches!(counted[..], [one] if one.ends_with(&all)), "{counted:?}, not{all}");
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn a_line_continues_from_its_last_tokens() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 2).await;
    let id = begun(&kept.ada, &(line("a", "1") + &line("b", "2"))).await;
    let (first, second) = (node.asked().await, node.asked().await);
    let seed = first.resume.seed;
    let sql = "SELECT count(*) FROM unfinished_lines";
    let stream = makes_until_stored(first, folder.path(), sql).await;
    kept.stop().await;
    stream.is_given_up().await;
    drop(second);

    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("b", 2).await;
    for _ in 0..2 {
        let asked = node.asked().await;
        match asked.resume.seed == seed {
            true => {
                continues(asked, "continued").await;
            }
            false => {
                assert!(asked.resume.choices.is_empty(), "it had no tokens");
                asked.answer("begun");
            }
        }
    }
    let ended = ended(&kept.ada, &id).await;
    let output = lines_of(&kept.ada, &ended["output_file_id"]).await;
    let mut texts: Vec<_> = output.iter().map(|line| said(line).1).collect();
    texts.sort_unstable();
    assert_eq!(texts, ["begun", "continued"]);
    assert_eq!(count_in(folder.path(), sql), 0, "nothing is left of it");
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn lines_take_all_slots_and_give_them_to_more_urgent_requests() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 2).await;
    let ask = |text: &str| {
        let (asking, request) = (kept.ada.clone(), chat(text));
        tokio::spawn(async move { asking.chat(&request).await })
    };
    // Somebody uses the gateway.
    let first = ask("here");
    node.asked().await.answer("yes");
    assert_eq!(first.await.unwrap().status, 200);
    let id = begun(&kept.ada, &(line("a", "1") + &line("b", "2"))).await;
    let older = node.asked().await;
    let newer = node.asked().await;
    let seed = newer.resume.seed;
    let sql = "SELECT count(*) FROM unfinished_lines";
    let newer = makes_until_stored(newer, folder.path(), sql).await;
    let urgent = ask("urgent");
    newer.is_given_up().await;
    let asked = node.asked().await;
    assert_eq!(asked.body["messages"][0]["content"], "urgent");
    assert_eq!(metric(&kept.gateway.admin, "gateway_preemptions_total").await, 1.0);
    assert!(node.is_asked().is_none(), "the line waits");
    asked.answer("served");
    assert_eq!(urgent.await.unwrap().content(), "served");
    // It goes on where it was.
    let again = node.asked().await;
    assert_eq!(again.resume.seed, seed);
    continues(again, "continued").await;
    older.answer("undisturbed");
    let ended = ended(&kept.ada, &id).await;
    assert_eq!(ended["request_counts"], json!({"total": 2, "completed": 2, "failed": 0}));
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn a_job_can_be_canceled_until_it_has_ended() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let cancel = async |id: &str| kept.ada.post(&format!("{PATH}/{id}/cancel"), "").await;
    let waiting = accepted(&kept.ada, CHAT, &chat("one")).await;
    assert_eq!(cancel(&waiting).await.json()["status"], "cancelled");
    assert_eq!(cancel(&waiting).await.json()["status"], "cancelled", "twice is once");
    let mut node = kept.gateway.node("a", 1).await;
    let id = accepted(&kept.ada, CHAT, &chat("two")).await;
    let stream = node.asked().await.stream();
    assert_eq!(cancel(&id).await.json()["status"], "cancelled");
    stream.is_given_up().await;
    let done = accepted(&kept.ada, CHAT, &chat("three")).await;
    node.asked().await.answer("3");
    becomes(&kept.ada, &done, "completed").await;
    assert_eq!(cancel(&done).await.status, 409);
    assert_eq!(cancel("job_0").await.status, 404);
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn a_job_that_is_wrong_is_refused_and_one_that_fails_says_why() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), ", background_per_tenant_max: 2").await;
    let mut streamed = chat("x");
    streamed["stream"] = true.into();
    let background = json!({"model": "m", "input": "x", "background": true});
    for (url, body, param) in [
        ("/v1/nothing", chat("x"), "url"),
        (PATH, chat("x"), "url"),
        (CHAT, streamed, "body.stream"),
        ("/v1/responses", background, "body.background"),
        ("/v1/responses", json!({"model": "m", "input": 7}), "input"),
    ] {
        let refused = asks(&kept.ada, url, &body).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
    }
    for body in ["", "{}", "[]", r#"{"url": "/v1/chat/completions"}"#] {
        assert_eq!(kept.ada.post(PATH, body).await.status, 400, "{body}");
    }
    let long = json!({"url": CHAT, "body": {}, "metadata": {"k": "v".repeat(600)}});
    assert_eq!(kept.ada.post(PATH, long.to_string()).await.status, 400);

    let mut node = kept.gateway.node("a", 1).await;
    let id = accepted(&kept.ada, CHAT, &chat("one")).await;
    accepted(&kept.ada, CHAT, &chat("two")).await;
    let full = asks(&kept.ada, CHAT, &chat("three")).await;
    assert_eq!((full.status, full.error_code().as_str()), (429, "too_many_tasks"));
    for _ in 0..2 {
        let error = json!({"error": {"message": "too long", "type": "invalid_request_error",
            "param": null, "code": "context_length_exceeded"}});
        node.asked().await.reply(400, "application/json", error.to_string());
    }
    let failed = becomes(&kept.ada, &id, "failed").await;
    assert_eq!(failed["response"]["status_code"], 400);
    assert_eq!(failed["response"]["body"]["error"]["message"], "too long");
    eventually("two to be counted", async || {
        let name = "gateway_background_tasks_total{outcome=\"failed\"}";
        (metric(&kept.gateway.admin, name).await == 2.0).then_some(())
    })
    .await;

    let plain = Gateway::start("").await;
    let refused = asks(&plain.client, CHAT, &chat("x")).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (403, "store_disabled"));
}
