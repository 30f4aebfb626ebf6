//! Anthropic's Message Batches: `/v1/messages/batches`.

use std::path::Path;
use std::time::Duration;

use fleet_tests::batches::{begun, delete, ended, line, upload};
use fleet_tests::client::{Answer, Client};
use fleet_tests::mock_node::MockNode;
use fleet_tests::process::{Folder, metric};
use fleet_tests::{eventually, eventually_within};
use hyper::Method;
use serde_json::{Value, json};

use super::batches::{Kept, expire_all};

const PATH: &str = "/v1/messages/batches";

fn request(custom_id: &str, text: &str) -> Value {
    json!({"custom_id": custom_id, "params": {"model": "flotilla-demo", "max_tokens": 9,
        "messages": [{"role": "user", "content": text}]}})
}

/// So many requests, named by their numbers.
fn requests(count: usize) -> Vec<Value> {
    (0..count).map(|i| request(&format!("id-{i}"), &format!("text {i}"))).collect()
}

async fn create(client: &Client, requests: &[Value]) -> Answer {
    client.post(PATH, json!({"requests": requests}).to_string()).await
}

async fn created(client: &Client, requests: &[Value]) -> String {
    let answer = create(client, requests).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["id"].as_str().unwrap().into()
}

async fn batch(client: &Client, id: &str) -> Value {
    client.get(&format!("{PATH}/{id}")).await.json()
}

/// The batch, once it has ended.
async fn over(client: &Client, id: &str) -> Value {
    eventually_within(Duration::from_secs(120), "a message batch to end", async || {
        let batch = batch(client, id).await;
        (batch["processing_status"] == "ended").then_some(batch)
    })
    .await
}

/// The results of a batch: its custom ids, and what became of them.
async fn results(client: &Client, id: &str) -> Vec<(String, Value)> {
    let answer = client.get(&format!("{PATH}/{id}/results")).await;
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/x-jsonl")));
    let text = std::str::from_utf8(&answer.body).unwrap();
    let read = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        (line["custom_id"].as_str().unwrap().to_string(), line["result"].take())
    };
    text.lines().map(read).collect()
}

/// Custom ids and the kinds of their results.
fn kinds(results: &[(String, Value)]) -> Vec<(&str, &str)> {
    results.iter().map(|(id, result)| (id.as_str(), result["type"].as_str().unwrap())).collect()
}

fn counts([processing, succeeded, errored, canceled, expired]: [u64; 5]) -> Value {
    json!({"processing": processing, "succeeded": succeeded, "errored": errored,
        "canceled": canceled, "expired": expired})
}

/// Type and message of an error, which has Anthropic's format.
fn error(answer: &Answer) -> (u16, String, String) {
    let error = answer.json();
    assert_eq!(error["type"], "error", "{error}");
    assert_eq!(error["request_id"].as_str(), answer.header("x-request-id"));
    let text = |field: &str| error["error"][field].as_str().unwrap().to_string();
    (answer.status, text("type"), text("message"))
}

/// Answers the next request with its own text.
async fn echo(node: &mut MockNode) {
    let asked = node.asked().await;
    let text = asked.body["messages"][0]["content"].as_str().unwrap().to_string();
    asked.answer(&text);
}

