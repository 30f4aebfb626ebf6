//! Files and batches: `/v1/files` and `/v1/batches`.

use std::path::Path;

use fleet_tests::batches::{batch, begun, create, delete, ended, line, lines_of, stored, upload};
use fleet_tests::client::Client;
use fleet_tests::eventually;
use fleet_tests::mock_node::{Asked, MockNode};
use fleet_tests::postgres::{database_of, psql, store_in};
use fleet_tests::process::{Folder, metric};
use serde_json::{Value, json};

use super::Gateway;

/// Digests of `key-of-ada` and `key-of-bob`.
pub(super) const ADA: &str = "5532e44183f47ed1fc146851b96d585c24da5bd5fe31a885cebc357261ed8f7f";
pub(super) const BOB: &str = "808a1d81b5de08d72083995df738947d519d230a20c236003268f0f4b65ee475";

/// A gateway with a store in a folder, and clients of two tenants.
pub(super) struct Kept {
    pub(super) gateway: Gateway,
    pub(super) ada: Client,
    pub(super) bob: Client,
}

impl Kept {
    pub(super) async fn start(folder: &Path, limits: &str) -> Self {
        Self::start_with(folder, limits, &format!("{{name: ada, sha256: {ADA}}}, ")).await
    }

    pub(super) async fn start_with(folder: &Path, limits: &str, ada: &str) -> Self {
        let keys = format!("keys: [{ada}{{name: bob, sha256: {BOB}}}]\n");
        let store = store_in(folder, limits);
        Self::configured(&keys, &store).await
    }

    /// With other sections.
    pub(super) async fn start_beside(folder: &Path, more: &str) -> Self {
        let keys = format!("keys: [{{name: ada, sha256: {ADA}}}]\n");
        let store = store_in(folder, "") + more;
        Self::configured(&keys, &store).await
    }

    async fn configured(keys: &str, store: &str) -> Self {
        let gateway = Gateway::start_with_keys(keys, store).await;
        let ada = gateway.client.with_key(Some("key-of-ada"));
        let bob = gateway.client.with_key(Some("key-of-bob"));
        Self { gateway, ada, bob }
    }

    pub(super) async fn stop(mut self) {
        self.gateway.stop.cancel();
        (&mut self.gateway.running).await.unwrap();
    }
}

fn text_of(asked: &Asked) -> String {
    asked.body["messages"][0]["content"].as_str().unwrap().to_string()
}

/// Answers the next request with its own text.
pub(super) async fn echo(node: &mut MockNode) -> String {
    let asked = node.asked().await;
    let text = text_of(&asked);
    asked.answer(&text);
    text
}

pub(super) fn said(line: &Value) -> (&str, &str) {
    let content = &line["response"]["body"]["choices"][0]["message"]["content"];
    (line["custom_id"].as_str().unwrap(), content.as_str().unwrap())
}

#[tokio::test]
async fn each_line_of_a_batch_is_in_its_output_once_and_in_order() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 2).await;
    let lines: String = (0..20).map(|i| line(&format!("id-{i}"), &format!("text {i}"))).collect();
    let id = begun(&kept.ada, &lines).await;
    let mut failed_once = false;
    for _ in 0..21 {
        let asked = node.asked().await;
        assert_eq!(asked.tenant, "ada");
        match text_of(&asked).as_str() {
            "text 3" => asked.reply(
                400,
                "application/json",
                json!({"error": {"message": "no", "type": "invalid_request_error", "param": null,
                    "code": "no"}})
                .to_string(),
            ),
            // Retried by the gateway itself, or after a pause by the batch.
            "text 5" if !std::mem::replace(&mut failed_once, true) => asked.refuse(500),
            text => {
                let text = text.to_string();
                asked.answer(&text);
            }
        }
    }
    let ended = ended(&kept.ada, &id).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(ended["request_counts"], json!({"total": 20, "completed": 19, "failed": 1}));
    assert_eq!((&ended["object"], &ended["metadata"]["night"]), (&json!("batch"), &json!("1")));
    assert!(ended["completed_at"].as_u64() >= ended["created_at"].as_u64());
    let output = lines_of(&kept.ada, &ended["output_file_id"]).await;
    let expected = (0..20).filter(|i| *i != 3).map(|i| (format!("id-{i}"), format!("text {i}")));
    let found = output.iter().map(said).map(|(id, text)| (id.to_string(), text.to_string()));
    assert!(found.eq(expected), "{output:?}");
    let errors = lines_of(&kept.ada, &ended["error_file_id"]).await;
    assert_eq!((errors.len(), &errors[0]["custom_id"]), (1, &json!("id-3")));
    assert_eq!(errors[0]["response"]["status_code"], 400);
    let counted = metric(&kept.gateway.admin, "gateway_batch_lines_total{outcome=\"completed\"}");
    assert_eq!(counted.await, 19.0);
    kept.gateway.is_idle().await;
}

