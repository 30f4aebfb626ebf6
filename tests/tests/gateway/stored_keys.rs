//! API keys in the store: `/admin/v1/keys`.

use std::path::Path;

use fleet_tests::client::{Answer, Client};
use fleet_tests::eventually;
use fleet_tests::postgres::{database_of, psql, store_in};
use fleet_tests::process::Folder;
use hyper::Method;
use serde_json::{Value, json};

use super::Gateway;
use super::batches::{ADA, BOB};

const PATH: &str = "/admin/v1/keys";

async fn start(folder: &Path, keys: &str) -> Gateway {
    Gateway::start_with_keys(keys, &store_in(folder, ", keys: true")).await
}

async fn stop(mut gateway: Gateway) {
    gateway.stop.cancel();
    (&mut gateway.running).await.unwrap();
}

async fn send(admin: &Client, method: Method, path: &str, body: impl ToString) -> Answer {
    admin.try_send(method, path, body.to_string().into()).await.unwrap()
}

/// The status that a key gets, and the code of its error.
async fn status(gateway: &Gateway, key: &str) -> (u16, String) {
    let answer = gateway.client.with_key(Some(key)).get("/v1/models").await;
    let code = if answer.status == 200 { String::new() } else { answer.error_code() };
    (answer.status, code)
}

fn keys(entries: &[Value]) -> Value {
    json!({ "keys": entries })
}

#[tokio::test]
async fn keys_of_the_store_are_added_replaced_listed_and_deleted_while_the_gateway_serves() {
    let folder = Folder::new();
    let gateway = start(folder.path(), "").await;
    let wrong = (401, "invalid_api_key".to_string());
    eventually("the keys of the store to be known", async || {
        (status(&gateway, "key-of-ada").await == wrong).then_some(())
    })
    .await;
    let (ada, bob) = (json!({"name": "ada", "sha256": ADA}), json!({"name": "bob", "sha256": BOB}));
    let added = send(&gateway.admin, Method::POST, PATH, keys(&[ada.clone(), bob])).await;
    let changes = json!({"added": 2, "replaced": 0, "deleted": 0});
    assert_eq!((added.status, added.json()), (201, changes));
    // The answer comes when they count here.
    assert_eq!(status(&gateway, "key-of-ada").await.0, 200);
    assert_eq!(status(&gateway, "key-of-bob").await.0, 200);

    let again = send(&gateway.admin, Method::POST, PATH, keys(std::slice::from_ref(&ada))).await;
    assert_eq!((again.status, again.error_code().as_str()), (409, "key_exists"));
    let limited = json!({"name": "ada", "sha256": ADA, "models": ["other"]});
    let put = send(&gateway.admin, Method::PUT, PATH, keys(&[limited])).await;
    assert_eq!((put.status, &put.json()["replaced"]), (200, &json!(1)));
    let mut request = fleet_tests::chat("Hi");
    request["model"] = "flotilla-demo".into();
    let refused = gateway.client.with_key(Some("key-of-ada")).chat(&request).await;
    assert_eq!(refused.error_code(), "model_not_allowed");

    let listed = gateway.admin.get(PATH).await;
    assert_eq!(listed.header("cache-control"), Some("no-store"));
    let listed = listed.json();
    assert_eq!(listed["keys"][0]["models"], json!(["other"]), "{listed}");
    assert_eq!(
        (&listed["keys"][1]["name"], &listed["keys"][1]["sha256"]),
        (&json!("bob"), &json!(BOB))
    );
    let same = send(&gateway.admin, Method::PUT, PATH, &listed).await.json();
    assert_eq!(same, json!({"added": 0, "replaced": 0, "deleted": 0}), "what is listed can be put");

    let deleted = send(&gateway.admin, Method::DELETE, &format!("{PATH}/ada"), "").await;
    assert_eq!((deleted.status, &deleted.json()["deleted"]), (200, &json!(1)));
    assert_eq!(status(&gateway, "key-of-ada").await, wrong);
    assert_eq!(status(&gateway, "key-of-bob").await.0, 200);
    let gone = send(&gateway.admin, Method::DELETE, &format!("{PATH}/ada"), "").await;
    assert_eq!((gone.status, gone.error_code().as_str()), (404, "key_not_found"));
    stop(gateway).await;

    let gateway = start(folder.path(), "").await;
    assert_eq!(
        status(&gateway, "key-of-bob").await.0,
        200,
        "after a restart, from the first request on"
    );
}

