//! Files and batches of a client.

use bytes::Bytes;
use hyper::Method;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::eventually_within;
use std::time::{Duration, Instant};

/// Uploads a file for a batch; the form has these other fields, too.
pub async fn upload(client: &Client, content: &str, more: &[(&str, &str)]) -> Answer {
    let mut form = String::new();
    for (name, value) in more {
        form +=
            &format!("--b\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    }
    form += &format!(
        "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\
         content-type: application/jsonl\r\n\r\n{content}\r\n--b--\r\n"
    );
    let client = client.with_header("content-type", "multipart/form-data; boundary=b");
    client.post("/v1/files", form).await
}

/// The id of a file for a batch.
pub async fn stored(client: &Client, content: &str) -> String {
    let answer = upload(client, content, &[("purpose", "batch")]).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["id"].as_str().unwrap().into()
}

/// A chat as a line of a batch.
pub fn line(custom_id: &str, text: &str) -> String {
    let body = json!({"model": "flotilla-demo", "temperature": 0, "max_tokens": 64,
        "messages": [{"role": "user", "content": text}]});
    let url = "/v1/chat/completions";
    json!({"custom_id": custom_id, "method": "POST", "url": url, "body": body}).to_string() + "\n"
}

/// Asks for a batch of chats.
pub async fn create(client: &Client, file: &str) -> Answer {
    let asked = json!({"input_file_id": file, "endpoint": "/v1/chat/completions",
        "completion_window": "24h", "metadata": {"night": "1"}});
    client.post("/v1/batches", asked.to_string()).await
}

/// The id of a batch of these lines.
pub async fn begun(client: &Client, lines: &str) -> String {
    let answer = create(client, &stored(client, lines).await).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["id"].as_str().unwrap().into()
}

/// What is known of a batch.
pub async fn batch(client: &Client, id: &str) -> Value {
    client.get(&format!("/v1/batches/{id}")).await.json()
}

/// The batch, once it has ended.
pub async fn ended(client: &Client, id: &str) -> Value {
    let is_active = ["validating", "in_progress", "finalizing", "cancelling"];
    let begun = Instant::now();
    // What was last known of it tells more than the time.
    eventually_within(Duration::from_secs(150), "a batch to end", async || {
        let batch = batch(client, id).await;
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "waited in vain for the end of {batch}"
        );
        (!is_active.contains(&batch["status"].as_str()?)).then_some(batch)
    })
    .await
}

/// The lines of one of the files of a batch; none if there is no file.
pub async fn lines_of(client: &Client, file: &Value) -> Vec<Value> {
    let Some(id) = file.as_str() else { return Vec::new() };
    let answer = client.get(&format!("/v1/files/{id}/content")).await;
    assert_eq!(answer.status, 200);
    let text = std::str::from_utf8(&answer.body).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The status of a `DELETE`.
pub async fn delete(client: &Client, path: &str) -> u16 {
    client.try_send(Method::DELETE, path, Bytes::new()).await.unwrap().status
}
