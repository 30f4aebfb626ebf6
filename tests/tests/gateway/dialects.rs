//! External endpoints that speak OpenAI's API as engines do, with the quirks that they document.
//! Clients of every API get what OpenAI's, Anthropic's and ours promise.

use fleet_tests::client::Answer;
use fleet_tests::mock_node::MockNode;
use fleet_tests::{chat, eventually, streamed};
use inference_protocol::sse::{data, payloads};
use serde_json::{Value, json};

use super::{Gateway, posts};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const DONE: &str = "data: [DONE]\n\n";
/// One for a token of a prompt, ten for one of a response.
const PRICES: &str = "prompt_price_per_million: 1000000, completion_price_per_million: 10000000";

/// A gateway whose only endpoint is external, at this base path.
async fn gateway_at(path: &str) -> (Gateway, MockNode) {
    let (url, engine) = MockNode::external().await;
    let url = url.replace("/v1", path);
    let entry = format!("{{name: engine, url: '{url}', models: [flotilla-demo], {PRICES}}}");
    let gateway = Gateway::start(&format!("external: [{entry}]\n")).await;
    eventually("the endpoint to be ready", async || {
        (gateway.health("/external/ready").await == 1).then_some(())
    })
    .await;
    (gateway, engine)
}

/// A request of an API.
fn request(path: &str, is_streamed: bool) -> Value {
    match path {
        RESPONSES => json!({"model": "flotilla-demo", "input": "Hi", "stream": is_streamed}),
        MESSAGES => {
            let mut request = chat("Hi");
            (request["max_tokens"], request["stream"]) = (50.into(), is_streamed.into());
            request
        }
        _ if is_streamed => {
            let mut request = streamed(chat("Hi"));
            request["stream_options"] = json!({"include_usage": true});
            request
        }
        _ => chat("Hi"),
    }
}

/// A client's response to a stream that the engine writes in pieces.
async fn streamed_to(path: &'static str, pieces: &[&str]) -> Answer {
    let (gateway, mut engine) = gateway_at("/v1").await;
    let asking = posts(&gateway, path, request(path, true));
    let stream = engine.asked().await.stream();
    for piece in pieces {
        // The end may come before the engine has written all.
        stream.offer(piece.to_string()).await;
    }
    drop(stream);
    asking.await.unwrap()
}

/// A client's response to a whole response.
async fn whole_to(path: &'static str, status: u16, body: &Value) -> Answer {
    let (gateway, mut engine) = gateway_at("/v1").await;
    let asking = posts(&gateway, path, request(path, false));
    engine.asked().await.reply(status, "application/json", body.to_string());
    asking.await.unwrap()
}

/// The payloads of a stream.
fn events(answer: &Answer) -> Vec<Value> {
    let body = String::from_utf8_lossy(&answer.body);
    assert_eq!(answer.header("content-type"), Some("text/event-stream"), "{body}");
    let payloads = payloads(&answer.body).filter(|payload| *payload != b"[DONE]");
    payloads.map(|payload| serde_json::from_slice(payload).expect(&body)).collect()
}

fn chunk(delta: &Value, finish: &Value) -> String {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
    data(&json!({"object": "chat.completion.chunk", "choices": [choice]}).to_string())
}

fn text(text: &str) -> String {
    chunk(&json!({ "content": text }), &Value::Null)
}

fn usage_event(prompt: u64, completion: u64) -> String {
    let usage = json!({"prompt_tokens": prompt, "completion_tokens": completion,
        "total_tokens": prompt + completion});
    data(&json!({"choices": [], "usage": usage}).to_string())
}

