//! Sampling parameters: ranges, defaults, and refusals of what cannot be honoured.

use inference_core::request::{STOP_BYTES_MAX, STOPS_MAX, Sampling};
use inference_protocol::openai::SamplingFields;

use crate::error::Error;

/// Checked parameters.
#[derive(Debug, PartialEq)]
pub struct Checked {
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Most tokens to generate.
    pub max_tokens: Option<u32>,
    /// Strings that end the answer.
    pub stop: Vec<String>,
}

/// Checks the fields that both endpoints share. `random_seed` is used where none is given.
pub fn check(fields: SamplingFields, random_seed: u64) -> Result<Checked, Error> {
    refuse_unsupported(&fields)?;
    let sampling = Sampling {
        temperature: range("temperature", fields.temperature, 1.0, 0.0..=2.0)?,
        top_k: fields.top_k.unwrap_or(0),
        top_p: range("top_p", fields.top_p, 1.0, 0.0..=1.0)?,
        min_p: range("min_p", fields.min_p, 0.0, 0.0..=1.0)?,
        // A negative seed is as good as any other.
        seed: fields.seed.map_or(random_seed, |s| s as u64),
    };
    if fields.max_tokens == Some(0) {
        return Err(invalid("max_tokens", "max_tokens must be at least 1"));
    }
    let stop = fields.stop.map(|s| s.into_vec()).unwrap_or_default();
    if stop.len() > STOPS_MAX {
        return Err(invalid("stop", &format!("stop takes at most {STOPS_MAX} strings")));
    }
    if stop.iter().any(|s| s.is_empty() || s.len() > STOP_BYTES_MAX) {
        let message = format!("a stop string must have 1 to {STOP_BYTES_MAX} bytes");
        return Err(invalid("stop", &message));
    }
    Ok(Checked { sampling, max_tokens: fields.max_tokens, stop })
}

fn refuse_unsupported(fields: &SamplingFields) -> Result<(), Error> {
    if fields.n.is_some_and(|n| n != 1) {
        return Err(invalid("n", "n must be 1: send the request again for another answer"));
    }
    if fields.frequency_penalty.is_some_and(|p| p != 0.0) {
        return Err(invalid("frequency_penalty", "frequency_penalty must be 0 with this engine"));
    }
    if fields.presence_penalty.is_some_and(|p| p != 0.0) {
        return Err(invalid("presence_penalty", "presence_penalty must be 0 with this engine"));
    }
    if fields.logit_bias.as_ref().is_some_and(|b| !b.is_empty()) {
        return Err(invalid("logit_bias", "logit_bias must be empty with this engine"));
    }
    Ok(())
}

fn range(
    param: &'static str,
    value: Option<f32>,
    default: f32,
    allowed: std::ops::RangeInclusive<f32>,
) -> Result<f32, Error> {
    let value = value.unwrap_or(default);
    if allowed.contains(&value) {
        return Ok(value);
    }
    let message = format!("{param} must be {} to {}", allowed.start(), allowed.end());
    Err(invalid(param, &message))
}

/// A refusal that names its parameter.
pub fn invalid(param: &'static str, message: &str) -> Error {
    Error::Invalid { param, message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_json(json: &str) -> Result<Checked, Error> {
        check(inference_protocol::openai::parse(json.as_bytes()).unwrap(), 42)
    }

    fn refused_param(json: &str) -> Option<String> {
        check_json(json).unwrap_err().param()
    }

    #[test]
    fn absent_and_null_are_the_defaults() {
        let expected = Sampling { temperature: 1.0, seed: 42, ..Sampling::GREEDY };
        assert_eq!(check_json("{}").unwrap().sampling, expected);
        assert_eq!(check_json(r#"{"temperature":null,"stop":null}"#).unwrap().sampling, expected);
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (json, param) in [
            (r#"{"n":2}"#, "n"),
            (r#"{"temperature":2.1}"#, "temperature"),
            (r#"{"temperature":-0.1}"#, "temperature"),
            (r#"{"top_p":1.5}"#, "top_p"),
            (r#"{"max_tokens":0}"#, "max_tokens"),
            (r#"{"frequency_penalty":0.5}"#, "frequency_penalty"),
            (r#"{"presence_penalty":0.5}"#, "presence_penalty"),
            (r#"{"logit_bias":{"1":5}}"#, "logit_bias"),
            (r#"{"stop":""}"#, "stop"),
        ] {
            assert_eq!(refused_param(json).as_deref(), Some(param), "{json}");
        }
        assert!(check_json(r#"{"n":1,"frequency_penalty":0,"logit_bias":{}}"#).is_ok());
    }

    #[test]
    fn stop_is_a_string_or_a_list() {
        assert_eq!(check_json(r#"{"stop":"a"}"#).unwrap().stop, ["a"]);
        assert_eq!(check_json(r#"{"stop":["a","b"]}"#).unwrap().stop, ["a", "b"]);
    }
}