/// Of each API: its path, a body, what a node replies, and where the text of the response is.
fn apis() -> Vec<(&'static str, Value, Value, &'static str)> {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": "said"},
        "finish_reason": "stop"});
    let chat = json!({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
    let text = json!({"choices": [{"index": 0, "text": "said", "finish_reason": "stop"}]});
    let vectors =
        json!({"object": "list", "model": "said", "data": [{"index": 0, "embedding": [1]}]});
    let ranks = json!({"model": "said", "results": [{"index": 0, "relevance_score": 0.5}]});
    vec![
        ("/v1/completions", json!({"prompt": "Hi"}), text, "/choices/0/text"),
        ("/v1/responses", json!({"input": "Hi"}), chat.clone(), "/output/0/content/0/text"),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 9}), chat, "/content/0/text"),
        ("/v1/embeddings", json!({"input": "Hi"}), vectors, "/model"),
        ("/v1/rerank", json!({"query": "Hi", "documents": ["a"]}), ranks, "/model"),
    ]
}

#[tokio::test]
async fn batches_call_every_api_that_they_name() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    for (path, mut body, reply, at) in apis() {
        body["model"] = "flotilla-demo".into();
        let line = json!({"custom_id": "a", "method": "POST", "url": path, "body": body});
        let file = stored(&kept.ada, &format!("{line}\n")).await;
        let asked = json!({"input_file_id": file, "endpoint": path, "completion_window": "24h"});
        let created = kept.ada.post("/v1/batches", asked.to_string()).await.json();
        node.asked().await.reply(200, "application/json", reply.to_string());
        let ended = ended(&kept.ada, created["id"].as_str().unwrap()).await;
        assert_eq!(ended["request_counts"]["completed"], 1, "{path}: {ended}");
        let output = lines_of(&kept.ada, &ended["output_file_id"]).await;
        let body = &output[0]["response"]["body"];
        assert_eq!(body.pointer(at).unwrap(), "said", "{path}: {body}");
    }
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn a_batch_goes_on_after_a_restart_and_runs_no_line_twice() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let lines: String = (0..4).map(|i| line(&format!("id-{i}"), &format!("text {i}"))).collect();
    let id = begun(&kept.ada, &lines).await;
    let first = [echo(&mut node).await, echo(&mut node).await];
    eventually("two lines to be stored", async || {
        (batch(&kept.ada, &id).await["request_counts"]["completed"] == 2).then_some(())
    })
    .await;
    // The third is being run.
    let cut = text_of(&node.asked().await);
    kept.stop().await;
    drop(node);
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let mut then = vec![echo(&mut node).await, echo(&mut node).await];
    let ended = ended(&kept.ada, &id).await;
    assert_eq!(ended["request_counts"], json!({"total": 4, "completed": 4, "failed": 0}));
    assert!(node.is_asked().is_none());
    assert!(then.contains(&cut), "{cut} in {then:?}");
    then.extend(first);
    then.sort_unstable();
    assert_eq!(then, ["text 0", "text 1", "text 2", "text 3"]);
    assert_eq!(lines_of(&kept.ada, &ended["output_file_id"]).await.len(), 4);
}

