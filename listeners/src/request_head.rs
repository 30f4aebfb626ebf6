//! PURE. Checks of request heads that hyper leaves to us, for both programs.

use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, Uri, Version};

use crate::response::{Body, json_error};

/// Headers per request.
pub(crate) const HEADERS_MAX: usize = 100;
/// Header bytes per request: names and values, and [`HEADER_OVERHEAD_BYTES`] for each.
pub(crate) const HEADER_BYTES_MAX: usize = 32 * 1024;
/// HTTP/2 counts this for each header. We count HTTP/1 alike, so that the limit is the same.
const HEADER_OVERHEAD_BYTES: usize = 32;

/// The response to a request whose head breaks the rules of HTTP or our limits.
pub(crate) fn refusal<B>(request: &Request<B>) -> Option<Response<Body>> {
    let headers = request.headers();
    if headers.len() > HEADERS_MAX || header_bytes(headers) > HEADER_BYTES_MAX {
        let message = format!(
            "the request has too many headers; {HEADERS_MAX} headers and {HEADER_BYTES_MAX} bytes \
             are allowed, and each counts {HEADER_OVERHEAD_BYTES} bytes more than its name and value"
        );
        return Some(refuse(431, "headers_too_large", &message));
    }
    // RFC 9112, section 3.2. HTTP/2 names the host in a pseudo-header, and HTTP/1.0 need not.
    let hosts = headers.get_all(header::HOST).iter().count();
    if request.version() == Version::HTTP_11 && hosts != 1 {
        let message = format!("HTTP/1.1 needs one Host header; this request has {hosts}");
        let mut response = refuse(400, "invalid_host", &message);
        // A proxy before us may have read another host.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        return Some(response);
    }
    None
}

fn header_bytes(headers: &HeaderMap) -> usize {
    let bytes = |(name, value): (&header::HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + HEADER_OVERHEAD_BYTES
    };
    headers.iter().map(bytes).sum()
}

/// An error in OpenAI's format. The texts are ours and need no escaping.
fn refuse(status: u16, code: &str, message: &str) -> Response<Body> {
    let body = format!(
        r#"{{"error":{{"message":"{message}","type":"invalid_request_error","param":null,"code":"{code}"}}}}"#
    );
    json_error(status, body)
}

/// Removes one slash from the end of the path: `/v1/models/` is `/v1/models`.
pub fn drop_trailing_slash<B>(request: &mut Request<B>) {
    let uri = request.uri();
    let Some(path) = uri.path().strip_suffix('/').filter(|path| !path.is_empty()) else { return };
    let shorter = match uri.query() {
        Some(query) => PathAndQuery::try_from(format!("{path}?{query}")),
        None => PathAndQuery::try_from(path),
    };
    let Ok(shorter) = shorter else { return };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(shorter);
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

/// True if a body is encoded, as with gzip. Nothing here decodes one.
pub fn is_encoded(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(header::CONTENT_ENCODING).iter().map(HeaderValue::as_bytes);
    let mut codings = codings.flat_map(|value| value.split(|byte| *byte == b','));
    codings.any(|coding| {
        let coding = coding.trim_ascii();
        !coding.is_empty() && !coding.eq_ignore_ascii_case(b"identity")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(version: Version, headers: &[(&'static str, String)]) -> Request<()> {
        let mut request = Request::builder().version(version);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        request.body(()).unwrap()
    }

    fn status(version: Version, headers: &[(&'static str, String)]) -> Option<u16> {
        refusal(&request(version, headers)).map(|response| response.status().as_u16())
    }

    fn host() -> (&'static str, String) {
        ("host", "x".into())
    }

    #[test]
    fn http_1_1_needs_one_host() {
        assert_eq!(status(Version::HTTP_11, &[]), Some(400));
        assert_eq!(status(Version::HTTP_11, &[host()]), None);
        assert_eq!(status(Version::HTTP_11, &[host(), host()]), Some(400));
        assert_eq!(status(Version::HTTP_10, &[]), None);
        assert_eq!(status(Version::HTTP_2, &[]), None);
    }

    #[test]
    fn the_number_of_headers_is_limited() {
        let some = |count: usize| {
            let others = (1..count).map(|_| ("a", "b".to_string()));
            status(Version::HTTP_11, &others.chain([host()]).collect::<Vec<_>>())
        };
        assert_eq!((some(HEADERS_MAX), some(HEADERS_MAX + 1)), (None, Some(431)));
    }

    #[test]
    fn the_bytes_of_headers_are_limited() {
        // `host: x` and `a:` with their overheads.
        let left = HEADER_BYTES_MAX - (4 + 1 + 32) - (1 + 32);
        let long = |bytes| status(Version::HTTP_11, &[host(), ("a", "x".repeat(bytes))]);
        assert_eq!((long(left), long(left + 1)), (None, Some(431)));
    }

    #[test]
    fn one_slash_at_the_end_of_a_path_is_dropped() {
        let table = [
            ("/", "/"),
            ("/v1/models", "/v1/models"),
            ("/v1/models/", "/v1/models"),
            ("/v1/models/?a=b/", "/v1/models?a=b/"),
            ("/v1/models//", "/v1/models/"),
            ("//", "/"),
            ("http://host/v1/models/", "http://host/v1/models"),
            ("*", "*"),
        ];
        for (sent, routed) in table {
            let mut request = Request::builder().uri(sent).body(()).unwrap();
            drop_trailing_slash(&mut request);
            assert_eq!(request.uri().to_string(), routed, "{sent}");
        }
    }

    #[test]
    fn only_identity_is_no_encoding() {
        let is = |value: &str| {
            is_encoded(request(Version::HTTP_11, &[("content-encoding", value.into())]).headers())
        };
        assert!(["gzip", "br", "x", "identity, gzip", "GZIP,identity"].into_iter().all(is));
        assert!(!["", "identity", "Identity", "identity, identity", " ,"].into_iter().any(is));
    }
}
