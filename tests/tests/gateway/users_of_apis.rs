//! Users behind one key whose clients speak other APIs than chat completions.

use bytes::Bytes;
use fleet_tests::client::{Answer, Client};
use fleet_tests::eventually;
use fleet_tests::mock_node::MockNode;
use fleet_tests::process::metric;
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Gateway;

const ADA: &str = "5532e44183f47ed1fc146851b96d585c24da5bd5fe31a885cebc357261ed8f7f";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const OLLAMA: &str = "/api/chat";

async fn gateway(more: &str) -> Gateway {
    let keys = format!("keys: [{{name: webui, sha256: {ADA}, users: field{more}}}]\n");
    Gateway::start_with_keys(&keys, "").await
}

/// A request of the API at `path` that says `text`, with more fields.
fn request(path: &str, text: &str, fields: Value) -> Value {
    let messages = json!([{"role": "user", "content": text}]);
    let mut request = match path {
        RESPONSES => json!({"model": "flotilla-demo", "input": text}),
        _ => json!({"model": "flotilla-demo", "messages": messages, "max_tokens": 9}),
    };
    request["stream"] = false.into();
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

fn ask(gateway: &Gateway, path: &'static str, request: Value) -> JoinHandle<Answer> {
    let client: Client = gateway.client.with_key(Some("key-of-ada"));
    tokio::spawn(async move { client.post(path, request.to_string()).await })
}

/// Fields that name the user `id`, with the API that has them.
fn naming(id: &str) -> [(&'static str, Value); 6] {
    [
        (RESPONSES, json!({"user": id})),
        (RESPONSES, json!({"safety_identifier": id, "prompt_cache_key": "p"})),
        (RESPONSES, json!({"metadata": {"user_id": id, "other": "x"}})),
        (RESPONSES, json!({"safety_identifier": id, "user": "x", "metadata": {"user_id": "y"}})),
        (RESPONSES, json!({"safety_identifier": "", "user": id, "metadata": {"user_id": "y"}})),
        (MESSAGES, json!({"metadata": {"user_id": id}})),
    ]
}

async fn limited(gateway: &Gateway) -> f64 {
    let name = "gateway_refusals_total{reason=\"limit_user_concurrent\",tenant=\"webui\"}";
    metric(&gateway.admin, name).await
}

fn is_over_limit(refused: &Answer, path: &str) {
    let text = String::from_utf8_lossy(&refused.body);
    assert_eq!(refused.status, 429, "{path}: {text}");
    assert!(text.contains("this user of the API key"), "{text}");
}

#[tokio::test]
async fn every_field_of_responses_and_messages_that_names_the_user_limits_that_user() {
    let gateway = gateway(", user_limits: {concurrent_max: 1}").await;
    let mut a = gateway.node("a", 4).await;
    let requests = naming("ada").into_iter().zip(naming("eve"));
    for (count, ((path, ada), (_, eve))) in requests.enumerate() {
        // A chat holds the user's only place: one user is the same in every API.
        let mut chat = request("/v1/chat/completions", "Hi", json!({}));
        chat["user"] = "ada".into();
        let first = ask(&gateway, "/v1/chat/completions", chat);
        let held = a.asked().await;
        is_over_limit(&ask(&gateway, path, request(path, "Hi", ada.clone())).await.unwrap(), path);
        assert_eq!(limited(&gateway).await as usize, count + 1);
        let other = ask(&gateway, path, request(path, "Hi", eve));
        a.asked().await.answer("done");
        assert_eq!(other.await.unwrap().status, 200, "{ada}: another user");
        held.answer("done");
        assert_eq!(first.await.unwrap().status, 200);
        gateway.is_idle().await;
    }
}

#[tokio::test]
async fn a_cache_key_and_ollamas_fields_name_nobody() {
    let gateway = gateway(", user_limits: {concurrent_max: 1}").await;
    let mut a = gateway.node("a", 4).await;
    for (path, one, other) in [
        (RESPONSES, json!({"prompt_cache_key": "a"}), json!({"prompt_cache_key": "b"})),
        (RESPONSES, json!({"metadata": {"user": "a"}}), json!({"metadata": {"user": "b"}})),
        (MESSAGES, json!({"metadata": {}}), json!({})),
        (OLLAMA, json!({"user": "a"}), json!({"user": "b"})),
    ] {
        let first = ask(&gateway, path, request(path, "Hi", one));
        let held = a.asked().await;
        is_over_limit(&ask(&gateway, path, request(path, "Hi", other)).await.unwrap(), path);
        held.answer("done");
        assert_eq!(first.await.unwrap().status, 200);
        gateway.is_idle().await;
    }
}

#[tokio::test]
async fn users_of_responses_and_messages_share_fairly() {
    let gateway = gateway("").await;
    let mut a = gateway.node("a", 1).await;
    for ((path, many), (_, few)) in naming("u-many").into_iter().zip(naming("u-few")) {
        let mut waiting = vec![ask(&gateway, path, request(path, "many", many.clone()))];
        let held = a.asked().await;
        let texts = [("many", &many); 5].into_iter().chain([("few", &few)]);
        for (depth, (text, fields)) in (1..).zip(texts) {
            waiting.push(ask(&gateway, path, request(path, text, fields.clone())));
            eventually("the queue", async || {
                (gateway.health("/queue_depth").await == depth).then_some(())
            })
            .await;
        }
        held.answer("done");
        let mut order = Vec::new();
        for _ in 0..6 {
            let asked = a.asked().await;
            order.push(asked.body["messages"][0]["content"].as_str().unwrap().to_string());
            asked.answer("done");
        }
        let place = order.iter().position(|text| text == "few").unwrap();
        assert!(place <= 1, "{many}: {order:?}");
        for answer in waiting {
            assert_eq!(answer.await.unwrap().status, 200);
        }
        gateway.is_idle().await;
    }
}

/// The id of a response that the client asks for and that the node gives.
async fn stored_by(client: &Client, node: &mut MockNode, fields: Value) -> String {
    let asking = post(client, request(RESPONSES, "Hi", fields));
    node.asked().await.answer("Hello");
    asking.await.unwrap().json()["id"].as_str().unwrap().to_string()
}

fn post(client: &Client, request: Value) -> JoinHandle<Answer> {
    let client = client.clone();
    tokio::spawn(async move { client.post(RESPONSES, request.to_string()).await })
}

async fn delete(client: &Client, path: &str) -> u16 {
    client.try_send(Method::DELETE, path, Bytes::new()).await.unwrap().status
}

async fn is_unknown_to(client: &Client, id: &str, fields: Value) {
    let mut continued = request(RESPONSES, "Go on", fields);
    continued["previous_response_id"] = id.into();
    let refused = client.post(RESPONSES, continued.to_string()).await;
    assert_eq!(refused.status, 400, "{}", refused.json());
    assert_eq!(refused.json()["error"]["param"], "previous_response_id");
}

#[tokio::test]
async fn a_stored_response_belongs_to_the_user_whom_the_header_names() {
    let keys = format!("keys: [{{name: webui, sha256: {ADA}, users: header}}]\n");
    let gateway = Gateway::start_with_keys(&keys, "").await;
    let webui = gateway.client.with_key(Some("key-of-ada"));
    let (ada, eve) = (webui.with_header("x-user-id", "ada"), webui.with_header("x-user-id", "eve"));
    let mut a = gateway.node("a", 1).await;
    let id = stored_by(&ada, &mut a, json!({})).await;
    let path = format!("{RESPONSES}/{id}");
    for other in [&eve, &webui] {
        assert_eq!(other.get(&path).await.status, 404);
        assert_eq!(other.get(&format!("{path}/input_items")).await.status, 404);
        assert_eq!(delete(other, &path).await, 404);
        is_unknown_to(other, &id, json!({"user": "ada"})).await;
    }
    let continued =
        post(&ada, json!({"model": "flotilla-demo", "input": "b", "previous_response_id": id}));
    a.asked().await.answer("More");
    assert_eq!(continued.await.unwrap().status, 200);
    let long = webui.with_header("x-user-id", &"x".repeat(513));
    assert_eq!(long.get(&path).await.status, 400);
    assert_eq!(ada.get(&path).await.status, 200);
    assert_eq!(delete(&ada, &path).await, 200);
    assert_eq!(ada.get(&path).await.status, 404);
}

#[tokio::test]
async fn a_stored_response_is_continued_by_the_user_whom_the_body_names_and_read_with_the_key() {
    let gateway = gateway("").await;
    let webui = gateway.client.with_key(Some("key-of-ada"));
    let mut a = gateway.node("a", 1).await;
    let id = stored_by(&webui, &mut a, json!({"safety_identifier": "ada"})).await;
    for other in [json!({"user": "eve"}), json!({}), json!({"prompt_cache_key": "ada"})] {
        is_unknown_to(&webui, &id, other).await;
    }
    let mut continued = request(RESPONSES, "Go on", json!({"user": "ada"}));
    continued["previous_response_id"] = id.clone().into();
    let continued = post(&webui, continued);
    a.asked().await.answer("More");
    assert_eq!(continued.await.unwrap().status, 200);
    // These requests have no body to name a user in.
    let path = format!("{RESPONSES}/{id}");
    assert_eq!(webui.get(&path).await.status, 200);
    assert_eq!(delete(&webui, &path).await, 200);
}
