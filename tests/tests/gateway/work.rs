//! Stored work of all tenants, for operators: `/admin/v1/batches` and `/admin/v1/tasks`.

use fleet_tests::batches::{batch, begun, ended, line};
use fleet_tests::client::{Answer, Client};
use fleet_tests::eventually;
use fleet_tests::mock_node::MockNode;
use fleet_tests::process::Folder;
use hyper::Method;
use serde_json::{Value, json};

use super::Gateway;
use super::batches::Kept;

const BATCHES: &str = "/admin/v1/batches";
const TASKS: &str = "/admin/v1/tasks";
/// What clients send and get, which operators do not see.
const CONTENTS: [&str; 3] = ["a secret question", "a secret answer", "night"];

async fn job(client: &Client) -> String {
    let message = json!({"role": "user", "content": "a secret question"});
    let body = json!({"model": "flotilla-demo", "messages": [message]});
    let asked = json!({"url": "/v1/chat/completions", "body": body, "metadata": {"hour": "night"}});
    let answer = client.post("/v1/jobs", asked.to_string()).await;
    assert_eq!(answer.status, 202, "{:?}", answer.body);
    answer.json()["id"].as_str().unwrap().into()
}

async fn response(client: &Client) -> String {
    let asked = json!({"model": "flotilla-demo", "input": "a secret question", "background": true,
        "metadata": {"hour": "night"}});
    let answer = client.post("/v1/responses", asked.to_string()).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["id"].as_str().unwrap().into()
}

/// A list, which has no contents.
async fn listed(admin: &Client, path: &str) -> Value {
    let answer = admin.get(path).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(CONTENTS.iter().all(|secret| !text.contains(secret)), "{text}");
    answer.json()
}

fn ids<'a>(list: &'a Value, name: &str) -> Vec<&'a str> {
    list[name].as_array().unwrap().iter().map(|entry| entry["id"].as_str().unwrap()).collect()
}

fn is_refused(answer: &Answer, status: u16, code: &str) {
    assert_eq!((answer.status, answer.error_code().as_str()), (status, code), "{:?}", answer.body);
}

/// Answers so many requests.
async fn answers(node: &mut MockNode, count: usize) {
    for _ in 0..count {
        node.asked().await.answer("a secret answer");
    }
}

#[tokio::test]
async fn operators_see_the_work_of_all_tenants_and_none_of_its_contents() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let admin = &kept.gateway.admin;
    let lines = line("id-1", "a secret question") + &line("id-2", "a secret question");
    let batch = begun(&kept.ada, &lines).await;
    let (of_bob, of_ada) = (job(&kept.bob).await, response(&kept.ada).await);
    let tasks = listed(admin, TASKS).await;
    assert_eq!(ids(&tasks, "tasks"), [&of_ada, &of_bob], "newest first");
    let (first, second) = (&tasks["tasks"][0], &tasks["tasks"][1]);
    assert_eq!((&first["kind"], &second["kind"]), (&json!("response"), &json!("job")));
    assert_eq!((&first["tenant"], &second["tenant"]), (&json!("ada"), &json!("bob")));
    assert_eq!(second["endpoint"], "/v1/chat/completions");
    assert_eq!((&second["model"], &second["status"]), (&json!("flotilla-demo"), &json!("queued")));
    assert_eq!((&second["gateway"], &tasks["has_more"]), (&tasks["gateway"], &json!(false)));
    let bobs = listed(admin, &format!("{TASKS}?tenant=bob")).await;
    assert_eq!(ids(&bobs, "tasks"), [&of_bob]);
    let newest = listed(admin, &format!("{TASKS}?limit=1")).await;
    assert_eq!((ids(&newest, "tasks"), &newest["has_more"]), (vec![&*of_ada], &json!(true)));

    let mut node = kept.gateway.node("a", 1).await;
    answers(&mut node, 4).await;
    ended(&kept.ada, &batch).await;
    let done = eventually("the tasks to end", async || {
        let list = listed(admin, TASKS).await;
        list["tasks"].as_array()?.iter().all(|task| task["status"] == "completed").then_some(list)
    });
    assert_eq!(done.await["tasks"].as_array().unwrap().len(), 2);
    let batches = listed(admin, BATCHES).await;
    let found = &batches["batches"][0];
    assert_eq!((&found["id"], &found["tenant"]), (&json!(batch), &json!("ada")));
    assert_eq!(found["status"], "completed", "{found}");
    assert_eq!((&found["lines"], &found["completed"]), (&json!(2), &json!(2)));
    assert!(found["ended_at"].as_u64() >= found["created_at"].as_u64(), "{found}");
    assert_eq!(found["predicted_end_at"], Value::Null);
}

