//! Builds responses. The only place where an [`Error`] becomes HTTP or a final event.

use bytes::Bytes;
pub(crate) use flotilla_listeners::response::{
    Body, json, response, stream, text, whole, with_type,
};
use flotilla_listeners::response::{allow_methods, json_error, refuse_encodings, require_bearer};
use hyper::Response;
use hyper::header::{self, HeaderName, HeaderValue};
use inference_protocol::openai::{ErrorBody, ErrorDetail};
use inference_protocol::sse;

use crate::types::api::RequestedApi;
use crate::types::error::Error;

/// Retry delay in milliseconds; OpenAI's SDKs prefer it over `Retry-After`.
const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// `false` where OpenAI's SDKs would retry in vain.
pub(crate) const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The response for an error, in OpenAI's format.
pub(crate) fn error(error: &Error) -> Response<Body> {
    with_headers(error, error_body(error).to_json())
}

/// The response for an error of a request, in the format of the API that the client called.
pub(crate) fn error_for(api: RequestedApi, error: &Error, request_id: &str) -> Response<Body> {
    match api {
        RequestedApi::Native(_) => self::error(error),
        RequestedApi::Translated(api) => {
            let status = error.status();
            error_with(error, |detail| api.error_body(status, detail, Some(request_id)))
        }
    }
}

/// The response for an error, with a body of another format.
pub(crate) fn error_with(
    error: &Error,
    body: impl FnOnce(&ErrorDetail) -> String,
) -> Response<Body> {
    with_headers(error, body(&error_detail(error)))
}

fn with_headers(error: &Error, body: String) -> Response<Body> {
    let mut response = json_error(error.status(), body);
    let headers = response.headers_mut();
    if let Some(after) = error.retry_after() {
        headers.insert(header::RETRY_AFTER, (after.as_secs_f64().ceil() as u64).into());
        headers.insert(RETRY_AFTER_MS, (after.as_millis() as u64).into());
    }
    match error {
        Error::KeyMissing | Error::KeyWrong | Error::JoinKeyWrong | Error::AdminKeyWrong => {
            require_bearer(headers);
        }
        // OpenAI's SDKs retry other 429s.
        Error::Quota(..) => {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        Error::Method(allowed) => allow_methods(headers, allowed),
        Error::EncodedBody => refuse_encodings(headers),
        _ => {}
    }
    response
}

/// The final event of a stream that fails after its head. No `[DONE]` follows, because a broken
/// stream must not look complete.
pub(crate) fn error_event(error: &Error) -> Bytes {
    Bytes::from(sse::data(&error_body(error).to_json()))
}

pub(crate) fn error_body(error: &Error) -> ErrorBody {
    ErrorBody { error: error_detail(error) }
}

/// What an error says, for any format.
pub(crate) fn error_detail(error: &Error) -> ErrorDetail {
    // The node knows which parameter is invalid, and why.
    if let Error::Unanswerable(detail) = error {
        return (**detail).clone();
    }
    ErrorDetail {
        message: error.to_string(),
        kind: error.kind().into(),
        param: error.param(),
        code: Some(error.code().into()),
    }
}