#[tokio::test]
async fn what_is_no_list_of_keys_is_refused_and_changes_nothing() {
    let folder = Folder::new();
    let gateway = start(folder.path(), "").await;
    let bob = json!({"name": "bob", "sha256": BOB});
    assert_eq!(
        send(&gateway.admin, Method::POST, PATH, keys(std::slice::from_ref(&bob))).await.status,
        201
    );
    let ada = |more: &str| format!("keys: [{{name: ada, sha256: {ADA}{more}}}]");
    let same = format!("keys: [{{name: ada, sha256: {BOB}}}]");
    let twice = format!("keys: [{{name: ada, sha256: {ADA}}}, {{name: ada, sha256: {BOB}}}]");
    let deep = format!("keys: {}{}", "[".repeat(2000), "]".repeat(2000));
    for (body, says) in [
        ("", "the list of keys is missing"),
        ("keys:", "the list of keys is missing"),
        ("[]", "expected"),
        ("keys: {", "not valid YAML"),
        ("keys: [{name: ada}]", "sha256"),
        ("keys: [{name: 'a b', sha256: 12}]", "name"),
        (&ada(", rpm: 3"), "unknown key"),
        (&ada(", requests_per_minute: -1"), "requests_per_minute"),
        (&format!("{}\nmore: 1", ada("")), "unknown key"),
        (&same, "this key is used twice"),
        (&twice, "this name is used twice"),
        (&deep, ""),
    ] {
        for method in [Method::POST, Method::PUT] {
            let refused = send(&gateway.admin, method, PATH, body).await;
            assert_eq!(
                (refused.status, refused.error_code().as_str()),
                (400, "invalid_value"),
                "{body}"
            );
            assert!(
                refused.json()["error"]["message"].as_str().unwrap().contains(says),
                "{body}: {}",
                refused.json()
            );
        }
    }
    let bytes = gateway.admin.post(PATH, &b"keys: [\xff]"[..]).await;
    assert_eq!(bytes.error_code(), "invalid_value");
    let long = gateway.admin.post(PATH, "#".repeat(5 * 1024 * 1024)).await;
    assert_eq!((long.status, long.error_code().as_str()), (413, "request_too_large"));
    for (method, path) in [
        (Method::PATCH, PATH.to_string()),
        (Method::DELETE, PATH.to_string()),
        (Method::GET, format!("{PATH}/bob")),
    ] {
        assert_eq!(
            send(&gateway.admin, method, &path, "").await.error_code(),
            "method_not_allowed"
        );
    }
    let stranger = gateway.admin.with_key(Some("key-of-bob"));
    for method in [Method::GET, Method::POST, Method::PUT] {
        let refused = send(&stranger, method, PATH, ada("")).await;
        assert_eq!((refused.status, refused.error_code().as_str()), (401, "invalid_admin_key"));
    }
    assert_eq!(gateway.admin.get(PATH).await.json(), keys(&[bob]));
}

