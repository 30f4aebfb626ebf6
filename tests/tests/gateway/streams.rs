//! Streams that their clients read on: `X-Flotilla-Resumable` and `Last-Event-ID`.

use std::time::Duration;

use fleet_tests::client::{Answer, Client};
use fleet_tests::mock_node::{Asked, Streaming};
use fleet_tests::process::Folder;
use fleet_tests::{chat, eventually, streamed};
use hyper::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::batches::{ADA, Kept};
use super::jobs::count_in;

const CHAT: &str = "/v1/chat/completions";

/// Asks for a stream of a chat in the background.
fn asks(client: &Client) -> JoinHandle<Answer> {
    let client = client.with_header("x-flotilla-resumable", "true");
    tokio::spawn(async move { client.post(CHAT, streamed(chat("Hi")).to_string()).await })
}

/// Ids and data of the events of an answer.
fn events(answer: &Answer) -> Vec<(String, String)> {
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let events = text.split("\n\n").filter(|event| event.starts_with("id: "));
    let split = events.map(|event| {
        let (id, rest) = event[4..].split_once('\n').unwrap();
        let data = rest.lines().filter_map(|line| line.strip_prefix("data: "));
        (id.to_string(), data.collect::<Vec<_>>().join("\n"))
    });
    split.collect()
}

fn said(events: &[(String, String)]) -> String {
    let data = events.iter().filter_map(|(_, data)| serde_json::from_str::<Value>(data).ok());
    data.filter_map(|data| Some(data["choices"][0]["delta"]["content"].as_str()?.to_string()))
        .collect()
}

async fn says_first(asked: Asked) -> Streaming {
    let stream = asked.stream();
    stream.say_marked(&[1], "H").await;
    stream.say_marked(&[2], "el").await;
    stream
}

async fn says_rest(stream: Streaming) {
    stream.say_delta(3, &json!({"content": "lo"}), &json!("stop")).await;
    stream.close(": u 9 3 0\ndata: [DONE]\n\n").await;
}

async fn read_on(client: &Client, method: Method, path: &str, last: &str) -> Answer {
    let client = client.with_header("last-event-id", last);
    let body =
        if method == Method::POST { streamed(chat("Hi")).to_string() } else { String::new() };
    client.try_send(method, path, body.into()).await.unwrap()
}