/// Text, end and usage of a response, as the API's clients find them.
fn told(path: &str, events: &[Value]) -> (String, String, (u64, u64)) {
    let pick = |pointer: &str| -> Vec<&Value> {
        events.iter().filter_map(|event| event.pointer(pointer)).filter(|v| !v.is_null()).collect()
    };
    let text = |pointer: &str| pick(pointer).iter().filter_map(|v| v.as_str()).collect::<String>();
    let count = |pointer: &str| {
        let all = pick(pointer);
        all.last().and_then(|v| v.as_u64()).unwrap_or_else(|| panic!("{pointer}: {events:?}"))
    };
    match path {
        RESPONSES => {
            let deltas =
                events.iter().filter(|event| event["type"] == "response.output_text.delta");
            let text = deltas.filter_map(|event| event["delta"].as_str()).collect();
            let last = events.last().unwrap();
            let usage = &last["response"]["usage"];
            let counts = (usage["input_tokens"].as_u64(), usage["output_tokens"].as_u64());
            let end = last["response"]["status"].as_str().unwrap_or_default().to_string();
            (text, end, (counts.0.unwrap(), counts.1.unwrap()))
        }
        MESSAGES => {
            let counts = (count("/usage/input_tokens"), count("/usage/output_tokens"));
            (text("/delta/text"), text("/delta/stop_reason"), counts)
        }
        _ => {
            let counts = (count("/usage/prompt_tokens"), count("/usage/completion_tokens"));
            assert_eq!(pick("/usage").len(), 1, "usage is told once: {events:?}");
            (text("/choices/0/delta/content"), text("/choices/0/finish_reason"), counts)
        }
    }
}

/// What each API calls the end of a response.
fn ends(reason: &str) -> [(&'static str, &'static str); 3] {
    match reason {
        "length" => [(CHAT, "length"), (RESPONSES, "incomplete"), (MESSAGES, "max_tokens")],
        _ => [(CHAT, "stop"), (RESPONSES, "completed"), (MESSAGES, "end_turn")],
    }
}

#[tokio::test]
async fn the_base_path_of_an_endpoint_may_be_any() {
    // OpenVINO Model Server has /v3; proxies have anything.
    for base in ["/v3", "/v1", "/openai/deployments/one", ""] {
        let (gateway, mut engine) = gateway_at(base).await;
        let asking = gateway.asks("Hi");
        let asked = engine.asked().await;
        assert_eq!(asked.path, format!("{base}/chat/completions"));
        asked.answer("Hello");
        assert_eq!(asking.await.unwrap().content(), "Hello");
    }
}

#[tokio::test]
async fn comments_and_line_ends_of_an_endpoint_change_nothing() {
    let event = text("Hello").trim_end().to_string();
    let pieces = [
        ": ping\r\n\r\n",
        "\n\n",
        // No resume mark: only nodes write those.
        ": t 0 5,6\n\n",
        &format!(
            ": ping\r\nid: 7\r\nevent: message\r\n{}\r\n\r\n",
            event.replace("data: ", "data:")
        ),
        ": ping - 2026-01-01\r\n\r\n\r\n\r\n",
        &chunk(&json!({}), &json!("stop")).replace('\n', "\r\n"),
        &usage_event(3, 1).replace('\n', "\r\n"),
        "data: [DONE]\r\n\r\n",
        ": after the end\n\n",
    ];
    for (path, end) in ends("stop") {
        let answer = streamed_to(path, &pieces).await;
        let body = String::from_utf8_lossy(&answer.body).to_string();
        assert!(!body.contains('\r') && !body.contains(": t ") && !body.contains("ping"), "{body}");
        assert_eq!(told(path, &events(&answer)), ("Hello".into(), end.into(), (3, 1)));
    }
}

#[tokio::test]
async fn every_end_of_a_response_has_the_name_of_the_clients_api() {
    for (finish, reason) in [
        (json!("eos_token"), "stop"),
        (json!("stop_sequence"), "stop"),
        (json!(""), "stop"),
        (Value::Null, "stop"),
        (json!("max_tokens"), "length"),
        (json!("length"), "length"),
    ] {
        for (path, end) in ends(reason) {
            let pieces = [&text("Hello"), &chunk(&json!({}), &finish), &usage_event(3, 2), DONE];
            let (_, told, _) = told(path, &events(&streamed_to(path, &pieces).await));
            assert_eq!(told, end, "{finish} at {path}");
            let message = json!({"role": "assistant", "content": "Hello"});
            let choice = json!({"index": 0, "message": message, "finish_reason": finish});
            let body = whole_to(path, 200, &json!({ "choices": [choice] })).await.json();
            let told = match path {
                RESPONSES => &body["status"],
                MESSAGES => &body["stop_reason"],
                _ => &body["choices"][0]["finish_reason"],
            };
            assert_eq!(*told, end, "{finish} at {path}");
        }
    }
}

