//! Responses in the background: `background: true`, what is known of them while they are made, and
//! how they go on when the gateway does not.

use fleet_tests::client::Client;
use fleet_tests::events::Events;
use fleet_tests::eventually;
use fleet_tests::mock_node::{Asked, Streaming};
use fleet_tests::process::{Folder, metric};
use hyper::Method;
use inference_protocol::resume::ResumedChoice;
use serde_json::{Value, json};

use super::Gateway;
use super::batches::{ADA, Kept};

const PATH: &str = "/v1/responses";

fn request(fields: &Value) -> Value {
    let mut request = json!({"model": "flotilla-demo", "input": "Hi", "background": true});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

/// The response, as it was when it was asked for.
async fn queued(client: &Client, fields: Value) -> Value {
    let answer = client.post(PATH, request(&fields).to_string()).await;
    let response = answer.json();
    assert_eq!((answer.status, &response["status"]), (200, &json!("queued")), "{response}");
    assert_eq!((&response["background"], &response["output"]), (&json!(true), &json!([])));
    response
}

async fn id_of(client: &Client, fields: Value) -> String {
    queued(client, fields).await["id"].as_str().unwrap().into()
}

async fn known(client: &Client, id: &str) -> Value {
    client.get(&format!("{PATH}/{id}")).await.json()
}

/// The response, once it has this status.
async fn becomes(client: &Client, id: &str, status: &str) -> Value {
    eventually(status, async || {
        let response = known(client, id).await;
        (response["status"] == status).then_some(response)
    })
    .await
}

async fn events(client: &Client, id: &str, after: Option<usize>) -> Events {
    let after = after.map(|number| format!("&starting_after={number}")).unwrap_or_default();
    let path = format!("{PATH}/{id}?stream=true{after}");
    Events::ask(client, Method::GET, &path, "").await.unwrap()
}

async fn asks_for_stream(client: &Client, fields: Value) -> Events {
    let mut fields = fields;
    fields["stream"] = true.into();
    let body = request(&fields).to_string();
    Events::ask(client, Method::POST, PATH, &body).await.unwrap()
}

/// Says "Hel" with two tokens.
async fn says_first(asked: Asked) -> Streaming {
    assert_eq!(asked.body["stream"], true, "events tell how far it is");
    let stream = asked.stream();
    stream.say_marked(&[1], "H").await;
    stream.say_marked(&[2], "el").await;
    stream
}

/// Says "lo", and ends.
async fn says_rest(stream: Streaming) {
    stream.say_delta(3, &json!({"content": "lo"}), &json!("stop")).await;
    let used = json!({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}});
    stream.close(format!(": u 9 3 0\ndata: {used}\n\ndata: [DONE]\n\n")).await;
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap()
}

/// Events without what differs from one response to the next.
fn anonymous(events: &[Value]) -> Vec<Value> {
    let mut events = events.to_vec();
    for event in &mut events {
        for path in ["/response/completed_at", "/response/usage"] {
            if let Some(value) = event.pointer_mut(path) {
                *value = Value::Null;
            }
        }
    }
    events
}

fn numbers(events: &[Value]) -> Vec<u64> {
    events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect()
}

async fn delete(client: &Client, id: &str) -> u16 {
    let path = format!("{PATH}/{id}");
    client.try_send(Method::DELETE, &path, "".into()).await.unwrap().status
}

async fn cancel(client: &Client, id: &str) -> (u16, Value) {
    let answer = client.post(&format!("{PATH}/{id}/cancel"), "").await;
    (answer.status, answer.json())
}

async fn ended(gateway: &Gateway, outcome: &str) -> f64 {
    let name = format!("gateway_background_tasks_total{{outcome=\"{outcome}\"}}");
    metric(&gateway.admin, &name).await
}