#[tokio::test]
async fn each_event_has_an_id_after_which_a_client_reads_on() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let asked = asks(&kept.ada);
    let request = node.asked().await;
    assert_eq!(request.body["stream"], true);
    says_rest(says_first(request).await).await;
    let answer = asked.await.unwrap();
    assert_eq!(answer.status, 200);
    let id = answer.header("x-flotilla-stream").unwrap().to_string();
    let all = events(&answer);
    assert_eq!((said(&all).as_str(), all.last().unwrap().1.as_str()), ("Hello", "[DONE]"));
    let ids: Vec<String> = (0..all.len()).map(|number| format!("{id}:{number}")).collect();
    assert_eq!(all.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>(), ids);

    let path = format!("/v1/streams/{id}");
    let again = read_on(&kept.ada, Method::POST, CHAT, &ids[0]).await;
    assert_eq!(events(&again), all[1..]);
    assert_eq!(events(&read_on(&kept.ada, Method::GET, &path, &ids[1]).await), all[2..]);
    assert_eq!(events(&kept.ada.get(&path).await), all);
    assert_eq!(kept.bob.get(&path).await.status, 404);
    assert_eq!(kept.ada.get(&format!("/v1/responses/{id}")).await.status, 404);
    assert_eq!(kept.ada.get(&format!("/v1/jobs/{id}")).await.status, 404);
    let listed = kept.gateway.admin.get("/admin/v1/tasks").await.json();
    let listed = &listed["tasks"][0];
    assert_eq!((&listed["kind"], &listed["status"]), (&json!("stream"), &json!("completed")));
    let deleted = kept.ada.try_send(Method::DELETE, &path, "".into()).await.unwrap();
    assert_eq!((deleted.status, kept.ada.get(&path).await.status), (200, 404));
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn a_stream_outlives_its_client_and_its_gateway() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let asked = asks(&kept.ada);
    let mut token = 2;
    let stream = says_first(node.asked().await).await;
    asked.abort();
    // Its client has left; it goes on until what it has was stored.
    eventually("progress to be stored", async || {
        token += 1;
        stream.say_marked(&[token], "l").await;
        let sql = "SELECT count(*) FROM tasks WHERE progress IS NOT NULL";
        (count_in(folder.path(), sql) > 0).then_some(())
    })
    .await;
    let listed = kept.gateway.admin.get("/admin/v1/tasks").await.json();
    let id = listed["tasks"][0]["id"].as_str().unwrap().to_string();
    kept.stop().await;

    let kept = Kept::start(folder.path(), "").await;
    let reading = tokio::spawn({
        let (client, path) = (kept.ada.clone(), format!("/v1/streams/{id}"));
        async move { read_on(&client, Method::GET, &path, &format!("{id}:0")).await }
    });
    let mut node = kept.gateway.node("b", 1).await;
    let asked = node.asked().await;
    let known = asked.resume.choices[0].tokens.clone();
    assert!(known.len() > 2 && known.iter().zip(1..).all(|(token, place)| *token == place));
    let stream = asked.stream();
    stream.say_marked(&[], "H").await;
    stream.say_marked(&[], "el").await;
    for _ in 2..known.len() {
        stream.say_marked(&[], "l").await;
    }
    stream.say_delta(99, &json!({"content": "o"}), &json!("stop")).await;
    stream.close(": u 9 3 0\ndata: [DONE]\n\n").await;
    let rest = events(&reading.await.unwrap());
    assert_eq!(said(&rest), format!("el{}o", "l".repeat(known.len() - 2)));
    let number =
        |(id, _): &(String, String)| id.rsplit_once(':').unwrap().1.parse::<usize>().unwrap();
    assert!(rest.iter().map(number).eq(1..=rest.len()), "each once");
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn the_streams_of_other_apis_have_ids_too_and_errors_are_events_of_theirs() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let resumable = kept.ada.with_header("x-flotilla-resumable", "true");
    let body = json!({"model": "flotilla-demo", "max_tokens": 9, "stream": true,
        "messages": [{"role": "user", "content": "Hi"}]});
    let post = |path: &'static str| {
        let (client, body) = (resumable.clone(), body.to_string());
        tokio::spawn(async move { client.post(path, body).await })
    };
    let asked = post("/v1/messages");
    says_rest(says_first(node.asked().await).await).await;
    let all = events(&asked.await.unwrap());
    assert!(all.last().unwrap().1.contains("message_stop"), "{all:?}");
    assert!(all.iter().any(|(_, data)| data.contains("\"el\"")), "{all:?}");

    let asked = post("/v1/messages");
    let refused = json!({"error": {"message": "too long", "type": "invalid_request_error",
        "param": null, "code": "context_length_exceeded"}});
    node.asked().await.reply(400, "application/json", refused.to_string());
    let all = events(&asked.await.unwrap());
    let error: Value = serde_json::from_str(&all.last().unwrap().1).unwrap();
    assert_eq!(
        (&error["type"], &error["error"]["type"]),
        (&json!("error"), &json!("invalid_request_error"))
    );

    let asked = post(CHAT);
    node.asked().await.reply(400, "application/json", refused.to_string());
    let all = events(&asked.await.unwrap());
    let error: Value = serde_json::from_str(&all.last().unwrap().1).unwrap();
    assert_eq!(error["error"]["code"], "context_length_exceeded");
    kept.gateway.is_idle().await;
}

