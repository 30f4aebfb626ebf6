//! Responses: the only place where an [`Error`] becomes HTTP.

pub(crate) use flotilla_listeners::response::{
    Body, event_stream, json, json_with_status, stream, text, with_type, with_type_and_body,
};
use flotilla_listeners::response::{allow_methods, json_error, refuse_encodings, require_bearer};
use hyper::Response;
use hyper::header::{self, HeaderValue};
use inference_protocol::openai::{ErrorBody, ErrorDetail};
use inference_translation::ClientApi;

use crate::types::error::Error;

/// The OpenAI-style body of an error.
pub(crate) fn error_body(error: &Error) -> ErrorBody {
    ErrorBody {
        error: ErrorDetail {
            message: error.to_string(),
            kind: error.kind().into(),
            param: error.param(),
            code: Some(error.code().into()),
        },
    }
}

/// Turns an error into a response in OpenAI's format.
pub(crate) fn error(error: &Error) -> Response<Body> {
    with_headers(error, error_body(error).to_json())
}

/// Turns an error into a response in the format of another API.
pub(crate) fn error_for(api: ClientApi, error: &Error) -> Response<Body> {
    with_headers(error, api.error_body(error.status(), &error_body(error).error, None))
}

fn with_headers(error: &Error, body: String) -> Response<Body> {
    let mut response = json_error(error.status(), body);
    let headers = response.headers_mut();
    if let Some(seconds) = error.retry_after_seconds() {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    match error {
        Error::Unauthenticated => require_bearer(headers),
        Error::Method(allowed) => allow_methods(headers, allowed),
        Error::EncodedBody => refuse_encodings(headers),
        _ => {}
    }
    response
}
