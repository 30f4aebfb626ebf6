//! The listener for plain HTTP beside TLS: answers HTTP-01 challenges of the ACME server, and
//! redirects all other requests to https.

use hyper::header::{CONNECTION, HOST, HeaderValue, LOCATION};
use hyper::{Request, Response, StatusCode};

use crate::config::Config;
use crate::types::response::{self, Body};

/// Where HTTP-01 looks for the answer to a challenge (RFC 8555, section 8.3).
const CHALLENGES: &str = "/.well-known/acme-challenge/";

/// Answers one request and closes the connection.
pub(crate) fn serve<B>(config: &Config, request: &Request<B>) -> Response<Body> {
    let mut response = match request.uri().path().strip_prefix(CHALLENGES) {
        Some(token) => answer(config, token),
        None => redirect(config, request),
    };
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

fn answer(config: &Config, token: &str) -> Response<Body> {
    let acme = config.acme.as_ref();
    match acme.and_then(|acme| acme.certificate.http_answer(token)) {
        Some(answer) => {
            tracing::info!("ACME challenge answered");
            response::with_type(StatusCode::OK, "application/octet-stream", answer)
        }
        None => response::text(StatusCode::NOT_FOUND, "no such challenge\n"),
    }
}

/// Redirects to a configured domain only, so that nobody can use the listener to send others
/// elsewhere.
fn redirect<B>(config: &Config, request: &Request<B>) -> Response<Body> {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let url = config.acme.as_ref().map(|acme| {
        let base = acme.url(acme.domain_of(host), config.listen);
        format!("{base}{path}")
    });
    let mut response = response::text(StatusCode::PERMANENT_REDIRECT, "use https\n");
    match url.and_then(|url| HeaderValue::from_str(&url).ok()) {
        Some(url) => drop(response.headers_mut().insert(LOCATION, url)),
        None => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    response
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::document::check;
    use crate::config::files::Files;
    use crate::config::yaml::parse;

    fn config() -> Config {
        let text = "listen: 0.0.0.0:443\nallow_anonymous: true\n\
             nodes: {static: [{url: 'http://10.0.0.1:8080'}]}\n\
             tls: {acme: {domains: [a.example.com, b.example.com], challenge: http-01, \
             http_listen: '0.0.0.0:80'}}\n";
        check(parse(text).unwrap(), Files::beside(Path::new("/nonexistent/gateway.yaml"))).unwrap()
    }

    fn ask(config: &Config, host: &str, target: &str) -> (u16, String) {
        let request = Request::post(target).header(HOST, host).body(()).unwrap();
        let response = serve(config, &request);
        assert_eq!(response.headers()[CONNECTION], "close");
        let to = response.headers().get(LOCATION).map(|to| to.to_str().unwrap().to_string());
        (response.status().as_u16(), to.unwrap_or_default())
    }

    #[test]
    fn everything_but_a_challenge_goes_to_a_domain_of_ours() {
        let config = config();
        for (host, target, to) in [
            ("b.example.com", "/v1/models?a=b", "https://b.example.com/v1/models?a=b"),
            ("B.example.com:80", "/", "https://b.example.com/"),
            ("evil.example", "//evil.example/", "https://a.example.com//evil.example/"),
        ] {
            assert_eq!(ask(&config, host, target), (308, to.into()));
        }
    }

    #[test]
    fn only_pending_challenges_are_answered() {
        let config = config();
        config.acme.as_ref().unwrap().certificate.answer_http("token", "token.thumbprint");
        let path = |token: &str| format!("{CHALLENGES}{token}");
        assert_eq!(ask(&config, "a.example.com", &path("token")).0, 200);
        for token in ["", "other", "token/", "../token"] {
            assert_eq!(ask(&config, "a.example.com", &path(token)).0, 404, "{token}");
        }
    }
}
