//! What every engine must do behind a gateway.

use fleet_tests::client::Client;
use fleet_tests::process::{Fleet, metric};
use fleet_tests::{chat, eventually, streamed};
use inference_protocol::sse;
use serde_json::{Value, json};

use crate::engine::{Engine, serves};

const SAYS: &str = "c-a-t";

async fn post(client: &Client, path: &str, body: &Value) -> Value {
    let said = client.post(path, body.to_string()).await;
    assert_eq!(said.status, 200, "{path}: {}", String::from_utf8_lossy(&said.body));
    said.json()
}

/// The events of a stream but `[DONE]`.
async fn events(client: &Client, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let said = client.post(path, body.to_string()).await;
    assert_eq!(said.status, 200, "{path}: {}", String::from_utf8_lossy(&said.body));
    let payloads = sse::payloads(&said.body).filter(|payload| payload != b"[DONE]");
    payloads.map(|payload| serde_json::from_slice(payload).unwrap()).collect()
}

/// A part of each event, as one text.
fn joined(events: &[Value], pointer: &str) -> String {
    events.iter().filter_map(|event| event.pointer(pointer)?.as_str()).collect()
}

fn question() -> Value {
    let mut question = chat("Spell cat.");
    question["max_tokens"] = 20.into();
    question
}

/// Chats, whole and streamed, say the same, and count the same if the engine counts streams.
pub async fn chats(fleet: &Fleet, counts_streams: bool) {
    let client = &fleet.client;
    let whole = post(client, "/v1/chat/completions", &question()).await;
    assert_eq!(whole["choices"][0]["message"]["content"], SAYS);
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let used = |usage: &Value| {
        let count = |name: &str| usage[name].as_u64().unwrap();
        (count("prompt_tokens"), count("completion_tokens"))
    };
    let (prompt, completion) = used(&whole["usage"]);
    assert!(prompt > 5 && completion >= 3, "{whole}");
    let mut asked = question();
    asked["stream_options"] = json!({"include_usage": true});
    let streamed = events(client, "/v1/chat/completions", &asked).await;
    assert_eq!(joined(&streamed, "/choices/0/delta/content"), SAYS);
    assert_eq!(joined(&streamed, "/choices/0/finish_reason"), "stop");
    let counted = used(&streamed.last().unwrap()["usage"]);
    if counts_streams {
        assert_eq!(counted, (prompt, completion));
    } else {
        assert!(counted.0 > 0 && counted.1 >= 3, "it is estimated: {counted:?}");
    }

    let mut short = question();
    short["max_tokens"] = 2.into();
    let short = post(client, "/v1/chat/completions", &short).await;
    assert_eq!(short["choices"][0]["finish_reason"], "length");
    assert_eq!(short["usage"]["completion_tokens"], 2);
    let mut stopped = question();
    stopped["stop"] = json!(["-t"]);
    let stopped = post(client, "/v1/chat/completions", &stopped).await;
    assert_eq!(stopped["choices"][0]["message"]["content"], "c-a");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
}

/// Text completions, whole and streamed.
pub async fn completions(fleet: &Fleet) {
    let prompt = "<|im_start|>user\nSpell cat.<|im_end|>\n<|im_start|>assistant\n";
    let body =
        json!({"model": "flotilla-demo", "prompt": prompt, "temperature": 0, "max_tokens": 20});
    let whole = post(&fleet.client, "/v1/completions", &body).await;
    assert_eq!(whole["choices"][0]["text"], SAYS);
    let streamed = events(&fleet.client, "/v1/completions", &body).await;
    assert_eq!(joined(&streamed, "/choices/0/text"), SAYS);
    let native = json!({"prompt": prompt, "temperature": 0, "n_predict": 20});
    let native = post(&fleet.client, "/completion", &native).await;
    assert_eq!((&native["content"], &native["stop_type"]), (&json!(SAYS), &json!("eos")));
}

/// APIs that are translated at the gateway.
pub async fn other_apis(fleet: &Fleet) {
    let client = &fleet.client;
    let messages = json!([{"role": "user", "content": "Spell cat."}]);
    let message =
        json!({"model": "flotilla-demo", "max_tokens": 20, "temperature": 0, "messages": messages});
    let whole = post(client, "/v1/messages", &message).await;
    assert_eq!(
        (&whole["content"][0]["text"], &whole["stop_reason"]),
        (&json!(SAYS), &json!("end_turn"))
    );
    assert!(whole["usage"]["output_tokens"].as_u64() >= Some(3), "{whole}");
    let streamed = events(client, "/v1/messages", &message).await;
    assert_eq!(joined(&streamed, "/delta/text"), SAYS);
    let response =
        json!({"model": "flotilla-demo", "temperature": 0, "input": "Spell cat.", "store": false});
    let streamed = events(client, "/v1/responses", &response).await;
    assert_eq!(joined(&streamed, "/delta"), SAYS);
    let end = &streamed.last().unwrap()["response"];
    assert_eq!(end["status"], "completed");
    assert!(end["usage"]["output_tokens"].as_u64() >= Some(3), "{end}");
}

/// Errors are ours, and name nothing of the engine's.
pub async fn errors(fleet: &Fleet) {
    let mut long = question();
    long["messages"][0]["content"] = "word ".repeat(5000).into();
    let refused = fleet.client.chat(&long).await;
    let text = String::from_utf8_lossy(&refused.body).into_owned();
    assert_eq!(
        (refused.status, refused.error_code().as_str()),
        (400, "context_length_exceeded"),
        "{text}"
    );
    let mut wrong = question();
    wrong["top_p"] = 7.into();
    let refused = fleet.client.chat(&wrong).await;
    assert!(refused.status == 400 || refused.status == 200, "{}", refused.status);
}

/// A client that leaves frees the engine; `running` is how many requests the engine works on.
pub async fn leaving(fleet: &Fleet, running: impl AsyncFn() -> f64) {
    let mut long = question();
    (long["messages"][0]["content"], long["max_tokens"]) =
        ("Count from 1 to 40.".into(), 200.into());
    let mut stream = fleet.client.stream(&streamed(long)).await;
    assert!(stream.next_chunk().await);
    drop(stream);
    eventually("the engine to stop", async || (running().await == 0.0).then_some(())).await;
    eventually("the gateway to be idle", async || {
        (metric(&fleet.admin, "gateway_requests_in_flight").await == 0.0).then_some(())
    })
    .await;
}

/// An engine that dies is not asked, and is asked again when it is back.
pub async fn dying(fleet: &Fleet, engine: &mut Engine) {
    engine.dies().await;
    serves(fleet, false).await;
    let refused = fleet.client.chat(&question()).await;
    assert!([404, 503].contains(&refused.status), "{}", refused.status);
    engine.starts_again().await;
    serves(fleet, true).await;
    assert_eq!(fleet.client.chat(&question()).await.content(), SAYS);
}
