//! Responses that survive the loss of their node.
//!
//! A gateway that sends a request with [`RESUME_HEADER`] puts a [`Resume`] before its body: the
//! response's id, time and seed, and what is already known of it. The node then always responds
//! with a stream of events; if the client wants no stream, the whole response is its only event.
//! The node adds [`Mark`]s to the events, comment lines with the tokens that led to each. Text is a
//! function of the tokens, so another node with the same model file that gets the tokens writes the
//! same events: it skips those that the client has, and continues.
//!
//! ```
//! use inference_protocol::openai;
//! use inference_protocol::resume::{Mark, RESUME_HEADER, Resume};
//!
//! // The gateway sends its state before the client's body, and its length in the header.
//! let state = serde_json::to_string(&Resume::new(0xab, 1_700_000_000)).unwrap();
//! let header = (RESUME_HEADER, state.len());
//! let body = state + r#"{"model":"m","messages":[]}"#;
//!
//! // The node splits the body there.
//! let (state, request) = body.split_at(header.1);
//! let resume: Resume = openai::parse(state.as_bytes()).unwrap();
//! assert_eq!((resume.seed, resume.choices.len()), (0xab, 0));
//! assert!(request.starts_with(r#"{"model""#));
//!
//! // Its events begin with marks, which the gateway takes off.
//! let mut event = String::new();
//! Mark::Tokens { choice: 0, tokens: vec![12, 99] }.write(&mut event);
//! event += "data: {}\n\n";
//! assert_eq!(event, ": t 0 12,99\ndata: {}\n\n");
//! let (mark, rest) = Mark::take(event.as_bytes()).unwrap();
//! assert_eq!(mark, Mark::Tokens { choice: 0, tokens: vec![12, 99] });
//! assert_eq!(rest, b"data: {}\n\n");
//! ```

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::sse;

/// Header of a request from the gateway: how many bytes of its body are a [`Resume`] in JSON. The
/// client's body follows.
pub const RESUME_HEADER: &str = "x-flotilla-resume";
/// Error code of a node that did not write the same events as the one before it.
pub const MISMATCH: &str = "resume_mismatch";
/// Error code of a node whose engine died while it worked on a request.
pub const ENGINE_LOST: &str = "engine_lost";

/// What is known of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// 32 hex digits, from which the response id is made.
    pub id: String,
    /// Time of the request, Unix seconds.
    pub created: u64,
    /// Seed of the sampler, if the client gives none.
    pub seed: u64,
    /// State of each choice, by index; empty if nothing was generated.
    #[serde(default)]
    pub choices: Vec<ResumedChoice>,
    /// True if the client has received the usage event.
    #[serde(default, rename = "usage_told")]
    pub is_usage_sent: bool,
    /// The intended model, if the body names it differently.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Maximum tokens of each choice; overrides the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_max: Option<u32>,
    /// Maximum tokens of the prompts and all choices together, by the budget of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage_max: Option<u64>,
    /// The `service_tier` that the response reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<String>,
    /// For a part of a list to embed or rank: how many entries of the client's list come before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entries_before: Option<u32>,
}

impl Resume {
    /// Starts a new response; `random` provides its id and its seed.
    pub fn new(random: u128, created: u64) -> Self {
        let id = format!("{random:032x}");
        Self { id, created, seed: random as u64, ..Self::default() }
    }

    /// The index in the client's list of an entry of the body's list.
    pub fn entry(resume: &Option<Self>, index: u32) -> u32 {
        let before = resume.as_ref().and_then(|resume| resume.entries_before);
        index.saturating_add(before.unwrap_or(0))
    }

    /// The intended model of a body that names it `named`.
    pub fn model<'a>(resume: &'a Option<Self>, named: Option<&'a str>) -> Option<&'a str> {
        resume.as_ref().and_then(|resume| resume.model.as_deref()).or(named)
    }
}

/// What was generated of a choice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumedChoice {
    /// Its tokens, as far as marks reported them.
    pub tokens: Vec<u32>,
    /// Number of its events that the client has.
    pub events: u64,
    /// Size of those events in bytes, without marks.
    pub bytes: u64,
}

/// A comment line at the start of an event. The event belongs to the choice of the last
/// [`Mark::Tokens`], unless a [`Mark::Usage`] came since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// More tokens of a choice.
    Tokens {
        /// Index of the choice.
        choice: u32,
        /// Token ids.
        tokens: Vec<u32>,
    },
    /// Token usage: once, with the first event after all choices.
    Usage(Usage),
}

/// Token usage of a response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of its prompts.
    pub prompt: u64,
    /// Tokens of all choices.
    pub completion: u64,
    /// Prompt tokens served from the cache.
    pub cached: u64,
}

/// Begins an event that only tells how far the prefill is; the event itself follows on the same
/// line. It is no part of the response: a gateway passes it on and does not count it. A gateway
/// that does not know it takes it for a comment.
const PREFILL: &str = ": p ";