#[tokio::test]
async fn keys_of_the_configuration_go_before_those_of_the_store() {
    let folder = Folder::new();
    let first = start(folder.path(), "").await;
    let stored = [
        json!({"name": "ada", "sha256": "0".repeat(64)}),
        json!({"name": "carl", "sha256": BOB, "models": ["none"]}),
    ];
    assert_eq!(send(&first.admin, Method::POST, PATH, keys(&stored)).await.status, 201);
    stop(first).await;
    let configured =
        format!("keys: [{{name: ada, sha256: {ADA}}}, {{name: bob, sha256: {BOB}}}]\n");
    let gateway = start(folder.path(), &configured).await;
    assert_eq!(status(&gateway, "key-of-ada").await.0, 200, "the name is used there, too");
    assert_eq!(status(&gateway, "key-of-bob").await.0, 200, "the digest is used there, too");
    let dora = json!({"name": "bob", "sha256": "1".repeat(64)});
    let exists = send(&gateway.admin, Method::POST, PATH, keys(&[dora])).await;
    assert_eq!((exists.status, exists.error_code().as_str()), (409, "key_exists"));
}

#[tokio::test]
async fn without_its_store_a_gateway_knows_the_keys_of_its_last_run_and_does_not_call_others_wrong()
{
    let folder = Folder::new();
    let gateway = start(folder.path(), "").await;
    let ada = json!({"name": "ada", "sha256": ADA});
    assert_eq!(send(&gateway.admin, Method::POST, PATH, keys(&[ada])).await.status, 201);
    stop(gateway).await;
    match database_of(folder.path()) {
        Some(url) => drop(psql(&url, "ALTER TABLE shared_settings RENAME TO gone").unwrap()),
        None => {
            std::fs::write(folder.path().join("store.sqlite"), "no database ".repeat(1000)).unwrap()
        }
    }
    let gateway = start(folder.path(), "").await;
    assert_eq!(status(&gateway, "key-of-ada").await.0, 200);
    assert_eq!(status(&gateway, "key-of-bob").await.0, 401);
    let refused = send(&gateway.admin, Method::DELETE, &format!("{PATH}/ada"), "").await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "store_unavailable"));
    stop(gateway).await;

    std::fs::remove_file(folder.path().join("keys.yaml")).unwrap();
    let configured = format!("keys: [{{name: bob, sha256: {BOB}}}]\n");
    let gateway = start(folder.path(), &configured).await;
    assert_eq!(status(&gateway, "key-of-bob").await.0, 200, "it needs no store");
    let unsure = status(&gateway, "key-of-ada").await;
    assert_eq!(unsure, (503, "store_unavailable".into()), "it may be a key of the store");
}

#[tokio::test]
async fn a_store_that_was_replaced_by_an_empty_one_locks_nobody_out() {
    let folder = Folder::new();
    let gateway = start(folder.path(), "").await;
    let ada = json!({"name": "ada", "sha256": ADA});
    assert_eq!(send(&gateway.admin, Method::POST, PATH, keys(&[ada])).await.status, 201);
    stop(gateway).await;
    match database_of(folder.path()) {
        Some(url) => drop(psql(&url, "DELETE FROM shared_settings").unwrap()),
        None => {
            for file in ["store.sqlite", "store.sqlite-wal", "store.sqlite-shm"] {
                let _ = std::fs::remove_file(folder.path().join(file));
            }
        }
    }
    let gateway = start(folder.path(), "").await;
    eventually("the store to be empty", async || {
        (gateway.admin.get(PATH).await.json() == keys(&[])).then_some(())
    })
    .await;
    // The gateway looks once a second.
    let mut seconds = tokio::time::interval(std::time::Duration::from_secs(1));
    for _ in 0..3 {
        seconds.tick().await;
        assert_eq!(status(&gateway, "key-of-ada").await.0, 200);
    }
}

#[tokio::test]
async fn a_gateway_that_takes_no_keys_from_its_store_says_so() {
    let folder = Folder::new();
    let configured = format!("keys: [{{name: ada, sha256: {ADA}}}]\n");
    let gateway = Gateway::start_with_keys(&configured, &store_in(folder.path(), "")).await;
    let off = gateway.admin.get(PATH).await;
    assert_eq!((off.status, off.error_code().as_str()), (403, "stored_keys_disabled"));
    let none = Gateway::start("").await;
    assert_eq!(none.admin.get(PATH).await.error_code(), "store_disabled");
}
