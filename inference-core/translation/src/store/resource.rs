//! Input items in the form in which they are listed and stored: with an id, a status, and parts.

use serde_json::{Value, json};

use super::ids;

/// Completes an item of the input, the one at `index`.
pub(crate) fn complete(item: Value, random: u128, index: usize) -> Value {
    let Value::Object(mut item) = item else { return item };
    item.retain(|_, value| !value.is_null());
    let kind = item.entry("type").or_insert_with(|| "message".into());
    let kind = kind.as_str().unwrap_or_default().to_string();
    if kind == "message" {
        let is_output = item.get("role").is_some_and(|role| role == "assistant");
        if let Some(content) = item.get_mut("content") {
            complete_content(content, is_output);
        }
    }
    if kind != "reasoning" {
        item.entry("status").or_insert_with(|| "completed".into());
    }
    if !item.get("id").is_some_and(Value::is_string) {
        item.insert("id".into(), ids::input(ids::kind(&kind), random, index).into());
    }
    Value::Object(item)
}

fn complete_content(content: &mut Value, is_output: bool) {
    if content.is_string() {
        *content = json!([{"type": "text", "text": content.take()}]);
    }
    for part in content.as_array_mut().into_iter().flatten() {
        let Value::Object(part) = part else { continue };
        let is_text = part
            .get("type")
            .and_then(Value::as_str)
            .is_some_and(|kind| matches!(kind, "text" | "input_text" | "output_text"));
        match (is_text, is_output) {
            (false, _) => {}
            (true, false) => {
                part.insert("type".into(), "input_text".into());
            }
            (true, true) => {
                part.insert("type".into(), "output_text".into());
                for list in ["annotations", "logprobs"] {
                    part.entry(list).or_insert_with(|| json!([]));
                }
            }
        }
    }
}
