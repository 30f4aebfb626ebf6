//! PURE. Response statuses without a file: which may change with time, and what to tell the
//! operator about the others.

use hyper::header::HeaderMap;

use super::response::retry_after;
use super::source::Source;
use crate::types::exit::{EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, Failed};

/// Maximum characters shown of a server's own message.
const WORDS_MAX: usize = 300;

/// The request that was refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RefusedRequest<'a> {
    pub source: &'a Source,
    /// Host of the last response, after redirects.
    pub host: &'a str,
    /// True if that is the hub.
    pub hub: bool,
    /// True if the hub's key was sent.
    pub key: bool,
}

/// Why there is no file.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Temporary: retry, after at least these seconds.
    Temporary(String, Option<u64>),
    Permanent(Failed),
}

/// Interprets a status other than 200, 206 and redirects.
pub(crate) fn refusal(status: u16, headers: &HeaderMap, request: &RefusedRequest) -> Refusal {
    let server_message = words(headers);
    if matches!(status, 408 | 429 | 500 | 502 | 503 | 504) {
        let why = match status {
            429 => format!("{} enforces a rate limit (429){server_message}", request.host),
            _ => format!("{} is unavailable ({status}){server_message}", request.host),
        };
        return Refusal::Temporary(why, retry_after(headers));
    }
    let shown = request.source.shown();
    let (code, reason) = match status {
        401 | 403 => (EXIT_NO_PERMISSION, no_permission(status, request)),
        404 | 410 => (EXIT_UNAVAILABLE, not_found(status, request)),
        416 => (
            EXIT_UNAVAILABLE,
            format!(
                "{} rejects the byte range of {shown} (416): check that the file is not empty",
                request.host
            ),
        ),
        _ => (EXIT_UNAVAILABLE, format!("{} returned {status} for {shown}", request.host)),
    };
    Refusal::Permanent(Failed { code, message: format!("{reason}{server_message}") })
}

fn no_permission(status: u16, request: &RefusedRequest) -> String {
    let (shown, host) = (request.source.shown(), request.host);
    if !request.hub {
        return format!(
            "{host} denies access to {shown} ({status}): check that the URL has not expired"
        );
    }
    let repo = request.source.repo().unwrap_or("its repository");
    if request.key {
        format!(
            "{host} denies access to {shown} ({status}) with the token in HF_TOKEN: accept the terms \
             of {repo} there, and check that the token may read it"
        )
    } else {
        format!(
            "{host} denies access to {shown} ({status}): check the names; if {repo} is private or \
             gated, accept its terms there and set HF_TOKEN to your token"
        )
    }
}

fn not_found(status: u16, request: &RefusedRequest) -> String {
    match request.source {
        Source::Hub { repo, revision, path } if path.is_empty() => format!(
            "{} has no repository {repo} with a revision {revision} ({status}): check the names",
            request.host
        ),
        Source::Hub { repo, revision, path } => format!(
            "{} has no file {} in {repo} at {revision} ({status}): check the names and --revision",
            request.host,
            path.join("/")
        ),
        Source::Web(_) => {
            format!("{} has no {} ({status}): check the URL", request.host, request.source.shown())
        }
    }
}

/// The server's own message, if it is one short line.
fn words(headers: &HeaderMap) -> String {
    let message = headers.get("x-error-message").and_then(|v| v.to_str().ok()).unwrap_or_default();
    let message: String = message.chars().filter(|c| !c.is_control()).take(WORDS_MAX).collect();
    if message.is_empty() { message } else { format!("; server message: {message}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(source: &Source, key: bool) -> RefusedRequest<'_> {
        RefusedRequest { source, host: "hub.example", hub: true, key }
    }

    fn message(status: u16, key: bool) -> (u8, String) {
        let source = Source::parse("hf:own/rep/a/m.gguf", None).unwrap();
        match refusal(status, &HeaderMap::new(), &asked(&source, key)) {
            Refusal::Permanent(Failed { code, message }) => (code, message),
            Refusal::Temporary(why, _) => panic!("{why}"),
        }
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        for status in [401, 403] {
            let (code, without) = message(status, false);
            assert!(code == 77 && without.contains("set HF_TOKEN"), "{without}");
            let (_, with) = message(status, true);
            assert!(with.contains("accept the terms of own/rep"), "{with}");
        }
        let (code, missing) = message(404, false);
        assert!(code == 69 && missing.contains("no file a/m.gguf in own/rep at main"), "{missing}");
        assert!(message(416, false).1.contains("416"));
        assert!(message(451, false).1.contains("451"));
    }

    #[test]
    fn what_may_pass_is_asked_again() {
        let source = Source::parse("hf:own/rep/m.gguf", None).unwrap();
        for status in [408, 429, 500, 502, 503, 504] {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", "9".parse().unwrap());
            headers.insert("x-error-message", "too many".parse().unwrap());
            match refusal(status, &headers, &asked(&source, false)) {
                Refusal::Temporary(why, Some(9)) => assert!(why.contains("too many"), "{why}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
