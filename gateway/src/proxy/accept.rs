//! Stage 1: accept the request. Reads nothing of the body.

use std::sync::Arc;
use std::time::Instant;

use hyper::Request;
use hyper::header::HeaderMap;
use percent_encoding::percent_decode_str;

use crate::types::api::RequestedApi;
use crate::types::request_body::RequestBody;
use crate::types::request_context::RequestContext;

/// A request as it arrived.
#[derive(Debug)]
pub(crate) struct Received {
    /// What the log says about the request, with its id.
    pub context: Arc<RequestContext>,
    /// The API endpoint.
    pub api: RequestedApi,
    /// The model that the query string names, for requests without a body.
    pub query_model: Option<String>,
    /// When the head arrived.
    pub arrived: Instant,
    /// Request headers.
    pub headers: HeaderMap,
    /// The unread body.
    pub body: RequestBody,
}

/// Accepts a request.
pub(crate) fn accept(
    context: Arc<RequestContext>,
    api: RequestedApi,
    request: Request<RequestBody>,
) -> Received {
    let (head, body) = request.into_parts();
    let query_model = head.uri.query().filter(|_| api == RequestedApi::PROPS).and_then(model_of);
    let (arrived, headers) = (Instant::now(), head.headers);
    Received { context, api, query_model, arrived, headers, body }
}

/// The value of `model` in a query string.
fn model_of(query: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("model="))?;
    let model = percent_decode_str(value).decode_utf8_lossy().into_owned();
    Some(model).filter(|model| !model.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_string_may_name_a_model() {
        for (query, model) in [
            ("model=a", Some("a")),
            ("autoload=1&model=org%2Fname", Some("org/name")),
            ("model=", None),
            ("models=a", None),
            ("", None),
        ] {
            assert_eq!(model_of(query).as_deref(), model, "{query}");
        }
    }
}