#[tokio::test]
async fn an_invalid_input_fails_and_says_which_lines() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), ", batch_lines_max: 3").await;
    let id = begun(&kept.ada, &(line("a", "1") + "{}\n" + &line("a", "2"))).await;
    let failed = ended(&kept.ada, &id).await;
    assert_eq!(failed["status"], "failed");
    let errors: Vec<_> = failed["errors"]["data"].as_array().unwrap().iter().collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert_eq!((&errors[0]["code"], &errors[0]["line"]), (&json!("invalid_json_line"), &json!(2)));
    assert_eq!(errors[1]["code"], "duplicate_custom_id");
    let many: String = (0..4).map(|i| line(&format!("{i}"), "x")).collect();
    let id = begun(&kept.ada, &many).await;
    assert_eq!(ended(&kept.ada, &id).await["errors"]["data"][0]["code"], "too_many_lines");
}

#[tokio::test]
async fn a_canceled_batch_stops_and_keeps_what_was_done() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let lines: String = (0..3).map(|i| line(&format!("id-{i}"), &format!("text {i}"))).collect();
    let file = stored(&kept.ada, &lines).await;
    let id = create(&kept.ada, &file).await.json()["id"].as_str().unwrap().to_string();
    echo(&mut node).await;
    let _running = node.asked().await;
    eventually("a line to be stored", async || {
        (batch(&kept.ada, &id).await["request_counts"]["completed"] == 1).then_some(())
    })
    .await;
    let path = format!("/v1/files/{file}");
    assert_eq!(delete(&kept.ada, &path).await, 409, "its batch has not ended");
    let cancel = format!("/v1/batches/{id}/cancel");
    let other = kept.bob.post(&cancel, "").await;
    assert_eq!((other.status, other.error_code().as_str()), (404, "not_found"));
    let cancelling = kept.ada.post(&cancel, "").await;
    assert_eq!((cancelling.status, &cancelling.json()["status"]), (200, &json!("cancelling")));
    let cancelled = ended(&kept.ada, &id).await;
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    assert_eq!(lines_of(&kept.ada, &cancelled["output_file_id"]).await.len(), 1);
    let again = kept.ada.post(&cancel, "").await;
    assert_eq!((again.status, again.error_code().as_str()), (409, "batch_finished"));
    assert_eq!(delete(&kept.ada, &path).await, 200);
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn files_are_listed_read_and_deleted_by_their_tenant_alone() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut ids = Vec::new();
    for i in 0..3 {
        ids.push(stored(&kept.ada, &format!("content {i}")).await);
    }
    let list = |query: &'static str| {
        let ada = kept.ada.clone();
        async move {
            let listed = ada.get(&format!("/v1/files{query}")).await.json();
            let ids = listed["data"].as_array().unwrap().iter().map(|file| file["id"].clone());
            (ids.collect::<Vec<_>>(), listed["has_more"].as_bool().unwrap())
        }
    };
    let newest: Vec<Value> = ids.iter().rev().map(|id| json!(id)).collect();
    assert_eq!(list("").await, (newest.clone(), false));
    assert_eq!(list("?limit=2").await, (newest[..2].to_vec(), true));
    let ascending = kept.ada.get(&format!("/v1/files?order=asc&after={}", ids[0])).await.json();
    assert_eq!(ascending["data"][0]["id"], ids[1].as_str());
    assert_eq!(list("?purpose=batch_output").await, (Vec::new(), false));
    assert_eq!(kept.ada.get("/v1/files?limit=x").await.status, 400);
    assert_eq!(kept.ada.get("/v1/files?after=file-0").await.status, 404);
    let path = format!("/v1/files/{}", ids[1]);
    let file = kept.ada.get(&path).await.json();
    assert_eq!((&file["bytes"], &file["filename"]), (&json!(9), &json!("in.jsonl")));
    let content = kept.ada.get(&format!("{path}/content")).await;
    assert_eq!(content.body, "content 1");
    assert_eq!(content.header("content-length"), Some("9"));
    for path in [path.clone(), format!("{path}/content")] {
        let other = kept.bob.get(&path).await;
        assert_eq!((other.status, other.error_code().as_str()), (404, "not_found"));
    }
    assert_eq!(delete(&kept.bob, &path).await, 404);
    assert_eq!(kept.gateway.client.get(&path).await.status, 401, "without a key");
    assert_eq!(delete(&kept.ada, &path).await, 200);
    assert_eq!(kept.ada.get(&path).await.status, 404);
    assert_eq!(std::fs::read_dir(folder.path().join("files")).unwrap().count(), 2);
    assert_eq!(create(&kept.bob, &ids[0]).await.status, 404, "a file of another tenant");
}

