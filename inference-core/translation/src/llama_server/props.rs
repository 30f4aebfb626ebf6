//! `GET /props` of a fleet: those of one of its nodes, with the slots of all.

use inference_protocol::openai::ErrorDetail;
use serde_json::{Map, Value, json};

use crate::answer::{Answer, Chunk};
use crate::fault::{Fault, Fields};
use crate::json;
use crate::writer::{Format, Unreadable};

/// The body of a request for the properties of a model that has so many slots in the fleet. The
/// client's request has none.
pub fn props_body(model: Option<&str>, slots: u64) -> Vec<u8> {
    json::bytes(&json!({"model": model, "total_slots": slots}))
}

/// Reads [`props_body`].
pub(crate) fn read(mut fields: Fields) -> Result<(Vec<u8>, Writer), Fault> {
    let model = fields.required_text("model")?;
    let slots = fields.count("total_slots")?.unwrap_or_default();
    Ok((json::bytes(&json!({"model": model})), Writer { slots }))
}

/// Passes a node's properties on. They have no stream.
#[derive(Debug)]
pub(crate) struct Writer {
    slots: u64,
}

impl Format for Writer {
    fn chunk(&mut self, _: &Chunk<'_>, _: &mut Vec<u8>) {}

    fn end(&mut self, _: &mut Vec<u8>) {}

    fn fail(&mut self, _: u16, _: &ErrorDetail, _: &mut Vec<u8>) {}

    fn whole(&mut self, _: Answer) -> Vec<u8> {
        Vec::new()
    }

    fn translate(&mut self, response: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let mut props: Map<String, Value> =
            serde_json::from_slice(response).map_err(|_| Unreadable)?;
        props.insert("total_slots".into(), self.slots.into());
        Ok(json::bytes(&props))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_has_the_slots_of_all_its_nodes() {
        let asked: Value = serde_json::from_slice(&props_body(Some("m"), 12)).unwrap();
        let (body, mut writer) = read(Fields::of(asked).unwrap()).unwrap();
        assert_eq!(body, br#"{"model":"m"}"#);
        let props = writer.translate(br#"{"total_slots":4,"chat_template":"t"}"#).unwrap();
        assert_eq!(props, br#"{"total_slots":12,"chat_template":"t"}"#);
        assert!(writer.translate(b"[]").is_err());
    }

    #[test]
    fn a_fleet_of_several_models_has_to_know_which() {
        let asked: Value = serde_json::from_slice(&props_body(None, 0)).unwrap();
        assert_eq!(read(Fields::of(asked).unwrap()).unwrap_err(), Fault::missing("model"));
    }
}
