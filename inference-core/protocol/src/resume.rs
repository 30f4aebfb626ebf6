//! Answers that outlive their node.
//!
//! A gateway that sends a request with [`RESUME_HEADER`] puts a [`Resume`] before its body: id,
//! time and seed of the answer, and what is known of it already. The node then answers with a
//! stream of events, also where the client wants no stream: the whole answer is its only event
//! then. Into each event it writes [`Mark`]s, comment lines with the tokens that led to it. Text is
//! a function of the tokens, so that another node with the same model file, given the tokens,
//! writes the same events: it leaves out those that the client has, and goes on.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

/// Header of a request that the gateway sends: how many bytes of its body are a [`Resume`], as
/// JSON. The client's body follows.
pub const RESUME_HEADER: &str = "x-flotilla-resume";
/// The error code of a node that did not write the same events as the one before it.
pub const MISMATCH: &str = "resume_mismatch";
/// The error code of a node whose engine died while it worked on a request.
pub const ENGINE_LOST: &str = "engine_lost";

/// An answer, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// 32 hex digits, from which the answer's id is made.
    pub id: String,
    /// Unix time in seconds when it was asked for.
    pub created: u64,
    /// For the random numbers, where the client gives no seed.
    pub seed: u64,
    /// Of each choice, by its index; empty when nothing was said.
    #[serde(default)]
    pub choices: Vec<Said>,
    /// Whether the event with the usage was passed on.
    #[serde(default)]
    pub usage_told: bool,
    /// The model that is meant, where the body names it otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Most tokens of each choice, whatever the body says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_max: Option<u32>,
    /// The `service_tier` that the answer tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_tier: Option<String>,
}

impl Resume {
    /// Of an answer that begins; its id and its seed are random.
    pub fn new(random: u128, created: u64) -> Self {
        let id = format!("{random:032x}");
        Self { id, created, seed: random as u64, ..Self::default() }
    }

    /// The model that is meant by a body that names it so.
    pub fn model<'a>(told: &'a Option<Self>, named: Option<&'a str>) -> Option<&'a str> {
        told.as_ref().and_then(|told| told.model.as_deref()).or(named)
    }
}

/// What was said of a choice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// Its tokens, as far as marks told them.
    pub tokens: Vec<u32>,
    /// Its events that the client has.
    pub events: u64,
    /// Their bytes, without marks.
    pub bytes: u64,
}

/// A comment line at the beginning of an event. The event belongs to the choice of the last
/// [`Mark::Tokens`], unless a [`Mark::Usage`] came since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// More tokens of a choice.
    Tokens {
        /// Its index.
        choice: u32,
        /// The tokens.
        tokens: Vec<u32>,
    },
    /// What the answer used: once, with the first event after all choices.
    Usage(Usage),
}

/// Tokens that an answer used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of its prompts.
    pub prompt: u64,
    /// Of all choices.
    pub completion: u64,
    /// Of the prompts' tokens, those that did not have to be computed.
    pub cached: u64,
}

const TOKENS: &[u8] = b": t ";
const USAGE: &[u8] = b": u ";

impl Mark {
    /// Writes its line.
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

    /// Takes the mark from the beginning of an event, if one is there, and says what follows.
    /// A line that only looks like one is left where it is.
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