#[tokio::test]
async fn uploads_are_refused_with_a_reason_and_leave_nothing() {
    let folder = Folder::new();
    let limits = ", file_bytes_max: 100, bytes_per_tenant_max: 150";
    let kept = Kept::start(folder.path(), limits).await;
    let batch = [("purpose", "batch")];
    for (content, fields, status, param) in [
        ("x", &[][..], 400, "purpose"),
        ("x", &[("purpose", "fine-tune")], 400, "purpose"),
        (
            "x",
            &[("purpose", "batch"), ("expires_after[seconds]", "1")],
            400,
            "expires_after[seconds]",
        ),
        (
            "x",
            &[("purpose", "batch"), ("expires_after[anchor]", "now")],
            400,
            "expires_after[anchor]",
        ),
        (&"x".repeat(101), &batch, 413, ""),
    ] {
        let refused = upload(&kept.ada, content, fields).await;
        assert_eq!(refused.status, status, "{fields:?}: {:?}", refused.body);
        assert_eq!(refused.json()["error"]["param"].as_str().unwrap_or_default(), param);
    }
    let no_form = kept.ada.post("/v1/files", "{}").await;
    assert_eq!((no_form.status, &no_form.json()["error"]["param"]), (400, &json!("content-type")));
    let broken = kept.ada.with_header("content-type", "multipart/form-data; boundary=b");
    assert_eq!(broken.post("/v1/files", "--b\r\nnonsense").await.status, 400);
    let endless = format!("--b\r\n{}", "x".repeat(3 << 20));
    let refused = broken.post("/v1/files", endless).await;
    assert_eq!(refused.status, 413, "it is announced to be too long");
    let first = stored(&kept.ada, &"x".repeat(100)).await;
    let full = upload(&kept.ada, &"x".repeat(51), &batch).await;
    assert_eq!((full.status, full.error_code().as_str()), (413, "storage_limit_exceeded"));
    stored(&kept.bob, &"x".repeat(100)).await;
    assert_eq!(std::fs::read_dir(folder.path().join("files")).unwrap().count(), 2);
    assert_eq!(delete(&kept.ada, &format!("/v1/files/{first}")).await, 200);
    stored(&kept.ada, &"x".repeat(51)).await;
}

#[tokio::test]
async fn requests_for_batches_are_checked() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), ", batches_per_tenant_max: 1").await;
    let file = stored(&kept.ada, &line("a", "x")).await;
    let right = json!({"input_file_id": file, "endpoint": "/v1/chat/completions",
        "completion_window": "24h"});
    for (field, value, param) in [
        ("endpoint", json!("/v1/images"), "endpoint"),
        ("completion_window", json!("soon"), "completion_window"),
        ("metadata", json!({"a": 1}), "metadata"),
        (
            "output_expires_after",
            json!({"anchor": "created_at", "seconds": 5}),
            "output_expires_after.seconds",
        ),
    ] {
        let mut wrong = right.clone();
        wrong[field] = value;
        let refused = kept.ada.post("/v1/batches", wrong.to_string()).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
    }
    for wrong in ["", "[]", "{}", "nonsense"] {
        assert_eq!(kept.ada.post("/v1/batches", wrong).await.status, 400, "{wrong}");
    }
    assert_eq!(create(&kept.ada, "file-0").await.status, 404);
    assert_eq!(create(&kept.ada, &file).await.status, 200);
    let second = create(&kept.ada, &file).await;
    assert_eq!((second.status, second.error_code().as_str()), (429, "too_many_batches"));
    let listed = kept.ada.get("/v1/batches").await.json();
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    assert_eq!(kept.bob.get("/v1/batches").await.json()["data"], json!([]));
    let put = kept.ada.try_send(hyper::Method::PUT, "/v1/batches", "".into()).await.unwrap();
    assert_eq!((put.status, put.header("allow")), (405, Some("GET, POST")));
}

