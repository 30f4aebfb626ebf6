//! Lists of records, as at OpenAI.

use hyper::Response;
use inference_protocol::openai::to_json;
use serde_json::{Value, json};

use crate::store::Page;
use crate::types::error::Error;
pub(crate) use crate::types::query::{invalid, limit, parameter};
use crate::types::response::{self, Body};

/// A path of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecordPath<'a> {
    /// All records of a tenant.
    All,
    /// The one with this id.
    One(&'a str),
    /// What is below the one with this id.
    Below(&'a str),
}

impl<'a> RecordPath<'a> {
    /// The path, if it is `root`, a record there, or `below` of a record.
    pub(crate) fn at(path: &'a str, root: &str, below: &str) -> Option<Self> {
        let rest = path.strip_prefix(root)?;
        let Some(rest) = rest.strip_prefix('/') else {
            return rest.is_empty().then_some(Self::All);
        };
        match rest.split_once('/') {
            None => Some(Self::One(rest)),
            Some((id, name)) => (name == below).then_some(Self::Below(id)),
        }
    }
}

/// Which records a query string asks for.
pub(crate) fn page(query: Option<&str>, default: usize, max: usize) -> Result<Page, Error> {
    let limit = limit(query, default, max)?;
    let is_ascending = match parameter(query, "order").as_deref() {
        None | Some("desc") => false,
        Some("asc") => true,
        Some(_) => return Err(invalid("order", "expected asc or desc")),
    };
    Ok(Page { after: parameter(query, "after"), limit, is_ascending })
}

/// A list of records.
pub(crate) fn response(data: Vec<Value>, has_more: bool) -> Response<Body> {
    let id = |record: Option<&Value>| record.and_then(|record| record.get("id")).cloned();
    let (first, last) = (id(data.first()), id(data.last()));
    response::json(to_json(&json!({"object": "list", "data": data, "first_id": first,
        "last_id": last, "has_more": has_more})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_records_are_told_apart() {
        for (path, at) in [
            ("/v1/files", Some(RecordPath::All)),
            ("/v1/files/file-1", Some(RecordPath::One("file-1"))),
            ("/v1/files/file-1/content", Some(RecordPath::Below("file-1"))),
            ("/v1/files/file-1/other", None),
            ("/v1/filesystem", None),
        ] {
            assert_eq!(RecordPath::at(path, "/v1/files", "content"), at, "{path}");
        }
    }

    #[test]
    fn a_query_says_which_records_it_asks_for() {
        let page = page(Some("after=file-1&limit=2&order=asc"), 20, 100).unwrap();
        assert_eq!(
            (page.after.as_deref(), page.limit, page.is_ascending),
            (Some("file-1"), 2, true)
        );
        let page = super::page(None, 20, 100).unwrap();
        assert_eq!((page.after, page.limit, page.is_ascending), (None, 20, false));
        for wrong in ["limit=0", "limit=101", "limit=x", "order=up"] {
            assert!(super::page(Some(wrong), 20, 100).is_err(), "{wrong}");
        }
    }
}
