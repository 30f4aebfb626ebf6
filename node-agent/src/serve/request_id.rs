//! Request ids: `x-request-id`, which the gateway or the client sends, and which the agent returns
//! and logs. Anthropic's clients read it from `request-id`.

use std::sync::Arc;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use inference_protocol::ids::{self, is_plain_id};
use inference_translation::messages::models;

use tokio::task::futures::TaskLocalFuture;

use crate::types::random::random;

/// The header, in and out.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

tokio::task_local! {
    static CURRENT: Arc<str>;
}

/// The id of a request: the one it was sent with, if that is plain, or a new one.
pub(crate) fn of(headers: &HeaderMap) -> Arc<str> {
    let sent = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let adopted = sent.filter(|id| is_plain_id(id)).map(Arc::from);
    adopted.unwrap_or_else(|| ids::request_id(random()).into())
}

/// Runs `handling`. Lines that it logs, in this task, have the id.
pub(crate) fn with_id<F: Future>(id: Arc<str>, handling: F) -> TaskLocalFuture<Arc<str>, F> {
    CURRENT.scope(id, handling)
}

/// The id of the request that the current task handles.
pub(crate) fn current() -> Option<Arc<str>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// Calls `add` with the field of the current task's request.
pub(crate) fn visit_current(add: &mut dyn FnMut(&'static str, &str)) {
    let _ = CURRENT.try_with(|id| add("request_id", id));
}

/// Puts a request's id on its response.
pub(crate) fn mark(headers: &mut HeaderMap, id: &str, is_anthropic: bool) {
    let Ok(value) = HeaderValue::from_str(id) else { return };
    if is_anthropic {
        headers.insert(models::REQUEST_ID_HEADER, value.clone());
    }
    headers.insert(REQUEST_ID, value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_id_is_adopted_and_any_other_one_is_replaced() {
        let of = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(id).unwrap());
            super::of(&headers)
        };
        assert_eq!(&*of("mine-1"), "mine-1");
        assert_ne!(&*of("not plain"), "not plain");
        assert_ne!(super::of(&HeaderMap::new()), super::of(&HeaderMap::new()));
    }
}
