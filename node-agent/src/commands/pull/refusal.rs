//! PURE. Response statuses without a file: which may change with time, and what to tell the
//! operator about the others.

use hyper::header::HeaderMap;

use super::answer::retry_after;
use super::source::Source;
use crate::types::exit::{EXIT_NO_PERMISSION, EXIT_UNAVAILABLE, Failed};

/// Maximum characters shown of a server's own message.
const WORDS_MAX: usize = 300;

/// The request that was refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// Requested file.
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
    Later(String, Option<u64>),
    /// Permanent.
    Final(Failed),
}

/// Interprets a status other than 200, 206 and redirects.
pub(crate) fn refusal(status: u16, headers: &HeaderMap, asked: &Asked) -> Refusal {
    let said = words(headers);
    if matches!(status, 408 | 429 | 500 | 502 | 503 | 504) {
        let why = match status {
            429 => format!("{} answers that we ask too often (429){said}", asked.host),
            _ => format!("{} cannot answer now ({status}){said}", asked.host),
        };
        return Refusal::Later(why, retry_after(headers));
    }
    let shown = asked.source.shown();
    let (code, message) = match status {
        401 | 403 => (EXIT_NO_PERMISSION, no_permission(status, asked)),
        404 | 410 => (EXIT_UNAVAILABLE, not_found(status, asked)),
        416 => (
            EXIT_UNAVAILABLE,
            format!("{} has no such bytes of {shown} (416): is the file empty there?", asked.host),
        ),
        _ => (EXIT_UNAVAILABLE, format!("{} answers {status} for {shown}", asked.host)),
    };
    Refusal::Final(Failed { code, message: format!("{message}{said}") })
}

fn no_permission(status: u16, asked: &Asked) -> String {
    let (shown, host) = (asked.source.shown(), asked.host);
    if !asked.hub {
        return format!("{host} does not give us {shown} ({status}): is its address still good?");
    }
    let repo = asked.source.repo().unwrap_or("its repository");
    if asked.key {
        format!(
            "{host} does not give us {shown} ({status}) with the key in HF_TOKEN: accept the terms \
             of {repo} there, and check that the key may read it"
        )
    } else {
        format!(
            "{host} does not give us {shown} ({status}): check the names; if {repo} is private or \
             has terms, accept them there and set HF_TOKEN to a key of yours"
        )
    }
}

fn not_found(status: u16, asked: &Asked) -> String {
    match asked.source {
        Source::Hub { repo, revision, path } => format!(
            "{} has no file {} in {repo} at {revision} ({status}): check the names and --revision",
            asked.host,
            path.join("/")
        ),
        Source::Web(_) => {
            format!("{} has no {} ({status}): check the URL", asked.host, asked.source.shown())
        }
    }
}

/// The server's own message, if it is one short line.
fn words(headers: &HeaderMap) -> String {
    let said = headers.get("x-error-message").and_then(|v| v.to_str().ok()).unwrap_or_default();
    let said: String = said.chars().filter(|c| !c.is_control()).take(WORDS_MAX).collect();
    if said.is_empty() { said } else { format!("; it says: {said}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(source: &Source, key: bool) -> Asked<'_> {
        Asked { source, host: "hub.example", hub: true, key }
    }

    fn message(status: u16, key: bool) -> (u8, String) {
        let source = Source::parse("hf:own/rep/a/m.gguf", None).unwrap();
        match refusal(status, &HeaderMap::new(), &asked(&source, key)) {
            Refusal::Final(Failed { code, message }) => (code, message),
            Refusal::Later(why, _) => panic!("{why}"),
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
                Refusal::Later(why, Some(9)) => assert!(why.contains("too many"), "{why}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