#[tokio::test]
async fn what_cannot_be_read_on_is_refused_or_as_it_always_was() {
    let folder = Folder::new();
    let kept = Kept::start(folder.path(), "").await;
    let mut node = kept.gateway.node("a", 1).await;
    let with = |value: &str| kept.ada.with_header("x-flotilla-resumable", value);
    let stream = streamed(chat("Hi")).to_string();
    assert_eq!(with("perhaps").post(CHAT, stream.clone()).await.status, 400);
    let message = json!({"role": "user", "content": "Hi"});
    let ollama = json!({"model": "flotilla-demo", "messages": [message]}).to_string();
    assert_eq!(with("true").post("/api/chat", ollama).await.status, 400);
    let mut unknown = streamed(chat("Hi"));
    unknown["model"] = "nothing".into();
    assert_eq!(with("true").post(CHAT, unknown.to_string()).await.status, 404);
    let whole = tokio::spawn({
        let client = with("true");
        async move { client.post(CHAT, chat("Hi").to_string()).await }
    });
    node.asked().await.answer("Hello");
    let whole = whole.await.unwrap();
    assert_eq!((whole.content().as_str(), whole.header("x-flotilla-stream")), ("Hello", None));
    let lost = read_on(&kept.ada, Method::POST, CHAT, "stream_0:1").await;
    assert_eq!(lost.status, 404);
    // Ids of others are none of ours.
    let other = tokio::spawn({
        let client = kept.ada.with_header("last-event-id", "17");
        async move { client.post(CHAT, chat("Hi").to_string()).await }
    });
    node.asked().await.answer("Hello");
    assert_eq!(other.await.unwrap().status, 200);
    kept.gateway.is_idle().await;
    let empty = Folder::new();
    let nobody = Kept::start(empty.path(), "").await;
    let refused = nobody.ada.with_header("x-flotilla-resumable", "true");
    let refused = refused.post(CHAT, stream.clone()).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "no_node"));
    let without = super::Gateway::start("").await;
    let _node = without.node("b", 1).await;
    let refused = without.client.with_header("x-flotilla-resumable", "true");
    let refused = tokio::time::timeout(Duration::from_secs(60), refused.post(CHAT, stream)).await;
    assert_eq!(refused.unwrap().error_code(), "store_disabled");
}

#[tokio::test]
async fn a_key_may_have_all_its_streams_read_on_unless_a_request_says_no() {
    let folder = Folder::new();
    let ada = format!("{{name: ada, sha256: {ADA}, resumable_streams: true}}, ");
    let kept = Kept::start_with(folder.path(), "", &ada).await;
    let mut node = kept.gateway.node("a", 1).await;
    let plain = |client: Client| {
        tokio::spawn(async move { client.post(CHAT, streamed(chat("Hi")).to_string()).await })
    };
    for (client, is_resumable) in [
        (kept.ada.clone(), true),
        (kept.ada.with_header("x-flotilla-resumable", "false"), false),
        (kept.bob.clone(), false),
    ] {
        let asked = plain(client);
        says_rest(says_first(node.asked().await).await).await;
        let answer = asked.await.unwrap();
        assert_eq!(answer.header("x-flotilla-stream").is_some(), is_resumable);
        assert_eq!(!events(&answer).is_empty(), is_resumable, "ids of events");
    }
    // A stream without events is as it always was.
    let message = json!({"role": "user", "content": "Hi"});
    let ollama = json!({"model": "flotilla-demo", "messages": [message]}).to_string();
    let client = kept.ada.clone();
    let asked = tokio::spawn(async move { client.post("/api/chat", ollama).await });
    says_rest(says_first(node.asked().await).await).await;
    assert_eq!(asked.await.unwrap().status, 200);
    kept.gateway.is_idle().await;
    kept.stop().await;

    let keys = format!("keys: [{{name: ada, sha256: {ADA}, resumable_streams: true}}]\n");
    let without = super::Gateway::start_with_keys(&keys, "").await;
    let mut node = without.node("b", 1).await;
    let asked = plain(without.client.with_key(Some("key-of-ada")));
    says_rest(says_first(node.asked().await).await).await;
    let answer = asked.await.unwrap();
    assert_eq!((answer.status, answer.header("x-flotilla-stream")), (200, None), "no store");
}