#[tokio::test]
async fn each_request_of_a_message_batch_is_in_its_results_once_and_in_order() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 2).await;
    let mut asked = requests(10);
    asked[4]["params"]["max_tokens"] = json!("many");
    let answer = create(&kept.ada, &asked).await;
    let shown = answer.json();
    let id = shown["id"].as_str().unwrap().to_string();
    assert!(id.starts_with("msgbatch_"), "{shown}");
    assert_eq!(
        (&shown["type"], &shown["processing_status"]),
        (&json!("message_batch"), &json!("in_progress"))
    );
    assert_eq!(shown["request_counts"], counts([10, 0, 0, 0, 0]));
    for field in ["ended_at", "archived_at", "cancel_initiated_at", "results_url"] {
        assert_eq!(shown.get(field), Some(&Value::Null), "{field}");
    }
    let early = kept.ada.get(&format!("{PATH}/{id}/results")).await;
    assert_eq!(error(&early).0, 409);
    assert_eq!(delete(&kept.ada, &format!("{PATH}/{id}")).await, 409, "it has not ended");
    for _ in 0..9 {
        echo(&mut node).await;
    }
    let over = over(&kept.ada, &id).await;
    assert_eq!(over["request_counts"], counts([0, 9, 1, 0, 0]), "{over}");
    let url = format!("http://{}{PATH}/{id}/results", kept.gateway.address);
    assert_eq!(over["results_url"], url);
    assert!(over["ended_at"].as_str().unwrap().ends_with('Z'), "{over}");
    let results = results(&kept.ada, &id).await;
    assert_eq!(results.len(), 10);
    for (i, (id, result)) in results.iter().enumerate() {
        assert_eq!(*id, format!("id-{i}"));
        if i == 4 {
            assert_eq!(
                (&result["type"], &result["error"]["type"]),
                (&json!("errored"), &json!("error"))
            );
            assert_eq!(result["error"]["error"]["type"], "invalid_request_error", "{result}");
            continue;
        }
        let message = &result["message"];
        assert_eq!((&result["type"], &message["type"]), (&json!("succeeded"), &json!("message")));
        assert_eq!(message["content"][0]["text"], format!("text {i}"));
    }
    let counted = metric(&kept.gateway.admin, "gateway_batch_lines_total{outcome=\"completed\"}");
    assert_eq!(counted.await, 9.0);
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn requests_that_a_canceled_message_batch_has_not_run_are_in_its_results() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let id = created(&kept.ada, &requests(600)).await;
    echo(&mut node).await;
    let _running = node.asked().await;
    eventually("a result to be stored", async || {
        (batch(&kept.ada, &id).await["request_counts"]["succeeded"] == 1).then_some(())
    })
    .await;
    let cancel = format!("{PATH}/{id}/cancel");
    assert_eq!(error(&kept.bob.post(&cancel, "").await).0, 404);
    let canceling = kept.ada.post(&cancel, "").await;
    assert_eq!(
        (canceling.status, &canceling.json()["processing_status"]),
        (200, &json!("canceling"))
    );
    let over = over(&kept.ada, &id).await;
    assert!(over["cancel_initiated_at"].is_string(), "{over}");
    assert_eq!(over["request_counts"], counts([0, 1, 0, 599, 0]), "{over}");
    let results = results(&kept.ada, &id).await;
    let mut ids: Vec<_> = results.iter().map(|(id, _)| id.clone()).collect();
    ids.dedup();
    assert_eq!(ids, (0..600).map(|i| format!("id-{i}")).collect::<Vec<_>>());
    let canceled = kinds(&results).iter().filter(|(_, kind)| *kind == "canceled").count();
    assert_eq!(canceled, 599);
    assert_eq!(error(&kept.ada.post(&cancel, "").await).0, 409, "it has ended");
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn requests_that_were_not_run_in_time_have_expired() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let id = created(&kept.ada, &requests(3)).await;
    kept.stop().await;
    expire_all(folder.path());
    let kept = Kept::start(folder.path(), "").await;
    let over = over(&kept.ada, &id).await;
    assert_eq!(over["request_counts"], counts([0, 0, 0, 0, 3]), "{over}");
    let results = results(&kept.ada, &id).await;
    assert_eq!(kinds(&results), [("id-0", "expired"), ("id-1", "expired"), ("id-2", "expired")]);
}

#[tokio::test]
async fn a_message_batch_goes_on_after_a_restart_and_runs_no_request_twice() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let id = created(&kept.ada, &requests(3)).await;
    echo(&mut node).await;
    eventually("a result to be stored", async || {
        (batch(&kept.ada, &id).await["request_counts"]["succeeded"] == 1).then_some(())
    })
    .await;
    let cut = node.asked().await;
    kept.stop().await;
    drop((cut, node));
    // A batch that was accepted runs, whatever the limits are now.
    let kept = Kept::start(folder.path(), ", batch_lines_max: 1").await;
    let mut node = kept.gateway.node("a", 1).await;
    echo(&mut node).await;
    echo(&mut node).await;
    let over = over(&kept.ada, &id).await;
    assert_eq!(over["request_counts"], counts([0, 3, 0, 0, 0]), "{over}");
    assert!(node.is_asked().is_none());
    let results = results(&kept.ada, &id).await;
    for (i, (id, result)) in results.iter().enumerate() {
        assert_eq!(*id, format!("id-{i}"));
        assert_eq!(result["message"]["content"][0]["text"], format!("text {i}"));
    }
}

async fn files(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("files")).map_or(0, Iterator::count)
}