#[tokio::test]
async fn a_response_in_the_background_is_made_after_its_client_has_left() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let first = queued(&kept.ada, json!({"metadata": {"a": "b"}})).await;
    let id = first["id"].as_str().unwrap();
    assert_eq!(known(&kept.ada, id).await, first);
    let active = "gateway_background_tasks_active";
    eventually("it to be counted", async || {
        (metric(&kept.gateway.admin, active).await == 1.0).then_some(())
    })
    .await;
    assert_eq!(kept.bob.get(&format!("{PATH}/{id}")).await.status, 404);

    let mut node = kept.gateway.node("a", 1).await;
    let asked = node.asked().await;
    assert_eq!(
        (asked.tenant.as_str(), &asked.body["messages"][0]["content"]),
        ("ada", &json!("Hi"))
    );
    let stream = says_first(asked).await;
    becomes(&kept.ada, id, "in_progress").await;
    says_rest(stream).await;
    let done = becomes(&kept.ada, id, "completed").await;
    assert_eq!((text(&done), &done["metadata"]), ("Hello", &json!({"a": "b"})));
    assert_eq!((&done["id"], &done["created_at"]), (&first["id"], &first["created_at"]));
    assert_eq!(done["usage"]["output_tokens"], 3);
    let items = kept.ada.get(&format!("{PATH}/{id}/input_items")).await.json();
    assert_eq!(items["data"][0]["content"][0]["text"], "Hi");
    eventually("its end to be counted", async || {
        let is_over = metric(&kept.gateway.admin, active).await == 0.0;
        (is_over && ended(&kept.gateway, "completed").await == 1.0).then_some(())
    })
    .await;
    kept.gateway.is_idle().await;
    assert_eq!(delete(&kept.bob, id).await, 404);
    assert_eq!(delete(&kept.ada, id).await, 200);
    assert_eq!(kept.ada.get(&format!("{PATH}/{id}")).await.status, 404);
    assert_eq!(delete(&kept.ada, id).await, 404);
}

#[tokio::test]
async fn its_events_can_be_read_from_any_number_on_at_any_time() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let mut first = asks_for_stream(&kept.ada, json!({})).await;
    let created = first.next().await.unwrap();
    assert_eq!(created["type"], "response.created");
    let id = created["response"]["id"].as_str().unwrap().to_string();
    assert_eq!(first.next().await.unwrap()["type"], "response.queued");
    let stream = says_first(node.asked().await).await;
    while first.next().await.unwrap()["type"] != "response.output_text.delta" {}
    drop(first);
    let second = events(&kept.ada, &id, Some(2)).await;
    says_rest(stream).await;
    let live = second.rest().await;
    assert_eq!(numbers(&live), (3..3 + live.len() as u64).collect::<Vec<_>>());
    assert_eq!(live.last().unwrap()["type"], "response.completed");
    becomes(&kept.ada, &id, "completed").await;
    let all = events(&kept.ada, &id, None).await.rest().await;
    assert_eq!(numbers(&all), (0..all.len() as u64).collect::<Vec<_>>());
    assert_eq!(all[3..], live);
    let last = all.len() - 1;
    assert_eq!(events(&kept.ada, &id, Some(last - 1)).await.rest().await, all[last..]);
    assert!(events(&kept.ada, &id, Some(last)).await.rest().await.is_empty());
    assert!(events(&kept.ada, &id, Some(last + 9)).await.rest().await.is_empty());
    assert_eq!(events(&kept.bob, &id, None).await.status, 404);
    let wrong = kept.ada.get(&format!("{PATH}/{id}?stream=true&starting_after=x")).await;
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("starting_after")));

    // An undisturbed client of a plain response sees the same, but for when it was queued.
    kept.stop().await;
    let kept = Kept::start(folder.path(), "").await;
    assert_eq!(events(&kept.ada, &id, None).await.rest().await, all, "after a restart");
    assert_eq!(text(&known(&kept.ada, &id).await), "Hello");
}

