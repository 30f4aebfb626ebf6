//! Responses outside of memory: their conversations as JSON, and how those end that never began.

use std::sync::Arc;

use inference_protocol::openai::ErrorDetail;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Stored, Turn, ids};
use crate::json;
use crate::responses::response::error_code;

/// A turn as JSON. Its key is hexadecimal.
#[derive(Serialize, Deserialize)]
struct SavedTurn<'a> {
    key: String,
    #[serde(borrow)]
    input: &'a RawValue,
    #[serde(borrow)]
    response: &'a RawValue,
}

#[derive(Serialize, Deserialize)]
struct Saved<'a> {
    #[serde(borrow)]
    turns: Vec<SavedTurn<'a>>,
    owner: Option<u64>,
}

/// Why a response ends before it is complete.
#[derive(Debug, Clone, Copy)]
pub enum Ended<'a> {
    /// Its client wanted that.
    Canceled,
    /// This went wrong, and the status that it would otherwise have had.
    Failed(&'a ErrorDetail, u16),
}

impl Turn {
    fn save(&self) -> Option<SavedTurn<'_>> {
        Some(SavedTurn {
            key: format!("{:x}", self.key),
            input: serde_json::from_slice(&self.input).ok()?,
            response: serde_json::from_slice(&self.response).ok()?,
        })
    }

    fn load(saved: &SavedTurn<'_>) -> Option<Arc<Self>> {
        let key = u128::from_str_radix(&saved.key, 16).ok()?;
        let bytes = |json: &RawValue| json.get().as_bytes().into();
        Some(Arc::new(Self { key, input: bytes(saved.input), response: bytes(saved.response) }))
    }
}

/// A turn of a conversation, as it is stored.
#[derive(Debug)]
pub struct TurnDocument {
    /// The id of its response.
    pub id: String,
    /// The id of the response that it continues.
    pub previous: Option<String>,
    /// It as JSON for [`Stored::from_turns`]; `None` if it cannot be written.
    pub document: Option<Vec<u8>>,
}

impl Stored {
    /// Its turns, newest first, each written when it is asked for.
    pub fn saved_turns(&self) -> impl Iterator<Item = TurnDocument> {
        let all: Vec<_> = self.turns().collect();
        (0..all.len()).rev().map(move |at| TurnDocument {
            id: ids::response(all[at].key),
            previous: at.checked_sub(1).map(|before| ids::response(all[before].key)),
            document: all[at]
                .save()
                .map(|turn| json::bytes(&Saved { turns: vec![turn], owner: self.owner })),
        })
    }

    /// The response whose turns, oldest first, [`Self::saved_turns`] has written; `None` if that is
    /// something else.
    pub fn from_turns(turns: &[Vec<u8>]) -> Option<Self> {
        let read = |json: &Vec<u8>| Self::from_json(json);
        let mut turns = turns.iter().map(read).collect::<Option<Vec<_>>>()?;
        let last = turns.pop()?;
        let earlier = turns.into_iter().map(|turn| turn.own).collect();
        Some(Self { earlier, ..last })
    }

    /// The response with the turns before it, as JSON for [`Self::from_json`].
    pub fn to_json(&self) -> Option<Vec<u8>> {
        let turns = self.turns().map(|turn| turn.save()).collect::<Option<_>>()?;
        Some(json::bytes(&Saved { turns, owner: self.owner }))
    }

    /// What [`Self::to_json`] has written; `None` if it is something else.
    pub fn from_json(json: &[u8]) -> Option<Self> {
        let saved: Saved<'_> = serde_json::from_slice(json).ok()?;
        let mut earlier: Vec<_> = saved.turns.iter().map(Turn::load).collect::<Option<_>>()?;
        Some(Self { own: earlier.pop()?, earlier, owner: saved.owner })
    }

    /// The `input` of its request, as JSON, with references resolved.
    pub fn input(&self) -> &[u8] {
        &self.own.input
    }

    /// The response that it continues.
    #[must_use]
    pub fn previous(&self) -> Option<Self> {
        let (own, earlier) = self.earlier.split_last()?;
        Some(Self { earlier: earlier.to_vec(), own: own.clone(), owner: self.owner })
    }