/// Makes it too late for all batches.
pub(super) fn expire_all(folder: &Path) {
    if let Some(url) = database_of(folder) {
        let sql = "UPDATE batches SET document = \
                   regexp_replace(document, '\"expires_at\":[0-9]+', '\"expires_at\":1')";
        assert_eq!(psql(&url, sql).unwrap(), "UPDATE 1");
        return;
    }
    let database = rusqlite::Connection::open(folder.join("store.sqlite")).unwrap();
    let sql = "UPDATE batches SET document = json_set(document, '$.times.expires_at', 1)";
    assert_eq!(database.execute(sql, []).unwrap(), 1);
}

#[tokio::test]
async fn what_is_not_done_in_time_is_in_the_error_file() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let id = begun(&kept.ada, &(line("a", "1") + &line("b", "2"))).await;
    kept.stop().await;
    expire_all(folder.path());
    let kept = Kept::start(folder.path(), "").await;
    let expired = ended(&kept.ada, &id).await;
    assert_eq!(expired["status"], "expired", "{expired}");
    assert_eq!(expired["request_counts"], json!({"total": 2, "completed": 0, "failed": 2}));
    let errors = lines_of(&kept.ada, &expired["error_file_id"]).await;
    let ids: Vec<_> = errors.iter().map(|line| line["custom_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(errors[0]["error"]["code"], "batch_expired");
    assert_eq!(expired["output_file_id"], Value::Null);
}

#[tokio::test]
async fn lines_of_a_revoked_key_fail() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let id = begun(&kept.ada, &line("a", "1")).await;
    kept.stop().await;
    let kept = Kept::start_with(folder.path(), "", "").await;
    assert_eq!(kept.ada.get(&format!("/v1/batches/{id}")).await.status, 401);
    eventually("the line to fail", async || (failed_lines(&kept).await == 1.0).then_some(())).await;
}

async fn failed_lines(kept: &Kept) -> f64 {
    let text = kept.gateway.admin.get("/metrics").await.body;
    let text = String::from_utf8_lossy(&text).into_owned();
    let name = "gateway_batch_lines_total{outcome=\"failed\"} ";
    text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).unwrap_or_default()
}

#[tokio::test]
async fn batches_leave_the_rate_limits_of_their_key_alone_and_yield_to_other_requests() {
    let folder = Folder::new();
    let ada = format!("{{name: ada, sha256: {ADA}, concurrent_max: 1, requests_per_minute: 6}}, ");
    let kept = Kept::start_with(folder.path(), "", &ada).await;
    let mut node = kept.gateway.node("a", 1).await;
    let lines: String = (0..10).map(|i| line(&format!("{i}"), &format!("batch {i}"))).collect();
    let id = begun(&kept.ada, &lines).await;
    let running = node.asked().await.stream();
    let client = kept.ada.with_header("x-flotilla-class", "interactive");
    let request = fleet_tests::chat("interactive");
    let chat = tokio::spawn(async move { client.chat(&request).await });
    running.is_given_up().await;
    let mut order = Vec::new();
    for _ in 0..11 {
        order.push(echo(&mut node).await);
    }
    assert_eq!(chat.await.unwrap().status, 200);
    assert_eq!(order[0], "interactive", "lines do not wait in its queue: {order:?}");
    assert_eq!(ended(&kept.ada, &id).await["request_counts"]["completed"], 10);
}

#[tokio::test]
async fn without_a_store_files_and_batches_are_refused_and_with_a_broken_one_the_rest_works() {
    let gateway = Gateway::start("").await;
    for path in ["/v1/files", "/v1/batches"] {
        let refused = gateway.client.get(path).await;
        assert_eq!((refused.status, refused.error_code().as_str()), (403, "store_disabled"));
    }
    let folder = Folder::new();
    let text = "no database ".repeat(1000);
    let file = folder.write("store.sqlite", text.clone());
    let gateway = Gateway::start(&format!("store: {{dir: '{}'}}\n", folder.path().display())).await;
    let mut node = gateway.node("a", 1).await;
    let refused = gateway.client.get("/v1/batches").await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "store_unavailable"));
    let refused = upload(&gateway.client, "x", &[("purpose", "batch")]).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "store_unavailable"));
    let asking = gateway.asks("Hi");
    node.asked().await.answer("still here");
    assert_eq!(asking.await.unwrap().content(), "still here");
    assert_eq!(metric(&gateway.admin, "gateway_store_available").await, 0.0);
    assert_eq!(std::fs::read_to_string(file).unwrap(), text, "it is left as it is");
}