/// Continues after "Hel", and writes all events again.
async fn continues(asked: Asked) {
    let known = ResumedChoice { tokens: vec![1, 2], events: 0, bytes: 0 };
    assert_eq!(asked.resume.choices, [known]);
    let stream = asked.stream();
    stream.say_marked(&[], "H").await;
    stream.say_marked(&[], "el").await;
    says_rest(stream).await;
}

#[tokio::test]
async fn after_a_restart_it_continues_and_its_client_misses_no_event() {
    let folder = Folder::new();
    let undisturbed = {
        let other = Folder::new();
        let kept = Kept::start(other.path(), "").await;
        let mut node = kept.gateway.node("a", 1).await;
        let reader = asks_for_stream(&kept.ada, json!({})).await;
        says_rest(says_first(node.asked().await).await).await;
        reader.rest().await
    };
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let mut reader = asks_for_stream(&kept.ada, json!({})).await;
    let asked = node.asked().await;
    let seed = asked.resume.seed;
    let stream = says_first(asked).await;
    let mut seen = Vec::new();
    while seen.iter().filter(|e: &&Value| e["type"] == "response.output_text.delta").count() < 2 {
        seen.push(reader.next().await.unwrap());
    }
    let id = seen[0]["response"]["id"].as_str().unwrap().to_string();
    kept.stop().await;
    stream.is_given_up().await;
    assert!(reader.next().await.is_none(), "no end is made up");

    let kept = Kept::start(folder.path(), "").await;
    let reader = events(&kept.ada, &id, Some(seen.len() - 1)).await;
    let mut node = kept.gateway.node("b", 1).await;
    let asked = node.asked().await;
    assert_eq!(asked.resume.seed, seed);
    continues(asked).await;
    seen.extend(reader.rest().await);
    assert_eq!(numbers(&seen), (0..seen.len() as u64).collect::<Vec<_>>());
    assert_eq!(anonymous(&seen).len(), undisturbed.len());
    let names = |events: &[Value]| -> Vec<(Value, Value)> {
        events.iter().map(|event| (event["type"].clone(), event["delta"].clone())).collect()
    };
    assert_eq!(names(&seen), names(&undisturbed));
    assert_eq!(seen.last().unwrap()["response"]["created_at"], seen[0]["response"]["created_at"]);
    let done = becomes(&kept.ada, &id, "completed").await;
    assert_eq!(text(&done), "Hello");
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn a_conversation_continues_in_the_next_process() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let id = id_of(&kept.ada, json!({})).await;
    says_rest(says_first(node.asked().await).await).await;
    becomes(&kept.ada, &id, "completed").await;
    kept.stop().await;
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let next = json!({"model": "flotilla-demo", "input": "And?", "previous_response_id": id});
    let refused = kept.bob.post(PATH, next.to_string()).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("previous_response_id"))
    );
    let (ada, body) = (kept.ada.clone(), next.to_string());
    let asking = tokio::spawn(async move { ada.post(PATH, body).await });
    let asked = node.asked().await;
    let said: Vec<_> =
        asked.body["messages"].as_array().unwrap().iter().map(|m| m["content"].clone()).collect();
    assert_eq!(said, ["Hi", "Hello", "And?"]);
    asked.answer("So.");
    assert_eq!(text(&asking.await.unwrap().json()), "So.");
}

#[tokio::test]
async fn what_a_response_continues_may_be_gone_when_it_is_made() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let (ada, body) = (kept.ada.clone(), json!({"model": "flotilla-demo", "input": "One"}));
    let asking = tokio::spawn(async move { ada.post(PATH, body.to_string()).await });
    node.asked().await.answer("Two");
    let plain = asking.await.unwrap().json();
    let reference = json!({"type": "item_reference", "id": plain["output"][0]["id"]});
    drop(node);
    eventually("the node to be gone", async || {
        (kept.gateway.health("/nodes/ready").await == 0).then_some(())
    })
    .await;
    let next = json!({"previous_response_id": plain["id"], "input": "Three"});
    id_of(&kept.ada, next).await;
    let other = json!({"input": [reference, {"role": "user", "content": "Four"}]});
    id_of(&kept.ada, other).await;
    kept.stop().await;

    // It has kept no plain response.
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let mut said = Vec::new();
    for _ in 0..2 {
        let asked = node.asked().await;
        let messages = asked.body["messages"].as_array().unwrap().iter();
        let texts = messages.map(|message| message["content"].as_str().unwrap().to_string());
        said.push(texts.collect::<Vec<_>>().join(" "));
        says_rest(asked.stream()).await;
    }
    said.sort();
    assert_eq!(said, ["One Two Three", "Two Four"]);
}

