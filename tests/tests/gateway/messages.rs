//! Anthropic's Messages API at the gateway: nodes see chat completions, clients see messages.

use fleet_tests::mock_node::{MockNode, reasoning_text_and_call};
use fleet_tests::process::run;
use inference_protocol::resume::Usage;
use serde_json::{Value, json};

use super::Gateway;

const USAGE: Usage = Usage { prompt: 9, completion: 5, cached: 0 };
const PATH: &str = "/v1/messages";

fn request(fields: Value) -> String {
    let mut request = json!({"model": "flotilla-demo", "max_tokens": 50,
        "messages": [{"role": "user", "content": "Hi"}]});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request.to_string()
}

/// The events of a stream, without the id of its message.
fn events(body: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(body).unwrap();
    let events = text.split_terminator("\n\n").filter(|event| !event.starts_with(':'));
    let events = events.map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let mut data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str(), "{event}");
        if let Some(message) = data.get_mut("message") {
            assert!(message["id"].as_str().unwrap().starts_with("msg_"), "{message}");
            message["id"].take();
        }
        data
    });
    events.collect()
}

/// The events of a stream whose node is lost before part `lost`; none is lost if there is no such
/// part.
async fn streamed_with_loss(lost: usize) -> Vec<Value> {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let client = gateway.client.clone();
    let asking =
        tokio::spawn(async move { client.post(PATH, request(json!({"stream": true}))).await });
    let asked = a.asked().await;
    assert_eq!(asked.body["messages"], json!([{"role": "user", "content": "Hi"}]));
    assert_eq!(asked.body["stream_options"]["include_usage"], true);
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
        let asked = b.asked().await;
        let events = asked.resume.choices.first().map_or(0, |choice| choice.events as usize);
        assert_eq!(events, lost, "the events that the client has are those of chat completions");
        asked.stream().say_all(&parts[lost..], USAGE).await;
    }
    let answer = asking.await.unwrap();
    let text = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"), "before {lost}: {text}");
    gateway.is_idle().await;
    events(&answer.body)
}

#[tokio::test]
async fn a_message_continues_on_another_node_wherever_the_first_is_lost() {
    let whole = streamed_with_loss(usize::MAX).await;
    let kinds: Vec<_> = whole.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("message_start", "message_stop"));
    let end = &whole[whole.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
    assert_eq!(
        (&end["usage"]["input_tokens"], &end["usage"]["output_tokens"]),
        (&json!(9), &json!(5))
    );
    for lost in 0..reasoning_text_and_call().len() {
        assert_eq!(streamed_with_loss(lost).await, whole, "lost before part {lost}");
    }
}

#[tokio::test]
async fn a_whole_message_is_the_translation_of_a_whole_completion() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let client = gateway.client.clone();
    let asking = tokio::spawn(async move { client.post(PATH, request(json!({}))).await });
    a.asked().await.answer("Hello");
    let answer = asking.await.unwrap();
    let message = answer.json();
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(message["content"], json!([{"type": "text", "text": "Hello"}]));
    assert_eq!(
        (&message["type"], &message["stop_reason"]),
        (&json!("message"), &json!("end_turn"))
    );
    gateway.is_idle().await;
}

