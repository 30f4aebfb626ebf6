//! Requests without input, by which clients load a model before they need it, or unload it.

use serde::Serialize;
use serde_json::Value;

use super::rfc3339;
use crate::fault::Fields;
use crate::json;
use crate::writer::{ClientApi, Origin};

/// A request that loads or unloads a model. No node has to see it: models stay loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoadRequest {
    /// The model's name.
    pub model: String,
    /// Unload it.
    pub is_unload: bool,
    is_chat: bool,
}

/// Recognizes a request without input. `None` for every other one, also for one of another API, or
/// one that is not valid.
pub(crate) fn load_request(api: ClientApi, fields: &Fields) -> Option<LoadRequest> {
    let field = |name: &str| fields.0.get(name).unwrap_or(&Value::Null);
    let (is_chat, input) = match api {
        ClientApi::OllamaChat => (true, field("messages")),
        ClientApi::OllamaGenerate => (false, field("prompt")),
        _ => return None,
    };
    let is_empty = match input {
        Value::Null => true,
        Value::Array(messages) => is_chat && messages.is_empty(),
        Value::String(prompt) => !is_chat && prompt.is_empty(),
        _ => false,
    };
    let model = field("model").as_str().filter(|_| is_empty)?.into();
    Some(LoadRequest { model, is_unload: is_zero(field("keep_alive")), is_chat })
}

/// 0, as a number of seconds or a duration such as `0s`.
fn is_zero(keep_alive: &Value) -> bool {
    match keep_alive {
        Value::Number(seconds) => seconds.as_f64() == Some(0.0),
        Value::String(text) => text.contains('0') && !text.contains(|c| ('1'..='9').contains(&c)),
        _ => false,
    }
}

impl LoadRequest {
    /// The body of the response, one JSON object whether it is streamed or not.
    pub(crate) fn reply(&self, origin: Origin) -> Vec<u8> {
        let message = Message { role: "assistant", content: "" };
        json::bytes(&Reply {
            model: &self.model,
            created_at: rfc3339(origin.now, 0),
            message: self.is_chat.then_some(message),
            response: (!self.is_chat).then_some(""),
            done: true,
            done_reason: if self.is_unload { "unload" } else { "load" },
        })
    }
}

#[derive(Serialize)]
struct Reply<'a> {
    model: &'a str,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<&'static str>,
    done: bool,
    done_reason: &'static str,
}

#[derive(Serialize)]
struct Message {
    role: &'static str,
    content: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::read_object;

    fn reply(api: ClientApi, body: &str) -> Option<String> {
        let fields = read_object(body.as_bytes()).ok()?;
        let reply = load_request(api, &fields)?.reply(Origin { random: 0, now: 0 });
        Some(String::from_utf8(reply).unwrap())
    }

    #[test]
    fn a_chat_without_messages_loads_or_unloads() {
        let load = reply(ClientApi::OllamaChat, r#"{"model":"m"}"#).unwrap();
        let expected = r#"{"model":"m","created_at":"1970-01-01T00:00:00.000000Z","message":{"role":"assistant","content":""},"done":true,"done_reason":"load"}"#;
        assert_eq!(load, expected);
        for (keep_alive, reason) in
            [("0", "unload"), (r#""0s""#, "unload"), (r#""10m""#, "load"), ("-1", "load")]
        {
            let body = format!(r#"{{"model":"m","messages":[],"keep_alive":{keep_alive}}}"#);
            let reply = reply(ClientApi::OllamaChat, &body).unwrap();
            assert!(reply.ends_with(&format!(r#""done_reason":"{reason}"}}"#)), "{reply}");
        }
    }

    #[test]
    fn a_prompt_that_is_missing_loads() {
        let load = reply(ClientApi::OllamaGenerate, r#"{"model":"m","prompt":""}"#).unwrap();
        assert!(load.contains(r#""response":"","done":true,"done_reason":"load""#), "{load}");
    }

    #[test]
    fn a_request_with_input_is_none() {
        let chat = r#"{"model":"m","messages":[{"role":"user","content":"a"}],"keep_alive":0}"#;
        assert_eq!(reply(ClientApi::OllamaChat, chat), None);
        assert_eq!(reply(ClientApi::OllamaGenerate, r#"{"model":"m","prompt":"a\n"}"#), None);
        assert_eq!(reply(ClientApi::Messages, r#"{"model":"m"}"#), None);
        assert_eq!(reply(ClientApi::OllamaChat, "[]"), None);
    }
}
