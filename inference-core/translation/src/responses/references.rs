//! Items of the input that stand for items of stored responses.

use std::collections::{BTreeMap, HashMap};

use inference_protocol::openai::ParseError;
use serde_json::Value;

use crate::store::ids;
use crate::writer::Lookup;

/// Most bytes that referenced items have as JSON, each as often as it is named: a reference is
/// short, and what it names may be long.
const BYTES_MAX: usize = 8 << 20;

/// Replaces references by what they name; true if there were any. An object with only an id is one.
///
/// # Errors
/// There is no such item, or the items are too long.
pub(crate) fn resolve(items: &mut [Value], lookup: Lookup<'_>) -> Result<bool, ParseError> {
    let mut places: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, item) in items.iter().enumerate() {
        if let Some(id) = id_of_reference(item) {
            places.entry(ids::response_of(id).unwrap_or_default()).or_default().push(index);
        }
    }
    let mut left = BYTES_MAX;
    for (response, places) in &places {
        // Read once for all references to it, and given up before the next one.
        let known = known_items(response, lookup);
        for &index in places {
            let item = &mut items[index];
            let id = item.get("id").and_then(Value::as_str).unwrap_or_default();
            let Some(found) = known.get(id) else {
                return Err(fault(format!("Item with id '{id}' not found.")));
            };
            let Some(rest) = left.checked_sub(found.to_string().len()) else {
                let message = format!("referenced items have more than {BYTES_MAX} bytes");
                return Err(fault(message));
            };
            left = rest;
            *item = found.clone();
        }
    }
    Ok(!places.is_empty())
}

fn id_of_reference(item: &Value) -> Option<&str> {
    let kind = item.get("type").and_then(Value::as_str);
    let is_bare = kind.is_none() && item.get("role").is_none();
    let is_reference = kind == Some("item_reference") || is_bare;
    item.get("id").and_then(Value::as_str).filter(|_| is_reference)
}

/// The items of a stored response by their ids.
fn known_items(response: &str, lookup: Lookup<'_>) -> HashMap<String, Value> {
    let stored = lookup(response);
    let items = stored.iter().flat_map(|stored| stored.own.items());
    items.filter_map(|item| Some((item.get("id")?.as_str()?.to_string(), item))).collect()
}

fn fault(message: String) -> ParseError {
    ParseError { message, param: Some("input".into()) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::store::{Stored, Turn};

    /// A stored response with the number 1 whose input is a text of so many bytes; its item's id.
    fn stored(bytes: usize) -> (Arc<Stored>, String) {
        let input = json!("x".repeat(bytes)).to_string().into_bytes().into();
        let own = Turn { key: 1, input, response: Box::from(&b"{\"output\":[]}"[..]) };
        let stored = Arc::new(Stored { earlier: Vec::new(), own: own.into(), owner: None });
        (stored, ids::input("msg", 1, 0))
    }

    #[test]
    fn a_response_is_read_once_for_all_references_to_it() {
        let ((stored, id), reads) = (stored(10), Cell::new(0));
        let lookup = |response: &str| {
            reads.set(reads.get() + 1);
            (response == stored.id()).then(|| stored.clone())
        };
        let mut items = vec![json!({"type": "item_reference", "id": id}), json!({"id": id})];
        items.push(json!({"role": "user", "content": "new"}));
        assert_eq!(resolve(&mut items, &lookup), Ok(true));
        assert_eq!(
            (&items[0], items[1]["content"][0]["text"].as_str()),
            (&items[1], Some("xxxxxxxxxx"))
        );
        assert_eq!((items[2]["content"].as_str(), reads.get()), (Some("new"), 1));
        assert_eq!(resolve(&mut items[2..], &lookup), Ok(false));
    }

    #[test]
    fn many_references_to_a_long_item_do_not_fill_the_memory() {
        let (stored, id) = stored(1 << 20);
        let lookup = |_: &str| Some(stored.clone());
        let mut items = vec![json!({"type": "item_reference", "id": id}); 100_000];
        let error = resolve(&mut items, &lookup).unwrap_err();
        assert_eq!(error.message, "referenced items have more than 8388608 bytes");
        assert_eq!(error.param.as_deref(), Some("input"));
    }
}