#[tokio::test]
async fn a_response_can_be_canceled_until_it_has_ended() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let waiting = id_of(&kept.ada, json!({"stream": false})).await;
    assert_eq!(cancel(&kept.bob, &waiting).await.0, 404);
    let (status, canceled) = cancel(&kept.ada, &waiting).await;
    assert_eq!((status, &canceled["status"]), (200, &json!("cancelled")), "{canceled}");
    assert_eq!(cancel(&kept.ada, &waiting).await.1["status"], "cancelled", "twice is once");

    let mut node = kept.gateway.node("a", 1).await;
    let mut reader = asks_for_stream(&kept.ada, json!({})).await;
    let id = reader.next().await.unwrap()["response"]["id"].as_str().unwrap().to_string();
    let stream = says_first(node.asked().await).await;
    becomes(&kept.ada, &id, "in_progress").await;
    assert_eq!(cancel(&kept.ada, &id).await.1["status"], "cancelled");
    stream.is_given_up().await;
    let last = reader.rest().await.pop().unwrap();
    assert_eq!(last["type"], "response.cancelled");
    assert_eq!(known(&kept.ada, &id).await["status"], "cancelled");

    let done = id_of(&kept.ada, json!({})).await;
    says_rest(says_first(node.asked().await).await).await;
    becomes(&kept.ada, &done, "completed").await;
    let (status, refused) = cancel(&kept.ada, &done).await;
    assert_eq!(status, 400, "{refused}");
    assert_eq!(cancel(&kept.ada, "resp_0").await.0, 404);
    eventually("two to be counted", async || {
        (ended(&kept.gateway, "canceled").await == 2.0).then_some(())
    })
    .await;

    // Deleting ends it as well.
    let deleted = id_of(&kept.ada, json!({})).await;
    let stream = says_first(node.asked().await).await;
    assert_eq!(delete(&kept.ada, &deleted).await, 200);
    stream.is_given_up().await;
    assert_eq!(kept.ada.get(&format!("{PATH}/{deleted}")).await.status, 404);
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn the_stream_of_a_response_that_is_deleted_before_its_turn_ends() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), ", background_concurrent_per_tenant_max: 1").await;
    let mut node = kept.gateway.node("a", 1).await;
    id_of(&kept.ada, json!({})).await;
    let _first = node.asked().await;
    let mut reader = asks_for_stream(&kept.ada, json!({})).await;
    let id = reader.next().await.unwrap()["response"]["id"].as_str().unwrap().to_string();
    assert_eq!(delete(&kept.ada, &id).await, 200);
    let rest = reader.rest().await;
    assert_eq!(rest.last().unwrap()["type"], "response.queued");
}

