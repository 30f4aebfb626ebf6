//! PURE. IDs of calls for templates that require a format: conversations may come from another
//! model, or from a client that makes up its own IDs.

use std::collections::HashMap;

use serde_json::Value as Json;

use super::{Message, calls, role};
use crate::text::output::CallIds;

/// Gives calls and their results IDs that the template accepts. The same conversation gets the same
/// IDs in every turn.
pub(crate) fn adapt_ids(messages: &mut [Message], ids: CallIds) {
    let mut renamed: HashMap<String, String> = HashMap::new();
    // The calls that have no result yet, for results without an ID.
    let mut open: Vec<String> = Vec::new();
    let mut count = 0;
    for message in messages {
        if role(message) == "tool" {
            adapt_result(message, &renamed, &mut open);
            continue;
        }
        open.clear();
        for call in calls(message).into_iter().flatten() {
            let id = adapt_call(call, ids, count, &mut renamed);
            open.push(id);
            count += 1;
        }
    }
}

/// Returns the ID of the call.
fn adapt_call(
    call: &mut Json,
    ids: CallIds,
    index: usize,
    renamed: &mut HashMap<String, String>,
) -> String {
    let name = call.pointer("/function/name").and_then(Json::as_str).unwrap_or_default();
    let old = call.get("id").and_then(Json::as_str).unwrap_or_default();
    let new = match ids.accepts(old, name) {
        true => old.to_string(),
        false => ids.generate(name, index, &digest(&format!("{old}/{index}"))),
    };
    if !old.is_empty() {
        renamed.insert(old.to_string(), new.clone());
    }
    if let Some(call) = call.as_object_mut() {
        call.insert("id".into(), new.as_str().into());
    }
    new
}

fn adapt_result(message: &mut Message, renamed: &HashMap<String, String>, open: &mut Vec<String>) {
    let old = message.get("tool_call_id").and_then(Json::as_str).unwrap_or_default();
    let known = renamed.get(old).cloned();
    let Some(new) = known.or_else(|| open.first().cloned()) else { return };
    open.retain(|id| *id != new);
    message.insert("tool_call_id".into(), new.into());
}

/// Bytes that depend on all of `text`: two rounds of FNV-1a.
fn digest(text: &str) -> Vec<u8> {
    let hash = |seed: u64| {
        text.bytes()
            .fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
    };
    let first = hash(0xcbf2_9ce4_8422_2325);
    [first.to_be_bytes(), hash(first).to_be_bytes()].concat()
}