#[tokio::test]
async fn a_deleted_message_batch_leaves_nothing() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let id = created(&kept.ada, &requests(1)).await;
    echo(&mut node).await;
    over(&kept.ada, &id).await;
    assert_eq!(files(folder.path()).await, 2, "the input and the results");
    let path = format!("{PATH}/{id}");
    assert_eq!(delete(&kept.bob, &path).await, 404);
    let deleted = kept.ada.try_send(Method::DELETE, &path, "".into()).await.unwrap();
    let expected = json!({"id": id, "type": "message_batch_deleted"});
    assert_eq!((deleted.status, deleted.json()), (200, expected));
    for path in [path.clone(), format!("{path}/results")] {
        assert_eq!(error(&kept.ada.get(&path).await).0, 404, "{path}");
    }
    assert_eq!(delete(&kept.ada, &path).await, 404);
    assert_eq!(files(folder.path()).await, 0);
    assert_eq!(metric(&kept.gateway.admin, "gateway_store_bytes").await, 0.0);
}

#[tokio::test]
async fn both_kinds_of_batches_are_seen_by_their_own_api_alone() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let mine = created(&kept.ada, &requests(1)).await;
    echo(&mut node).await;
    over(&kept.ada, &mine).await;
    let other = begun(&kept.ada, &line("a", "x")).await;
    echo(&mut node).await;
    let other_file = ended(&kept.ada, &other).await["input_file_id"].as_str().unwrap().to_string();
    for path in ["", "/cancel", "/results"] {
        let method = if path == "/cancel" { Method::POST } else { Method::GET };
        for (client, id) in [(&kept.ada, &other), (&kept.bob, &mine)] {
            let path = format!("{PATH}/{id}{path}");
            let answer = client.try_send(method.clone(), &path, "".into()).await.unwrap();
            let (status, kind, _) = error(&answer);
            assert_eq!((status, kind.as_str()), (404, "not_found_error"), "{path}");
        }
    }
    assert_eq!(delete(&kept.ada, &format!("{PATH}/{other}")).await, 404);
    assert_eq!(kept.ada.get(&format!("/v1/batches/{mine}")).await.error_code(), "not_found");
    let cancel = kept.ada.post(&format!("/v1/batches/{mine}/cancel"), "").await;
    assert_eq!(cancel.error_code(), "not_found");
    let ids = |list: Value| -> Vec<String> {
        let data = list["data"].as_array().unwrap().clone();
        data.iter().map(|record| record["id"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(ids(kept.ada.get("/v1/batches").await.json()), std::slice::from_ref(&other));
    assert_eq!(kept.ada.get(&format!("/v1/batches?after={mine}")).await.status, 404);
    assert_eq!(ids(kept.ada.get(PATH).await.json()), std::slice::from_ref(&mine));
    assert_eq!(kept.ada.get(&format!("{PATH}?after_id={other}")).await.status, 404);
    assert!(ids(kept.bob.get(PATH).await.json()).is_empty());
    let shown = ids(kept.ada.get("/v1/files").await.json());
    assert_eq!(shown.len(), 2, "input and output of the other one: {shown:?}");
    let all = ["message_batch", "message_batch_output"];
    for purpose in all {
        let listed = kept.ada.get(&format!("/v1/files?purpose={purpose}")).await.json();
        assert!(ids(listed).is_empty(), "{purpose}");
    }
    let names = std::fs::read_dir(folder.path().join("files")).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let hidden: Vec<_> = names.filter(|name| !shown.contains(name)).collect();
    assert_eq!(hidden.len(), 2, "{hidden:?}");
    for file in hidden {
        let path = format!("/v1/files/{file}");
        assert_eq!(kept.ada.get(&path).await.status, 404);
        assert_eq!(kept.ada.get(&format!("{path}/content")).await.status, 404);
        assert_eq!(delete(&kept.ada, &path).await, 404);
        assert_eq!(fleet_tests::batches::create(&kept.ada, &file).await.status, 404);
    }
    assert_eq!(kept.ada.get(&format!("/v1/files/{other_file}")).await.status, 200);
}

#[tokio::test]
async fn message_batches_are_listed_in_pages_in_both_directions() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.insert(0, created(&kept.ada, &requests(1)).await);
    }
    for (query, expected, has_more) in [
        (String::new(), 0..5, false),
        ("?limit=2".into(), 0..2, true),
        (format!("?limit=2&after_id={}", ids[1]), 2..4, true),
        (format!("?limit=2&after_id={}", ids[3]), 4..5, false),
        (format!("?limit=2&before_id={}", ids[4]), 2..4, true),
        (format!("?limit=2&before_id={}", ids[2]), 0..2, false),
        (format!("?before_id={}", ids[0]), 0..0, false),
    ] {
        let list = kept.ada.get(&format!("{PATH}{query}")).await.json();
        let listed = list["data"].as_array().unwrap().iter().map(|batch| &batch["id"]);
        let expected = &ids[expected];
        assert!(listed.eq(expected), "{query}: {list}");
        assert_eq!(list["has_more"], has_more, "{query}");
        let ends = (json!(expected.first()), json!(expected.last()));
        assert_eq!((&list["first_id"], &list["last_id"]), (&ends.0, &ends.1), "{query}");
    }
    let wrong = format!("{PATH}?after_id={}&before_id={}", ids[0], ids[1]);
    for wrong in [wrong, format!("{PATH}?limit=0"), format!("{PATH}?limit=1001")] {
        assert_eq!(error(&kept.ada.get(&wrong).await).1, "invalid_request_error", "{wrong}");
    }
}