#[tokio::test]
async fn what_cannot_be_made_is_refused_or_fails() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), ", background_per_tenant_max: 2").await;
    for (fields, param) in [
        (json!({"store": false}), "store"),
        (json!({"background": "yes"}), "background"),
        (json!({"input": 7}), "input"),
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
    ] {
        let refused = kept.ada.post(PATH, request(&fields).to_string()).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
    }
    let failing = id_of(&kept.ada, json!({})).await;
    let other = id_of(&kept.ada, json!({})).await;
    let full = kept.ada.post(PATH, request(&json!({})).to_string()).await;
    assert_eq!((full.status, full.error_code().as_str()), (429, "too_many_tasks"));
    id_of(&kept.bob, json!({})).await;
    let whole = kept.ada.get(&format!("{PATH}/{failing}?stream=true")).await;
    assert_eq!((whole.status, &whole.json()["error"]["param"]), (400, &json!("stream")));

    let mut node = kept.gateway.node("a", 8).await;
    for _ in 0..3 {
        let error = json!({"error": {"message": "too long", "type": "invalid_request_error",
            "param": null, "code": "context_length_exceeded"}});
        node.asked().await.reply(400, "application/json", error.to_string());
    }
    let failed = becomes(&kept.ada, &failing, "failed").await;
    assert_eq!(failed["error"], json!({"code": "invalid_prompt", "message": "too long"}));
    becomes(&kept.ada, &other, "failed").await;
    let next = json!({"previous_response_id": failing});
    let refused = kept.ada.post(PATH, request(&next).to_string()).await;
    assert_eq!(refused.status, 400, "a response that failed has no turn to continue");

    let plain = Gateway::start("").await;
    let refused = plain.client.post(PATH, request(&json!({})).to_string()).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (403, "store_disabled"));
    assert_eq!(plain.client.get(&format!("{PATH}/resp_1?stream=true")).await.status, 404);
}

#[tokio::test]
async fn a_node_that_fails_is_asked_again_later_and_the_same_response_goes_on() {
    let folder = Folder::new();
    let kept = Kept::start_beside(folder.path(), "retries_max: 0\n").await;
    let mut node = kept.gateway.node("a", 1).await;
    let mut reader = asks_for_stream(&kept.ada, json!({})).await;
    let id = reader.next().await.unwrap()["response"]["id"].as_str().unwrap().to_string();
    let stream = says_first(node.asked().await).await;
    while reader.next().await.unwrap()["delta"] != "el" {}
    // No other node takes it over in time.
    stream.fails("engine_error").await;
    continues(node.asked().await).await;
    let rest = reader.rest().await;
    assert_eq!(rest[0]["delta"], "lo", "{rest:?}");
    assert_eq!(text(&becomes(&kept.ada, &id, "completed").await), "Hello");
    let retries = "gateway_background_task_retries_total";
    assert_eq!(metric(&kept.gateway.admin, retries).await, 1.0);
}

#[tokio::test]
async fn a_key_with_limits_keeps_them_and_counts_each_response_once() {
    let folder = Folder::new();
    let key = format!("{{name: ada, sha256: {ADA}, requests_per_minute: 2, concurrent_max: 1}}, ");
    let kept = Kept::start_with(folder.path(), "", &key).await;
    let [one, two] = [id_of(&kept.ada, json!({})).await, id_of(&kept.ada, json!({})).await];
    let mut node = kept.gateway.node("a", 4).await;
    let third = kept.ada.post(PATH, request(&json!({})).to_string()).await;
    assert_eq!((third.status, third.error_code().as_str()), (429, "rate_limit_exceeded"));
    let stream = says_first(node.asked().await).await;
    assert!(node.is_asked().is_none(), "one at a time");
    says_rest(stream).await;
    says_rest(says_first(node.asked().await).await).await;
    for id in [one, two] {
        assert_eq!(text(&becomes(&kept.ada, &id, "completed").await), "Hello");
    }
}

#[tokio::test]
async fn the_response_to_a_key_that_is_gone_fails() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let id = id_of(&kept.ada, json!({})).await;
    kept.stop().await;
    let kept = Kept::start_with(folder.path(), "", "").await;
    eventually("it to fail", async || (ended(&kept.gateway, "failed").await == 1.0).then_some(()))
        .await;
    kept.stop().await;
    let kept = Kept::start(folder.path(), "").await;
    let failed = known(&kept.ada, &id).await;
    assert_eq!(failed["status"], "failed", "{failed}");
}
