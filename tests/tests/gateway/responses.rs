//! OpenAI's Responses API at the gateway: nodes see chat completions, clients see responses.

use bytes::Bytes;
use fleet_tests::client::{Answer, Client};
use fleet_tests::mock_node::{MockNode, reasoning_text_and_call};
use fleet_tests::process::run;
use hyper::Method;
use inference_protocol::resume::Usage;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Gateway;

const PATH: &str = "/v1/responses";
const USAGE: Usage = Usage { prompt: 9, completion: 5, cached: 0 };

fn asks(client: &Client, fields: Value) -> JoinHandle<Answer> {
    let mut request = json!({"model": "flotilla-demo", "input": "Hi"});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let client = client.clone();
    tokio::spawn(async move { client.post(PATH, request.to_string()).await })
}

async fn delete(client: &Client, path: &str) -> u16 {
    client.try_send(Method::DELETE, path, Bytes::new()).await.unwrap().status
}

/// Replaces what differs from one response to the next: ids and times.
fn anonymous(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|name, _| !name.ends_with("_at"));
            for (name, value) in map {
                let is_id = name == "id" || name == "item_id";
                if is_id { *value = "id".into() } else { anonymous(value) }
            }
        }
        Value::Array(list) => list.iter_mut().for_each(anonymous),
        _ => {}
    }
}

/// The events of a stream, in order.
fn events(body: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(body).unwrap();
    let events = text.split_terminator("\n\n").filter(|event| !event.starts_with(':'));
    let events = events.enumerate().map(|(number, event)| {
        let (name, data) = event.split_once('\n').unwrap();
        let mut data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        assert_eq!(data["sequence_number"], number, "{event}");
        anonymous(&mut data);
        data
    });
    events.collect()
}

async fn streamed_with_loss(lost: usize) -> Vec<Value> {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let tools = json!([{"type": "function", "name": "weather", "parameters": {"type": "object"}}]);
    let asking = asks(&gateway.client, json!({"stream": true, "tools": tools}));
    let asked = a.asked().await;
    assert_eq!(asked.body["tools"][0]["function"]["name"], "weather");
    let (stream, parts) = (asked.stream(), reasoning_text_and_call());
    let mut other = None;
    if lost >= parts.len() {
        stream.say_all(&parts, USAGE).await;
    } else {
        for (index, (delta, finish)) in parts[..lost].iter().enumerate() {
            stream.say_delta(index as u32, delta, finish).await;
        }
        let b: &mut MockNode = other.insert(gateway.node("b", 1).await);
        drop(stream);
        b.asked().await.stream().say_all(&parts[lost..], USAGE).await;
    }
    let answer = asking.await.unwrap();
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"), "before {lost}: {text}");
    gateway.is_idle().await;
    events(&answer.body)
}

#[tokio::test]
async fn a_response_continues_on_another_node_wherever_the_first_is_lost() {
    let whole = streamed_with_loss(usize::MAX).await;
    assert_eq!(whole[0]["type"], "response.created");
    let last = whole.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    let output = last["response"]["output"].as_array().unwrap();
    let kinds: Vec<_> = output.iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    assert_eq!(output[2]["arguments"], "{\"city\": \"Köln\"}");
    for lost in 0..reasoning_text_and_call().len() {
        assert_eq!(streamed_with_loss(lost).await, whole, "lost before part {lost}");
    }
}

#[tokio::test]
async fn a_conversation_continues_from_a_stored_response_until_it_is_deleted() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let client = &gateway.client;
    let asking = asks(client, json!({"instructions": "Be brief."}));
    a.asked().await.answer("Hello");
    let first = asking.await.unwrap().json();
    let id = first["id"].as_str().unwrap();
    assert_eq!(first["output"][0]["content"][0]["text"], "Hello");
    assert_eq!(client.get(&format!("{PATH}/{id}")).await.json(), first);
    let items = client.get(&format!("{PATH}/{id}/input_items")).await.json();
    assert_eq!(items["data"][0]["content"][0]["text"], "Hi");

    let asking = asks(client, json!({"previous_response_id": id, "input": "And?", "stream": true}));
    let asked = a.asked().await;
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let expected = [message("user", "Hi"), message("assistant", "Hello"), message("user", "And?")];
    assert_eq!(asked.body["messages"], json!(expected), "instructions are not carried over");
    let said = [(json!({"content": "Well."}), json!("stop"))];
    asked.stream().say_all(&said, USAGE).await;
    let streamed = asking.await.unwrap();
    let text = String::from_utf8_lossy(&streamed.body);
    let second = text.split("\"id\":\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(client.get(&format!("{PATH}/{second}")).await.status, 200, "streams are stored");

    assert_eq!(delete(client, &format!("{PATH}/{id}")).await, 200);
    let gone = client.get(&format!("{PATH}/{id}")).await;
    assert_eq!((gone.status, gone.error_code().as_str()), (404, "response_not_found"));
    let refused = asks(client, json!({"previous_response_id": id})).await.unwrap();
    assert_eq!(refused.json()["error"]["param"], "previous_response_id");
    let cancel = client.post(&format!("{PATH}/{second}/cancel"), "").await;
    assert_eq!(cancel.status, 400);
    let metrics = gateway.admin.get("/metrics").await.body;
    assert!(String::from_utf8_lossy(&metrics).contains("\ngateway_stored_responses 1\n"));
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_response_that_shall_not_be_stored_or_is_too_large_is_not() {
    let gateway = Gateway::start("limits: {stored_bytes_per_tenant_max: 5000}\n").await;
    let mut a = gateway.node("a", 1).await;
    for (fields, text, is_stored) in [
        (json!({"store": false}), "Hello", false),
        (json!({}), "Hello", true),
        (json!({}), &*"x".repeat(5000), false),
    ] {
        let asking = asks(&gateway.client, fields);
        a.asked().await.answer(text);
        let response = asking.await.unwrap().json();
        let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
        let status = gateway.client.get(&path).await.status;
        assert_eq!(status == 200, is_stored, "{} bytes", text.len());
    }
}

#[tokio::test]
async fn a_response_belongs_to_its_tenant() {
    let made = |name| run("flotilla-gateway", &["key", "new", "--name", name]).stdout;
    let (first, second) = (made("ada"), made("bob"));
    let (ada, entry) = first.split_once("keys:\n").unwrap();
    let (bob, more) = second.split_once("keys:\n").unwrap();
    let gateway = Gateway::start_with_keys(&format!("keys:\n{entry}{more}"), "").await;
    let client = |head: &str| gateway.client.with_key(head.lines().nth(1));
    let (ada, bob) = (client(ada), client(bob));
    let mut a = gateway.node("a", 1).await;
    let asking = asks(&ada, json!({}));
    a.asked().await.answer("Hello");
    let response = asking.await.unwrap().json();
    let id = response["id"].as_str().unwrap();
    let path = format!("{PATH}/{id}");
    assert_eq!(ada.get(&path).await.status, 200);
    assert_eq!(bob.get(&path).await.status, 404);
    assert_eq!(gateway.client.get(&path).await.status, 401);
    assert_eq!(delete(&bob, &path).await, 404);
    let refused = asks(&bob, json!({"previous_response_id": id})).await.unwrap();
    assert_eq!(refused.json()["error"]["param"], "previous_response_id");
}
