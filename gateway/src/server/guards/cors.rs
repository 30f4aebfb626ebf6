//! PURE. CORS: which web pages may call the API, and which response headers they may read. Off
//! unless origins are configured. API keys are required as always.

use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};

use crate::config::cors::Cors;
use crate::types::response::{self, Body};

/// Paths with CORS.
const PATHS: &str = "/v1/";
/// Seconds for which a browser may cache a preflight response.
const MAX_AGE: &str = "600";
/// Response headers that pages may read, besides the CORS-safelisted ones.
const EXPOSED: &str = "x-request-id, request-id, retry-after, x-flotilla-endpoint, x-flotilla-class, \
    x-flotilla-stream, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-reset-requests, \
    x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens";

/// CORS headers of one response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CorsHeaders {
    /// None.
    Nothing,
    /// Only `Vary: origin`, because other origins get other headers.
    Varies,
    /// This origin may read the response.
    Origin(HeaderValue),
    /// Any origin may read it.
    Any,
}

impl Cors {
    /// The CORS headers for the response to this request.
    pub(crate) fn headers_for<B>(&self, request: &Request<B>) -> CorsHeaders {
        let origin = request.headers().get(header::ORIGIN);
        match self {
            _ if !request.uri().path().starts_with(PATHS) => CorsHeaders::Nothing,
            Self::Off => CorsHeaders::Nothing,
            Self::Any if origin.is_some() => CorsHeaders::Any,
            Self::Any => CorsHeaders::Nothing,
            Self::Origins(listed) => match origin.filter(|origin| listed.contains(origin)) {
                Some(origin) => CorsHeaders::Origin(origin.clone()),
                None => CorsHeaders::Varies,
            },
        }
    }
}

impl CorsHeaders {
    fn origin(&self) -> Option<HeaderValue> {
        match self {
            Self::Nothing | Self::Varies => None,
            Self::Origin(origin) => Some(origin.clone()),
            Self::Any => Some(HeaderValue::from_static("*")),
        }
    }

    /// The response to a preflight request. `None` for other requests and for origins that are not
    /// allowed: those get what any OPTIONS request gets.
    pub(crate) fn preflight<B>(&self, request: &Request<B>) -> Option<Response<Body>> {
        let headers = request.headers();
        let asks = request.method() == Method::OPTIONS
            && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
        if !asks || self.origin().is_none() {
            return None;
        }
        let mut response = Response::new(response::whole(""));
        *response.status_mut() = StatusCode::NO_CONTENT;
        let answer = response.headers_mut();
        let mut say = |name, text| answer.insert(name, HeaderValue::from_static(text));
        say(header::ACCESS_CONTROL_ALLOW_METHODS, "GET, HEAD, POST, DELETE");
        say(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        // Any header: unknown ones are ignored anyway.
        if let Some(wanted) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        Some(response)
    }

    /// Adds the CORS headers to a response.
    pub(crate) fn add_to(&self, headers: &mut HeaderMap) {
        if matches!(self, Self::Varies | Self::Origin(_)) {
            headers.append(header::VARY, HeaderValue::from_static("origin"));
        }
        let Some(origin) = self.origin() else { return };
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let exposed = HeaderValue::from_static(EXPOSED);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APP: &str = "https://app.example.com";

    fn request(method: &str, path: &str, origin: Option<&str>) -> Request<()> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(origin) = origin {
            request = request.header("origin", origin);
        }
        request.header("access-control-request-method", "POST").body(()).unwrap()
    }

    fn app() -> Cors {
        Cors::Origins(vec![HeaderValue::from_static(APP)])
    }

    #[test]
    fn only_listed_origins_are_allowed_and_only_where_pages_ask() {
        let said = |cors: &Cors, path, origin| cors.headers_for(&request("GET", path, origin));
        let listed = CorsHeaders::Origin(HeaderValue::from_static(APP));
        assert_eq!(said(&app(), "/v1/models", Some(APP)), listed);
        for other in [None, Some("null"), Some("https://app.example.com.evil.net")] {
            assert_eq!(said(&app(), "/v1/models", other), CorsHeaders::Varies);
        }
        assert_eq!(said(&app(), "/metrics", Some(APP)), CorsHeaders::Nothing);
        assert_eq!(said(&Cors::Off, "/v1/models", Some(APP)), CorsHeaders::Nothing);
        assert_eq!(said(&Cors::Any, "/v1/models", Some("null")), CorsHeaders::Any);
        assert_eq!(said(&Cors::Any, "/v1/models", None), CorsHeaders::Nothing);
    }

    #[test]
    fn a_preflight_is_answered_for_pages_that_may_ask() {
        let ask = |cors: Cors, origin| {
            let request = request("OPTIONS", "/v1/models", Some(origin));
            cors.headers_for(&request).preflight(&request)
        };
        assert_eq!(ask(app(), APP).unwrap().status(), 204);
        assert_eq!(ask(Cors::Any, "https://x.y").unwrap().status(), 204);
        assert!(ask(app(), "https://x.y").is_none());
        assert!(ask(Cors::Off, APP).is_none());
        let post = request("POST", "/v1/models", Some(APP));
        assert!(app().headers_for(&post).preflight(&post).is_none());
    }
}