#[tokio::test]
async fn refused_message_batches_leave_nothing() {
    let folder = Folder::new();
    let limits = ", file_bytes_max: 3000, bytes_per_tenant_max: 5000, batch_lines_max: 3, \
                  batches_per_tenant_max: 1";
    let kept = Kept::start(folder.path(), limits).await;
    let mut streamed = requests(2);
    streamed[1]["params"]["stream"] = json!(true);
    let twice = [requests(1), requests(1)].concat();
    for (body, status, said) in [
        (String::new(), 400, "the request body: EOF"),
        ("{}".into(), 400, "requests: it is missing"),
        (json!({"requests": []}).to_string(), 400, "requests: expected at least one"),
        (json!({"requests": streamed}).to_string(), 400, "requests.1.params.stream"),
        (json!({"requests": requests(4)}).to_string(), 400, "requests: there are more than 3"),
        (json!({"requests": twice}).to_string(), 400, "requests.1.custom_id: 'id-0'"),
        (
            json!({"requests": [request("a", &"x".repeat(3000))]}).to_string(),
            413,
            "larger than 3000 bytes",
        ),
        (
            json!({"requests": [request("a", &"x".repeat(2800))]}).to_string(),
            413,
            "there is no room",
        ),
    ] {
        let refused = kept.ada.post(PATH, body).await;
        let (found, _, message) = error(&refused);
        assert_eq!(found, status, "{message}");
        assert!(message.contains(said), "{said}: {message}");
    }
    let encoded = kept.ada.with_header("content-encoding", "gzip").post(PATH, "x").await;
    assert_eq!(error(&encoded).0, 415);
    assert_eq!(error(&kept.gateway.client.post(PATH, "{}").await).1, "authentication_error");
    let put = kept.ada.try_send(Method::PUT, PATH, "".into()).await.unwrap();
    assert_eq!((put.status, put.header("allow")), (405, Some("GET, POST")));
    assert_eq!(files(folder.path()).await, 0);
    created(&kept.ada, &requests(1)).await;
    let second = create(&kept.ada, &requests(1)).await;
    assert_eq!((second.status, error(&second).1.as_str()), (429, "rate_limit_error"));
    assert_eq!(files(folder.path()).await, 1);
    assert_eq!(upload(&kept.ada, "x", &[("purpose", "message_batch")]).await.status, 400);
}

#[tokio::test]
async fn without_a_store_there_are_no_message_batches() {
    let gateway = super::Gateway::start("").await;
    let (status, kind, message) = error(&gateway.client.get(PATH).await);
    assert_eq!((status, kind.as_str()), (403, "permission_error"));
    assert!(message.contains("store.dir"), "{message}");
}

#[tokio::test]
async fn requests_of_a_revoked_key_fail() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let id = created(&kept.ada, &requests(2)).await;
    kept.stop().await;
    let kept = Kept::start_with(folder.path(), "", "").await;
    let failed = "gateway_batch_lines_total{outcome=\"failed\"} 2";
    eventually("the requests to fail", async || {
        let text = kept.gateway.admin.get("/metrics").await.body;
        String::from_utf8_lossy(&text).contains(failed).then_some(())
    })
    .await;
    kept.stop().await;
    let kept = Kept::start(folder.path(), "").await;
    let over = over(&kept.ada, &id).await;
    assert_eq!(over["request_counts"], counts([0, 0, 2, 0, 0]), "{over}");
    let (_, result) = results(&kept.ada, &id).await.remove(0);
    assert_eq!(result["error"]["error"]["type"], "authentication_error", "{result}");
}