#[tokio::test]
async fn a_response_that_its_engine_gave_up_is_no_success() {
    let aborted = chunk(&json!({}), &json!("abort"));
    let answer = streamed_to(CHAT, &[&text("Hel"), &aborted, DONE]).await;
    assert_eq!(events(&answer).last().unwrap()["error"]["code"], "external_failed");
    // Nothing has come of it yet: another endpoint does it.
    let (gateway, mut engine) = gateway_at("/v1").await;
    let asking = gateway.streams("Hi");
    let asked = engine.asked().await;
    let mut node = gateway.node("a", 1).await;
    let stream = asked.stream();
    stream.send(aborted).await;
    let stream = node.asked().await.stream();
    stream.say("Hello").await;
    stream.done().await;
    let said = asking.await.unwrap();
    assert_eq!((said.text.as_str(), said.done, said.errors.len()), ("Hello", true, 0));
}

#[tokio::test]
async fn usage_is_told_once_wherever_an_endpoint_puts_it() {
    let finish = chunk(&json!({}), &json!("stop"));
    let usage = usage_event(3, 2);
    let with_usage = |event: &str| {
        let mut payload: Value = serde_json::from_str(event["data: ".len()..].trim()).unwrap();
        payload["usage"] = json!({"prompt_tokens": 3, "completion_tokens": 2});
        data(&payload.to_string())
    };
    let hello = text("Hello");
    for pieces in [
        [&hello, &usage, &finish, DONE],
        [&hello, &finish, &usage, ""],
        [&hello, &with_usage(&finish), "", ""],
        [&with_usage(&hello), &with_usage(&finish), &usage, DONE],
    ] {
        for (path, end) in ends("stop") {
            let told = told(path, &events(&streamed_to(path, &pieces).await));
            assert_eq!(told, ("Hello".into(), end.into(), (3, 2)), "{pieces:?}");
        }
    }
}

