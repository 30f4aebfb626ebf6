//! Documents: JSON whose fields with what clients have written are encrypted. The other fields stay
//! readable, so that lists for operators need no key.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::StoreError;
use super::keyring::{Binding, Keyring};
use super::sql::Fault;

/// The field with those that are encrypted.
const SEALED: &str = "encrypted";

/// A document as it is stored.
pub(super) fn seal(
    keyring: &Keyring,
    binding: &Binding,
    document: &impl Serialize,
    secret: &[&str],
) -> Result<String, StoreError> {
    let mut fields = match serde_json::to_value(document) {
        Ok(Value::Object(fields)) => fields,
        _ => return Err(StoreError::Unavailable),
    };
    let hidden: Map<String, Value> =
        secret.iter().filter_map(|name| fields.remove_entry(*name)).collect();
    let plain = Value::Object(hidden.clone()).to_string();
    let sealed = keyring.seal_text(binding, &plain)?;
    match sealed == plain {
        true => fields.extend(hidden),
        false => {
            fields.insert(SEALED.into(), sealed.into());
        }
    }
    Ok(Value::Object(fields).to_string())
}

/// A document that was stored.
pub(super) fn open<T: DeserializeOwned>(
    keyring: &Keyring,
    binding: &Binding,
    stored: &str,
) -> Result<T, StoreError> {
    let mut fields: Map<String, Value> = serde_json::from_str(stored).map_err(Fault::of)?;
    if let Some(sealed) = fields.remove(SEALED) {
        let Value::String(sealed) = sealed else { return Err(StoreError::Unavailable) };
        let hidden = keyring.open_text(binding, sealed)?;
        fields.extend(serde_json::from_str::<Map<_, _>>(&hidden).map_err(Fault::of)?);
    }
    Ok(serde_json::from_value(Value::Object(fields)).map_err(Fault::of)?)
}

/// A stored document with another value of a readable field. The status of a task is there because
/// its result, which tells it as well, may be too long to be read for a list.
pub(super) fn with_field(stored: &str, name: &str, value: Value) -> Result<String, StoreError> {
    let mut fields: Map<String, Value> = serde_json::from_str(stored).map_err(Fault::of)?;
    fields.insert(name.into(), value);
    Ok(Value::Object(fields).to_string())
}