    /// True if it came to its end, so that it can be continued.
    pub fn is_whole(&self) -> bool {
        let status = self.changed(|_| ())["status"].take();
        status == "completed" || status == "incomplete"
    }

    /// The events of a response in the background before it begins.
    pub fn first_events(&self) -> Vec<u8> {
        let mut events = Vec::new();
        for (number, name) in ["response.created", "response.queued"].into_iter().enumerate() {
            let response = self.changed(|_| ());
            let data = json!({"type": name, "sequence_number": number, "response": response});
            json::event(name, &data, &mut events);
        }
        events
    }

    /// The response object with this status.
    pub fn with_status(&self, status: &str) -> Vec<u8> {
        json::bytes(&self.changed(|response| response["status"] = status.into()))
    }

    /// The response as it is at an early end.
    #[must_use]
    pub fn ended(&self, end: Ended<'_>) -> Self {
        let (status, error) = match end {
            Ended::Canceled => ("cancelled", Value::Null),
            Ended::Failed(error, status) => {
                let code = error_code(status);
                ("failed", json!({"code": code, "message": error.message}))
            }
        };
        let response = self.changed(|response| {
            response["status"] = status.into();
            response["error"] = error;
        });
        let Turn { key, ref input, .. } = *self.own;
        let own = Turn { key, input: input.clone(), response: json::bytes(&response).into() };
        Self { earlier: self.earlier.clone(), own: Arc::new(own), owner: self.owner }
    }

    /// The event with this number that says that it has ended, and how.
    pub fn last_event(&self, sequence_number: usize) -> Vec<u8> {
        let response = self.changed(|_| ());
        let name = format!("response.{}", response["status"].as_str().unwrap_or("completed"));
        let data = json!({"type": name, "sequence_number": sequence_number, "response": response});
        let mut event = Vec::new();
        json::event(&name, &data, &mut event);
        event
    }

    fn changed(&self, change: impl FnOnce(&mut Value)) -> Value {
        let mut response = serde_json::from_slice(&self.own.response).unwrap_or_else(|_| json!({}));
        change(&mut response);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> Stored {
        let turn = |key: u128, text: &str| {
            let input = json!([{"role": "user", "content": text}]).to_string().into_bytes();
            let response = json!({"id": "resp_1", "status": "queued", "error": null, "output": []});
            let response = response.to_string().into_bytes().into();
            Arc::new(Turn { key, input: input.into(), response })
        };
        let earlier = vec![turn(1, "Hi"), turn(u128::MAX, "\"ä\"")];
        Stored { earlier, own: turn(0xab, "And?"), owner: Some(7) }
    }

    #[test]
    fn a_conversation_survives_its_json() {
        let json = stored().to_json().unwrap();
        let loaded = Stored::from_json(&json).unwrap();
        assert_eq!((loaded.to_json().unwrap(), loaded.owner()), (json, Some(7)));
        assert_eq!((loaded.turns().count(), loaded.id()), (3, stored().id()));
        let before = loaded.previous().and_then(|previous| previous.previous()).unwrap();
        assert_eq!((before.own.key, before.previous().is_none()), (1, true));
        for other in ["", "{}", "[]", "{\"turns\":[],\"owner\":null}"] {
            assert!(Stored::from_json(other.as_bytes()).is_none(), "{other}");
        }
    }

    #[test]
    fn an_early_end_says_why() {
        let read = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let canceled = stored().ended(Ended::Canceled);
        assert_eq!(read(canceled.response())["status"], "cancelled");
        let event = String::from_utf8(canceled.last_event(7)).unwrap();
        assert!(event.starts_with("event: response.cancelled\ndata: {"), "{event}");
        let (_, data) = event.trim_end().split_once("data: ").unwrap();
        assert_eq!(read(data.as_bytes())["sequence_number"], 7);

        let error = ErrorDetail {
            message: "gone".into(),
            kind: "server_error".into(),
            param: None,
            code: None,
        };
        let failed = read(stored().ended(Ended::Failed(&error, 503)).response());
        assert_eq!(failed["error"], json!({"code": "server_error", "message": "gone"}));
        assert_eq!((&failed["status"], &failed["id"]), (&json!("failed"), &json!("resp_1")));
        assert_eq!(read(&stored().with_status("in_progress"))["status"], "in_progress");
    }
}
