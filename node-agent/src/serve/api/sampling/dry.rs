//! The parameters of DRY, with llama-server's defaults.

use inference_core::types::request::{BREAKERS_MAX, Dry, STOP_BYTES_MAX};
use inference_protocol::openai::SamplingFields;

use super::{invalid, range};
use crate::types::error::Error;

pub(super) fn check(fields: &SamplingFields) -> Result<Dry, Error> {
    let base = range("dry_base", fields.dry_base, Dry::OFF.base, 0.0..=100.0)?;
    Ok(Dry {
        multiplier: range("dry_multiplier", fields.dry_multiplier, 0.0, 0.0..=100.0)?,
        // As in llama-server.
        base: if base < 1.0 { Dry::OFF.base } else { base },
        allowed_length: fields.dry_allowed_length.unwrap_or(Dry::OFF.allowed_length),
        last_n: last_n(fields.dry_penalty_last_n)?,
        breakers: fields.dry_sequence_breakers.as_deref().map(breakers).transpose()?,
    })
}

/// -1 means all tokens.
fn last_n(tokens: Option<i64>) -> Result<u32, Error> {
    match tokens {
        None => Ok(Dry::OFF.last_n),
        Some(-1) => Ok(u32::MAX),
        Some(n) => u32::try_from(n).map_err(|_| {
            let message = format!("dry_penalty_last_n must be -1 (all) to {}, not {n}", u32::MAX);
            invalid("dry_penalty_last_n", &message)
        }),
    }
}

fn breakers(texts: &[String]) -> Result<Vec<String>, Error> {
    let is_bad = |text: &String| text.is_empty() || text.len() > STOP_BYTES_MAX;
    if texts.is_empty() || texts.len() > BREAKERS_MAX || texts.iter().any(is_bad) {
        let message = format!(
            "dry_sequence_breakers must be a list of 1 to {BREAKERS_MAX} strings of 1 to \
             {STOP_BYTES_MAX} bytes"
        );
        return Err(invalid("dry_sequence_breakers", &message));
    }
    Ok(texts.to_vec())
}
