//! Pages of a response's input items.

use inference_protocol::openai::ParseError;
use serde::Serialize;
use serde_json::Value;

use super::Stored;
use crate::json;

/// Which items of a list to return: the query of `GET /v1/responses/{id}/input_items`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    after: Option<String>,
    limit: usize,
    is_ascending: bool,
}

const LIMIT_MAX: usize = 100;

impl Page {
    /// Reads `after`, `limit` (1 to 100, 20 without) and `order` (`asc` or `desc`, the default).
    /// Ignores other parameters.
    ///
    /// # Errors
    /// A value is out of its range.
    pub fn read(query: Option<&str>) -> Result<Self, ParseError> {
        let mut page = Self { after: None, limit: 20, is_ascending: false };
        for pair in query.unwrap_or_default().split('&') {
            match pair.split_once('=') {
                Some(("after", id)) => page.after = Some(id.into()),
                Some(("limit", limit)) => {
                    let limit = limit.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
                    let expected = || fault("limit", "expected a whole number from 1 to 100");
                    page.limit = limit.ok_or_else(expected)?;
                }
                Some(("order", "asc")) => page.is_ascending = true,
                Some(("order", "desc")) => page.is_ascending = false,
                Some(("order", _)) => return Err(fault("order", "expected asc or desc")),
                _ => {}
            }
        }
        Ok(page)
    }
}

fn fault(name: &str, message: &str) -> ParseError {
    let message = format!("invalid value for '{name}': {message}");
    ParseError { message, param: Some(name.into()) }
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: &'a [Value],
    first_id: &'a str,
    last_id: &'a str,
    has_more: bool,
}

fn id_of(item: &Value) -> &str {
    item.get("id").and_then(Value::as_str).unwrap_or_default()
}

impl Stored {
    /// The items that the model got, those of earlier turns included, as a list in JSON.
    ///
    /// # Errors
    /// There is no item `after`.
    pub fn input_items(&self, page: &Page) -> Result<Vec<u8>, ParseError> {
        let earlier = self.earlier.iter().flat_map(|turn| turn.items());
        let mut items: Vec<_> = earlier.chain(self.own.input()).collect();
        if !page.is_ascending {
            items.reverse();
        }
        let from = match &page.after {
            None => 0,
            Some(id) => match items.iter().position(|item| id_of(item) == id) {
                Some(at) => at + 1,
                None => return Err(fault("after", "there is no such item")),
            },
        };
        let rest = &items[from..];
        let shown = &rest[..rest.len().min(page.limit)];
        Ok(json::bytes(&List {
            object: "list",
            data: shown,
            first_id: shown.first().map_or("", id_of),
            last_id: shown.last().map_or("", id_of),
            has_more: rest.len() > shown.len(),
        }))
    }
}
