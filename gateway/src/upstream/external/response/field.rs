//! PURE. Responses that are large and not generated, such as embeddings: only a missing usage is
//! added, and their values are never unpacked.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::{Failed, ResponseInfo, error};
use crate::scheduler::progress::event::Event;
use crate::types::api::Api;

/// What tells a response from an error.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
    #[serde(borrow, default)]
    detail: Option<&'a RawValue>,
    #[serde(borrow, default)]
    object: Option<&'a RawValue>,
    #[serde(borrow, default)]
    usage: Option<&'a RawValue>,
}

/// The response with a usage, where the API has one.
pub(super) fn with_usage(body: &[u8], info: &ResponseInfo) -> Result<Bytes, Failed> {
    let body = body.trim_ascii();
    let Ok(read) = serde_json::from_slice::<Fields<'_>>(body) else {
        return Err(Failed(error::of_kind("no_json")));
    };
    let is_named = read.object.is_some_and(|object| object.get() == "\"error\"");
    if read.error.is_some() || read.detail.is_some() || is_named {
        let object = serde_json::from_slice::<Map<String, Value>>(body).unwrap_or_default();
        return Err(Failed(error::canonical(Value::Object(object))));
    }
    let generated = Event::read(body);
    let has_usage = read.usage.is_some() || info.api == Api::Rerank;
    let Some(open) = body.strip_suffix(b"}").filter(|_| !has_usage) else {
        return Ok(Bytes::copy_from_slice(body));
    };
    let usage = info.fill_usage(None, generated.tokens).0;
    let comma = if open.trim_ascii_end().ends_with(b"{") { "" } else { "," };
    let usage = format!("{comma}\"usage\":{usage}}}");
    Ok([open, usage.as_bytes()].concat().into())
}
