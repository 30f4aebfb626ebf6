//! PURE. Tells errors of external endpoints from responses, and gives them one form: an object with
//! `error` first. What of it may be logged decides [`super::super::refusal`].

use serde_json::{Map, Value, json};

/// True if an object is an error: OpenAI's (`error` is an object), Ollama's and TGI's (a text),
/// FastAPI's (`detail`), or that of older vLLM and `SGLang` (`"object": "error"`).
pub(super) fn is_error(object: &Map<String, Value>) -> bool {
    let is_set = |name: &str| object.get(name).is_some_and(|value| !value.is_null());
    let is_named = object.get("object").is_some_and(|kind| kind == "error");
    is_set("error") || is_named || (is_set("detail") && !object.contains_key("choices"))
}

/// The payload of an error event.
pub(super) fn canonical(error: Value) -> Vec<u8> {
    let error = match error {
        Value::Object(mut object) => match object.shift_remove("error") {
            Some(error @ Value::Object(_)) => error,
            // A text, with fields beside it.
            Some(text) if !text.is_null() => {
                object.insert("message".into(), text);
                Value::Object(object)
            }
            _ => Value::Object(object),
        },
        other => json!({ "message": other }),
    };
    json!({ "error": error }).to_string().into_bytes()
}

/// An error that the endpoint did not report as one.
pub(super) fn of_kind(kind: &str) -> Vec<u8> {
    json!({"error": {"type": kind}}).to_string().into_bytes()
}
