//! Bodies that create message batches.

use std::collections::BTreeSet;
use std::io::Read;

use flotilla_gateway::server::message_batches::requests::{Rules, read};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::input::{Choices, expand, split};

const ENDPOINT: &str = "/v1/messages";
const RULES: Rules = Rules { requests_max: 5, request_bytes_max: 4096 };

/// A body is refused with a reason, or its requests become lines, one for each, in their order.
/// That does not depend on how its bytes arrive.
pub fn message_batch(data: &[u8]) {
    let (body, choices) = split(data);
    let body = expand(body);
    let mut choices = Choices::new(choices);
    let whole = lines_of(&body[..]);
    let pieces = Pieces { current: &[], later: choices.pieces(&body).into_iter() };
    assert_eq!(lines_of(pieces), whole, "the same in pieces");
    let Ok((count, lines)) = whole else { return };
    let lines: Vec<&str> = std::str::from_utf8(&lines).expect("UTF-8").lines().collect();
    assert_eq!(lines.len(), count);
    assert!((1..=RULES.requests_max).contains(&count));
    let ids: BTreeSet<String> = lines.iter().map(|line| check(line)).collect();
    assert_eq!(ids.len(), count, "each id once");
}

/// A line of a batch. Its body may be nested more deeply than we read: then the line fails later.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    custom_id: String,
    method: String,
    url: String,
    #[serde(borrow)]
    body: &'a RawValue,
}

/// Checks a line and returns its id.
fn check(line: &str) -> String {
    let line: Line<'_> = serde_json::from_str(line).expect("a line is JSON, with these fields");
    assert_eq!((line.method.as_str(), line.url.as_str()), ("POST", ENDPOINT));
    assert!(line.body.get().starts_with('{'));
    assert!((1..=64).contains(&line.custom_id.len()));
    line.custom_id
}

/// How many requests a body has, and their lines; or why it is refused.
fn lines_of(body: impl Read) -> Result<(usize, Vec<u8>), String> {
    let mut lines = Vec::new();
    let take = |part: Vec<u8>| {
        lines.extend(part);
        true
    };
    match read(body, &RULES, ENDPOINT, take) {
        Ok(count) => Ok((count, lines)),
        Err(error) => {
            let why = error.to_string();
            assert!((400..500).contains(&error.status()) && !why.is_empty(), "{why}");
            Err(why)
        }
    }
}

/// Bytes that arrive in pieces, none of which is empty.
struct Pieces<'a> {
    current: &'a [u8],
    later: std::vec::IntoIter<&'a [u8]>,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.current.is_empty() {
            self.current = self.later.next().unwrap_or_default();
        }
        self.current.read(buffer)
    }
}
