//! Reads `options`: sampling under Ollama's names.

use serde_json::Value;

use super::OPTION_FIELDS;
use crate::conversation::{Conversation, Sampling};
use crate::fault::{Fault, Fields, expected, list, text};

/// Options that chat completion requests have under the same name.
const NUMBERS: [&str; 5] =
    ["min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty"];

/// Reads the options into a conversation.
pub(super) fn read(value: Value, conversation: &mut Conversation) -> Result<(), Fault> {
    let mut options = Fields::of(value)?;
    refuse(&mut options, "mirostat", 0.0)?;
    refuse(&mut options, "tfs_z", 1.0)?;
    conversation.sampling = Sampling {
        temperature: options.number("temperature")?,
        top_p: options.number("top_p")?,
        top_k: options.read("top_k", whole)?,
        stop: options.read("stop", stop)?.unwrap_or_default(),
    };
    let tokens_max = options.read("num_predict", whole)?;
    conversation.tokens_max = tokens_max.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
    let extra = &mut conversation.extra;
    for name in NUMBERS {
        if let Some(number) = options.read(name, number)? {
            extra.insert(name.into(), number);
        }
    }
    if let Some(window) = options.read("repeat_last_n", whole)? {
        extra.insert("repeat_last_n".into(), window.into());
    }
    if let Some(seed) = options.read("seed", whole)?.filter(|seed| *seed != -1) {
        extra.insert("seed".into(), seed.into());
    }
    Ok(())
}

fn refuse(options: &mut Fields, name: &str, neutral: f64) -> Result<(), Fault> {
    let note = OPTION_FIELDS.iter().find(|field| field.name == name).map_or("", |field| field.note);
    match options.number(name)? {
        Some(value) if value != neutral => {
            Err(Fault::of(name, format!("it is not supported: {note}")))
        }
        _ => Ok(()),
    }
}

fn stop(value: Value) -> Result<Vec<String>, Fault> {
    match value {
        Value::String(stop) => Ok(vec![stop]),
        stops => list(stops, text),
    }
}

fn number(value: Value) -> Result<Value, Fault> {
    if value.is_number() { Ok(value) } else { Err(expected("a number", &value)) }
}

/// A whole number. `20.0` is one.
fn whole(value: Value) -> Result<i64, Fault> {
    let is_whole = |number: &f64| number.fract() == 0.0 && number.abs() <= 9e15;
    let whole = value.as_i64().or_else(|| value.as_f64().filter(is_whole).map(|n| n as i64));
    whole.ok_or_else(|| expected("a whole number", &value))
}