#[tokio::test]
async fn errors_have_anthropics_format_wherever_they_arise() {
    let gateway = Gateway::start("").await;
    let kind = |answer: fleet_tests::client::Answer| {
        let error = answer.json();
        assert_eq!(error["type"], "error", "{error}");
        assert_eq!(error["request_id"].as_str(), answer.header("x-request-id"));
        (answer.status, error["error"]["type"].as_str().unwrap().to_string())
    };
    let expected = |status, kind: &str| (status, kind.to_string());
    let answer = gateway.client.post(PATH, "{").await;
    assert_eq!(kind(answer), expected(400, "invalid_request_error"));
    let answer = gateway.client.post(PATH, request(json!({"mcp_servers": [{}]}))).await;
    assert_eq!(kind(answer), expected(400, "invalid_request_error"));
    let mut a = gateway.node("a", 1).await;
    let answer = gateway.client.post(PATH, request(json!({"model": "other"}))).await;
    assert_eq!(kind(answer), expected(404, "not_found_error"));
    assert_eq!(kind(gateway.client.get(PATH).await), expected(405, "not_found_error"));
    let versioned = gateway.client.with_header("anthropic-version", "2023-06-01");
    for path in ["/v1/models/other", "/v1/nothing"] {
        assert_eq!(kind(versioned.get(path).await), expected(404, "not_found_error"));
        assert!(gateway.client.get(path).await.json()["type"].is_null(), "OpenAI's for others");
    }

    // A node's own refusal, before and after the head of the response.
    for fields in [json!({}), json!({"stream": true})] {
        let client = gateway.client.clone();
        let asking = tokio::spawn(async move { client.post(PATH, request(fields)).await });
        a.asked().await.refuse(400);
        let error = asking.await.unwrap();
        assert_eq!(error.json()["error"]["message"], "no");
        assert_eq!(kind(error), expected(400, "invalid_request_error"));
    }
    let client = gateway.client.clone();
    let streamed = request(json!({"stream": true}));
    let asking = tokio::spawn(async move { client.post(PATH, streamed).await });
    let stream = a.asked().await.stream();
    stream.say_marked(&[1], "Hel").await;
    stream.objects("response_format", "invalid_value").await;
    let answer = asking.await.unwrap();
    let all = events(&answer.body);
    let last = all.last().unwrap();
    assert_eq!((&last["type"], &last["error"]["message"]), (&json!("error"), &json!("no")));
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_key_may_come_in_anthropics_header() {
    let made = run("flotilla-gateway", &["key", "new", "--name", "ada"]).stdout;
    let (head, entry) = made.split_once("keys:\n").unwrap();
    let key = head.lines().nth(1).unwrap();
    let gateway = Gateway::start_with_keys(&format!("keys:\n{entry}"), "").await;
    let mut a = gateway.node("a", 1).await;
    let wrong = gateway.client.with_header("x-api-key", "nope");
    let answer = wrong.post(PATH, request(json!({}))).await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["type"]),
        (401, &json!("authentication_error"))
    );
    let right = gateway.client.with_header("x-api-key", key);
    let asking = tokio::spawn(async move { right.post(PATH, request(json!({}))).await });
    a.asked().await.answer("Hello");
    assert_eq!(asking.await.unwrap().status, 200);
}

#[tokio::test]
async fn tokens_are_counted_while_all_slots_are_busy() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let running = gateway.asks("Hi");
    let busy = a.asked().await;
    let (client, count) = (gateway.client.clone(), request(json!({})));
    let counting =
        tokio::spawn(async move { client.post("/v1/messages/count_tokens", count).await });
    let answer = r#"{"object":"response.input_tokens","input_tokens":7}"#;
    a.asked().await.reply(200, "application/json", answer.into());
    assert_eq!(counting.await.unwrap().json(), json!({"input_tokens": 7}));
    busy.answer("Hello");
    assert_eq!(running.await.unwrap().content(), "Hello");
    gateway.is_idle().await;
}

#[tokio::test]
async fn tokens_are_counted_and_texts_tokenized_without_using_any() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let client = gateway.client.clone();
    let count = json!({"model": "flotilla-demo", "messages": [{"role": "user", "content": "Hi"}]});
    let asking = tokio::spawn(async move {
        let counted = client.post("/v1/messages/count_tokens", count.to_string()).await;
        let tokenized =
            client.post("/tokenize", r#"{"model":"flotilla-demo","content":"Hi"}"#).await;
        (counted, tokenized)
    });
    let answer = r#"{"object":"response.input_tokens","input_tokens":7}"#;
    a.asked().await.reply(200, "application/json", answer.into());
    let tokens = r#"{"tokens":[1,2],"count":2,"max_model_len":8}"#;
    a.asked().await.reply(200, "application/json", tokens.into());
    let (counted, tokenized) = asking.await.unwrap();
    assert_eq!(counted.json(), json!({"input_tokens": 7}));
    assert_eq!(tokenized.body, tokens);
    let metrics = gateway.admin.get("/metrics").await.body;
    let metrics = String::from_utf8_lossy(&metrics).into_owned();
    let used = metrics
        .lines()
        .find(|line| line.starts_with("gateway_tokens_total{") && !line.ends_with(" 0"));
    assert_eq!(used, None);
    for api in ["count_tokens", "tokenize"] {
        assert!(metrics.contains(&format!("api=\"{api}\"")), "{metrics}");
    }
    gateway.is_idle().await;
}

#[tokio::test]
async fn models_are_listed_in_anthropics_format_for_its_clients() {
    let gateway = Gateway::start("").await;
    let _a = gateway.node("a", 1).await;
    let client = gateway.client.with_header("anthropic-version", "2023-06-01");
    let list = client.get("/v1/models").await.json();
    let model = json!({"type": "model", "id": "flotilla-demo", "display_name": "flotilla-demo",
        "created_at": "1970-01-01T00:00:01Z"});
    let expected = json!({"data": [model], "has_more": false,
        "first_id": "flotilla-demo", "last_id": "flotilla-demo"});
    assert_eq!(list, expected);
    assert_eq!(client.get("/v1/models/flotilla-demo").await.json(), model);
    assert_eq!(gateway.client.get("/").await.status, 200, "clients look there first");
}