/// An event with this payload about the progress of the prefill, for a gateway.
///
/// ```
/// use inference_protocol::resume::{prefill_event, take_prefill};
///
/// let event = prefill_event("{}");
/// assert_eq!(event, ": p data: {}\n\n");
/// assert_eq!(take_prefill(event.as_bytes()), Some(&b"data: {}\n\n"[..]));
/// assert_eq!(take_prefill(b"data: {}\n\n"), None);
/// ```
pub fn prefill_event(payload: &str) -> String {
    format!("{PREFILL}{}", sse::data(payload))
}

/// The event for the client, if `event` is about the progress of the prefill. Anything but a
/// payload after the mark, such as another mark, makes the line a comment.
pub fn take_prefill(event: &[u8]) -> Option<&[u8]> {
    event.strip_prefix(PREFILL.as_bytes()).filter(|event| event.starts_with(b"data: "))
}

/// True if a block of events tells only how far the prefill is.
pub fn is_prefill_only(block: &[u8]) -> bool {
    block.starts_with(PREFILL.as_bytes())
        && sse::events(block).all(|event| take_prefill(event).is_some())
}

const TOKENS: &[u8] = b": t ";
const USAGE: &[u8] = b": u ";

impl Mark {
    /// Appends its line to `out`.
    pub fn write(&self, out: &mut String) {
        // Writing to a string cannot fail.
        let _ = match self {
            Self::Tokens { choice, tokens } => {
                let mut separator = ' ';
                let _ = write!(out, ": t {choice}");
                for token in tokens {
                    let _ = write!(out, "{separator}{token}");
                    separator = ',';
                }
                writeln!(out)
            }
            Self::Usage(Usage { prompt, completion, cached }) => {
                writeln!(out, ": u {prompt} {completion} {cached}")
            }
        };
    }

    /// Splits off a mark at the start of an event, and returns it with the rest. Leaves a line that
    /// only looks like a mark in place.
    pub fn take(event: &[u8]) -> Option<(Self, &[u8])> {
        if !event.starts_with(TOKENS) && !event.starts_with(USAGE) {
            return None;
        }
        let end = event.iter().position(|b| *b == b'\n')?;
        let mark = Self::read(std::str::from_utf8(&event[..end]).ok()?)?;
        Some((mark, &event[end + 1..]))
    }

    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ').skip(1);
        let kind = words.next()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        if kind == "u" {
            let (prompt, completion, cached) = (number()?, number()?, number()?);
            return Some(Self::Usage(Usage { prompt, completion, cached }));
        }
        let choice = u32::try_from(number()?).ok()?;
        let tokens = words.next().map_or(Some(Vec::new()), |list| {
            list.split(',').map(|token| token.parse().ok()).collect()
        })?;
        Some(Self::Tokens { choice, tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(mark: &Mark) -> String {
        let mut out = String::new();
        mark.write(&mut out);
        out
    }

    #[test]
    fn marks_are_comment_lines() {
        let tokens = Mark::Tokens { choice: 3, tokens: vec![12, 0, 99] };
        assert_eq!(line(&tokens), ": t 3 12,0,99\n");
        assert_eq!(line(&Mark::Tokens { choice: 0, tokens: Vec::new() }), ": t 0\n");
        let usage = Usage { prompt: 7, completion: 2, cached: 5 };
        assert_eq!(line(&Mark::Usage(usage)), ": u 7 2 5\n");
    }

    #[test]
    fn what_is_no_mark_stays_in_its_event() {
        for event in ["data: x\n\n", ": t\n\n", ": t x\n", ": t 1 2,\n", ": u 1 2\n", ": t 1 2", ""]
        {
            assert_eq!(Mark::take(event.as_bytes()), None, "{event:?}");
        }
    }

    #[test]
    fn a_block_with_anything_of_the_response_is_not_only_about_the_prefill() {
        let progress = prefill_event("{}");
        assert!(is_prefill_only(progress.repeat(2).as_bytes()));
        assert!(!is_prefill_only(format!("{progress}: t 0 1\ndata: x\n\n").as_bytes()));
        assert!(!is_prefill_only(format!("data: x\n\n{progress}").as_bytes()));
        assert!(!is_prefill_only(b""));
        assert!(!is_prefill_only(b": p : t 0 1\ndata: x\n\n"), "a mark within a mark");
    }

    #[test]
    fn a_resume_is_small_while_nothing_was_said() {
        let resume = Resume { id: "0f".into(), created: 1, seed: 2, ..Resume::default() };
        let json = serde_json::to_string(&resume).unwrap();
        assert_eq!(serde_json::from_str::<Resume>(&json).unwrap(), resume);
        assert!(serde_json::from_str::<Resume>(r#"{"id":"0f","created":1,"seed":2}"#).is_ok());
    }

    proptest! {
        #[test]
        fn a_mark_that_is_written_is_taken_from_its_event(
            choice in any::<u32>(), tokens in proptest::collection::vec(any::<u32>(), 0..9)
        ) {
            let mark = Mark::Tokens { choice, tokens };
            let event = format!("{}data: x\n\n", line(&mark));
            prop_assert_eq!(Mark::take(event.as_bytes()), Some((mark, &b"data: x\n\n"[..])));
        }
    }
}