#[tokio::test]
async fn what_an_endpoint_does_not_count_is_estimated_told_and_charged() {
    let (gateway, mut engine) = gateway_at("/v1").await;
    let mut spent = 0.0;
    for (path, _) in ends("stop") {
        let body = request(path, true);
        let asking = posts(&gateway, path, body);
        let asked = engine.asked().await;
        let stream = asked.stream();
        // A token for each chunk, and for each four bytes.
        for piece in ["a", "b", "12345678"] {
            stream.say(piece).await;
        }
        stream.send(chunk(&json!({}), &json!("stop")) + DONE).await;
        drop(stream);
        let (said, _, (prompt, completion)) = told(path, &events(&asking.await.unwrap()));
        assert_eq!((said.as_str(), completion), ("ab12345678", 4), "{path}");
        assert!(prompt > 5, "{path}: {prompt}");
        spent += prompt as f64 + 10.0 * completion as f64;
        gateway.is_idle().await;
        let overview = gateway.admin.get("/admin/v1/overview").await.json();
        assert_eq!(overview["external"][0]["spent_today"], spent, "{path}");
    }
    let message = json!({"role": "assistant", "content": "12345678"});
    let choices = json!([{"index": 0, "message": message, "finish_reason": "stop"}]);
    for usage in [json!(null), json!({}), json!({"prompt_tokens": 0, "completion_tokens": 0})] {
        let body = json!({"choices": choices, "usage": usage});
        let told = whole_to(CHAT, 200, &body).await.json()["usage"].clone();
        assert_eq!(told["completion_tokens"], 2, "{usage}");
        assert!(told["prompt_tokens"].as_u64() > Some(5), "{usage}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_pays_what_the_endpoint_has_counted() {
    let (gateway, mut engine) = gateway_at("/v1").await;
    let client = gateway.client.clone();
    let asking = tokio::spawn(async move { client.stream(&streamed(chat("Hi"))).await });
    let stream = engine.asked().await.stream();
    let choice = json!({"index": 0, "delta": {"content": "Hello"}, "finish_reason": null});
    let usage = json!({"prompt_tokens": 7, "completion_tokens": 3});
    stream.send(data(&json!({"choices": [choice], "usage": usage}).to_string())).await;
    let mut reading = asking.await.unwrap();
    assert!(reading.next_chunk().await);
    assert_eq!(reading.transcript.usage, None, "its client did not ask for it");
    drop(reading);
    stream.is_given_up().await;
    gateway.is_idle().await;
    let overview = gateway.admin.get("/admin/v1/overview").await.json();
    assert_eq!(overview["external"][0]["spent_today"], 37.0);
}

#[tokio::test]
async fn an_endpoint_is_sent_no_id_of_ours() {
    let (gateway, mut engine) = gateway_at("/v1").await;
    let asking = posts(&gateway, CHAT, request(CHAT, false));
    let asked = engine.asked().await;
    assert!(!asked.headers.contains_key("x-request-id"), "llama-cpp-python refuses all but UUIDs");
    asked.answer("yes");
    assert!(asking.await.unwrap().header("x-request-id").is_some());
}

#[tokio::test]
async fn a_stream_without_its_last_event_is_complete_once_its_choices_are() {
    let finish = chunk(&json!({}), &json!("stop"));
    let body = streamed_to(CHAT, &[&text("Hello"), &finish]).await;
    assert!(body.body.ends_with(DONE.as_bytes()));
    assert_eq!(events(&body).iter().filter(|event| event.get("error").is_some()).count(), 0);
    // The end is cut, but all is there.
    let body = streamed_to(CHAT, &[&text("Hello"), &finish, "data: [DONE]"]).await;
    assert!(body.body.ends_with(DONE.as_bytes()));
    for cut in
        ["", "data: {\"choices\":[{\"ind", "data: {\"choices\":[{\"index\":0,\"delta\":{}}]}"]
    {
        let body = streamed_to(CHAT, &[&text("Hel"), cut]).await;
        let last = events(&body).pop().unwrap();
        assert_eq!(last["error"]["code"], "node_lost", "{cut}");
    }
}

#[tokio::test]
async fn errors_of_every_form_are_ours() {
    let secret = "sk-secret at http://10.9.8.7";
    let error = json!({"message": secret, "type": "invalid_request_error", "param": "top_p"});
    let details = json!([{"loc": ["body", "top_p"], "msg": secret, "type": "float_type"}]);
    for (status, body, param) in [
        (400, json!({ "error": error }), json!("top_p")),
        (400, json!({ "error": secret }), json!(null)),
        (422, json!({"error": secret, "error_type": "validation"}), json!(null)),
        (422, json!({ "detail": details }), json!("top_p")),
        (400, json!({ "detail": secret }), json!(null)),
        (400, json!({"object": "error", "message": secret, "param": "top_p"}), json!("top_p")),
        (400, json!(secret), json!(null)),
    ] {
        for (path, _) in ends("stop") {
            let answer = whole_to(path, status, &body).await;
            let text = String::from_utf8_lossy(&answer.body).to_string();
            assert_eq!(answer.status, 400, "{path} {body}: {text}");
            assert!(!text.contains("secret") && !text.contains("10.9"), "{text}");
            if path == CHAT {
                assert_eq!(answer.error_code(), "external_refused");
                assert_eq!(answer.json()["error"]["param"], param, "{body}");
            }
        }
    }
    // A status of success does not make it one.
    for body in [
        json!({ "error": secret }),
        json!({"object": "error", "message": secret, "code": 500}),
        json!({ "detail": secret }),
        json!({ "message": secret }),
    ] {
        let answer = whole_to(CHAT, 200, &body).await;
        assert_eq!((answer.status, answer.error_code().as_str()), (502, "external_failed"));
        assert!(!String::from_utf8_lossy(&answer.body).contains("secret"));
    }
}

#[tokio::test]
async fn errors_in_a_stream_are_ours_and_end_it() {
    let secret = "sk-secret";
    for error in [
        data(&json!({"error": secret, "error_type": "generation"}).to_string()),
        data(&json!({"error": {"message": secret, "code": 500}}).to_string()),
        data(&json!({"object": "error", "message": secret}).to_string()),
        data(&json!({ "detail": secret }).to_string()),
        format!("event: error\ndata: {}\n\n", json!({ "message": secret })),
        format!("error: {}\n\n", json!({"code": 500, "message": secret})),
        format!("data: {secret}\n\n"),
    ] {
        for (path, _) in ends("stop") {
            let answer = streamed_to(path, &[&text("Hel"), &error, &text("lo"), DONE]).await;
            let body = String::from_utf8_lossy(&answer.body).to_string();
            assert!(!body.contains("secret") && !body.contains("\"lo\""), "{error}: {body}");
            let events = events(&answer);
            let last = events.last().unwrap().to_string();
            assert!(last.contains("the external endpoint failed"), "{error}: {body}");
        }
    }
}

#[tokio::test]
async fn a_stream_that_begins_with_a_refusal_costs_nothing() {
    // SGLang's, with a status of success.
    let refusal = json!({"error": {"object": "error", "message": "no", "type": "BadRequestError",
        "param": "top_p", "code": 400}});
    let (gateway, mut engine) = gateway_at("/v1").await;
    let asking = posts(&gateway, CHAT, request(CHAT, true));
    let stream = engine.asked().await.stream();
    stream.send(data(&refusal.to_string())).await;
    stream.offer(DONE).await;
    let said = asking.await.unwrap();
    assert_eq!((said.status, said.error_code().as_str()), (400, "external_refused"));
    gateway.is_idle().await;
    let overview = gateway.admin.get("/admin/v1/overview").await.json();
    assert_eq!(overview["external"][0]["spent_today"], 0.0);
}

#[tokio::test]
async fn a_prompt_that_is_too_long_for_an_engine_is_told_in_the_clients_api() {
    for error in [
        json!({"error": {"code": 400, "type": "exceed_context_size_error", "n_ctx": 64,
            "message": "the request exceeds the available context size"}}),
        json!({"error": {"message": "This model's maximum context length is 64 tokens",
            "type": "BadRequestError", "code": 400}}),
        json!({"object": "error", "message": "The input (90 tokens) is longer than the model's \
            context length (64 tokens).", "code": 400}),
        json!({"error": "Input validation error: `inputs` must have less than 64 tokens",
            "error_type": "validation"}),
    ] {
        for (path, _) in ends("stop") {
            let answer = whole_to(path, 400, &error).await;
            assert_eq!(answer.status, 400, "{error}");
            let told = answer.json()["error"].clone();
            match path {
                // By this Claude Code knows that it must compact.
                MESSAGES => {
                    assert!(told["message"].as_str().unwrap().starts_with("prompt is too long"));
                }
                _ => assert_eq!(told["code"], "context_length_exceeded", "{error}"),
            }
        }
    }
}

#[tokio::test]
async fn calls_with_one_index_or_none_stay_apart() {
    let call = |index: Option<u64>, id: &str, city: &str| {
        let function = json!({"name": "weather", "arguments": json!({"city": city}).to_string()});
        let mut call = json!({"id": id, "type": "function", "function": function});
        if let Some(index) = index {
            call["index"] = index.into();
        }
        chunk(&json!({"tool_calls": [call]}), &Value::Null)
    };
    for index in [Some(0), None] {
        let calls = [call(index, "a", "Rome"), call(index, "b", "Oslo")].concat();
        let pieces = [&calls, &chunk(&json!({}), &json!("stop")), &usage_event(3, 2), DONE];
        let all = events(&streamed_to(CHAT, &pieces).await);
        let parts = all.iter().filter_map(|event| event.pointer("/choices/0/delta/tool_calls/0"));
        let indexes: Vec<_> = parts.map(|part| part["index"].as_u64().unwrap()).collect();
        assert_eq!(indexes, [0, 1]);
        assert_eq!(told(CHAT, &all).1, "tool_calls");
        let all = events(&streamed_to(MESSAGES, &pieces).await);
        let begun = all.iter().filter(|event| event["content_block"]["type"] == "tool_use");
        assert_eq!(begun.count(), 2);
        assert_eq!(told(MESSAGES, &all).1, "tool_use");
        let all = events(&streamed_to(RESPONSES, &pieces).await);
        let done = all.iter().filter(|event| event["item"]["type"] == "function_call");
        let cities: Vec<_> = done.filter_map(|event| event["item"]["arguments"].as_str()).collect();
        assert!(cities.concat().contains("Rome\"}") && cities.concat().contains("Oslo"), "{all:?}");
    }
}