#[tokio::test]
async fn the_end_of_a_running_batch_is_predicted() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let batch = begun(&kept.ada, &(line("id-1", "one") + &line("id-2", "two"))).await;
    let held = node.asked().await;
    let found = listed(&kept.gateway.admin, BATCHES).await;
    let found = &found["batches"][0];
    assert_eq!((&found["status"], &found["lines"]), (&json!("in_progress"), &json!(2)));
    assert_eq!(found["predicted_end_at"], Value::Null, "nothing is known of its pace");
    held.answer("one");
    let predicted = eventually("a prediction", async || {
        let list = listed(&kept.gateway.admin, BATCHES).await;
        list["batches"][0]["predicted_end_at"].as_u64()
    });
    assert!(predicted.await >= found["created_at"].as_u64().unwrap());
    answers(&mut node, 1).await;
    assert_eq!(ended(&kept.ada, &batch).await["status"], "completed");
}

#[tokio::test]
async fn operators_cancel_the_work_of_any_tenant() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let admin = &kept.gateway.admin;
    let mut node = kept.gateway.node("a", 3).await;
    let (job, batch) = (job(&kept.bob).await, begun(&kept.ada, &line("id-1", "one")).await);
    let _held = (node.asked().await, node.asked().await);
    let canceled = admin.post(&format!("{TASKS}/{job}/cancel"), "").await;
    assert_eq!((canceled.status, &canceled.json()["status"]), (200, &json!("cancelled")));
    let known = kept.bob.get(&format!("/v1/jobs/{job}")).await.json();
    assert_eq!(known["status"], "cancelled", "its client sees that");
    let again = admin.post(&format!("{TASKS}/{job}/cancel"), "").await;
    assert_eq!((again.status, again.json()), (200, canceled.json()));

    let path = format!("{BATCHES}/{batch}/cancel");
    let canceled = admin.post(&path, "").await;
    assert_eq!((canceled.status, &canceled.json()["id"]), (200, &json!(batch)));
    assert_eq!(ended(&kept.ada, &batch).await["status"], "cancelled");
    is_refused(&admin.post(&path, "").await, 409, "batch_finished");
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn a_task_that_is_done_is_not_canceled() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let job = job(&kept.ada).await;
    answers(&mut node, 1).await;
    eventually("the job to end", async || {
        let known = kept.ada.get(&format!("/v1/jobs/{job}")).await.json();
        (known["status"] == "completed").then_some(())
    })
    .await;
    let canceled = kept.gateway.admin.post(&format!("{TASKS}/{job}/cancel"), "").await;
    is_refused(&canceled, 409, "batch_finished");
}

#[tokio::test]
async fn stored_work_needs_the_admin_key() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let id = begun(&kept.ada, &line("id-1", "one")).await;
    for key in [None, Some("key-of-ada"), Some("wrong")] {
        let client = kept.gateway.admin.with_key(key);
        for path in [BATCHES, TASKS] {
            is_refused(&client.get(path).await, 401, "invalid_admin_key");
        }
        let canceled = client.post(&format!("{BATCHES}/{id}/cancel"), "").await;
        is_refused(&canceled, 401, "invalid_admin_key");
    }
    is_refused(&kept.ada.get(BATCHES).await, 404, "unknown_url");
    assert_ne!(batch(&kept.ada, &id).await["status"], "cancelling");
}

#[tokio::test]
async fn wrong_requests_for_stored_work_say_what_is_wrong() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let admin = &kept.gateway.admin;
    for path in [BATCHES, TASKS] {
        for limit in ["0", "1001", "x"] {
            is_refused(&admin.get(&format!("{path}?limit={limit}")).await, 400, "invalid_value");
        }
        is_refused(&admin.post(&format!("{path}/nobody/cancel"), "").await, 404, "not_found");
        is_refused(&admin.post(&format!("{path}/a/b/cancel"), "").await, 404, "unknown_url");
        is_refused(&admin.get(&format!("{path}/nobody")).await, 404, "unknown_url");
        for (method, path) in
            [(Method::POST, path.to_string()), (Method::GET, format!("{path}/nobody/cancel"))]
        {
            let answer = admin.try_send(method, &path, "".into()).await.unwrap();
            is_refused(&answer, 405, "method_not_allowed");
        }
    }
}

#[tokio::test]
async fn without_a_store_or_with_a_broken_one_operators_get_a_clear_error() {
    let gateway = Gateway::start("").await;
    for path in [BATCHES, TASKS] {
        is_refused(&gateway.admin.get(path).await, 403, "store_disabled");
        let canceled = gateway.admin.post(&format!("{path}/a/cancel"), "").await;
        is_refused(&canceled, 403, "store_disabled");
    }
    let folder = Folder::new();
    folder.write("store.sqlite", "no database ".repeat(1000));
    let gateway = Gateway::start(&format!("store: {{dir: '{}'}}\n", folder.path().display())).await;
    for path in [BATCHES, TASKS] {
        is_refused(&gateway.admin.get(path).await, 503, "store_unavailable");
        let canceled = gateway.admin.post(&format!("{path}/a/cancel"), "").await;
        is_refused(&canceled, 503, "store_unavailable");
    }
}
