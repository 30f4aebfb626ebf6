//! What becomes of each field of a request.

use inference_protocol::openai::{Endpoint, Unsupported};
use serde_json::Value;

use crate::fault::{Fault, Fields};

/// What a request's field does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It has its meaning.
    Honored,
    /// It may be there and changes nothing.
    Ignored,
    /// A request that sets it is rejected: its response would not be what the client asked for.
    Rejected,
}

/// A field of an API's request, for its reference page.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub effect: Effect,
    /// More about it; for a rejected field, the reason or the alternative.
    pub note: &'static str,
}

impl Field {
    pub(crate) const fn honored(name: &'static str, note: &'static str) -> Self {
        Self { name, effect: Effect::Honored, note }
    }

    pub(crate) const fn ignored(name: &'static str, note: &'static str) -> Self {
        Self { name, effect: Effect::Ignored, note }
    }

    pub(crate) const fn rejected(name: &'static str, note: &'static str) -> Self {
        Self { name, effect: Effect::Rejected, note }
    }
}

/// Refuses a request that sets a field of `table` that cannot be honored. Values that ask for
/// nothing pass, because some clients always send them.
pub(crate) fn refuse_rejected(fields: &Fields, table: &[Field]) -> Result<(), Fault> {
    let asking = fields.0.iter().filter(|(_, value)| !asks_for_nothing(value));
    for (name, _) in asking {
        let known = table.iter().find(|field| field.name == name);
        if let Some(Field { note, .. }) = known.filter(|field| field.effect == Effect::Rejected) {
            return Err(Fault::of(name, format!("it is not supported: {note}")));
        }
    }
    Ok(())
}

/// Refuses a request that sets a field of other servers' chat completions, unless it is one of this
/// API (`own`): as if it were absent would be worse.
pub(crate) fn refuse_unsupported(fields: &Fields, own: &[&[Field]]) -> Result<(), Fault> {
    let is_own = |name: &str| own.iter().any(|table| table.iter().any(|field| field.name == name));
    for (name, value) in fields.0.iter().filter(|(name, _)| !is_own(name)) {
        let row = Unsupported::find(name).filter(|row| row.at.contains(&Endpoint::Chat));
        if let Some(row) = row.filter(|row| !row.is_neutral(value)) {
            return Err(Fault::of(name, format!("it is not supported: {}", row.instead)));
        }
    }
    Ok(())
}

fn asks_for_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) | Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(Value::is_null),
    }
}
