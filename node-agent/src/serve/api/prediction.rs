//! `prediction`: text that a response is likely to repeat.

use inference_protocol::openai::{PredictedContent, PredictedPart, Prediction};

use super::sampling::invalid;
use crate::types::error::Error;

/// The predicted text. Errors name the field.
pub(super) fn text(prediction: Option<Prediction>) -> Result<Option<String>, Error> {
    let Some(Prediction { kind, content }) = prediction else { return Ok(None) };
    if kind != "content" {
        return Err(invalid("prediction", "the type of a prediction is content"));
    }
    match content {
        PredictedContent::Text(text) => Ok(Some(text)),
        PredictedContent::Parts(parts) => joined(parts).map(Some),
    }
}

fn joined(parts: Vec<PredictedPart>) -> Result<String, Error> {
    match parts.iter().all(|part| part.kind == "text") {
        true => Ok(parts.into_iter().map(|part| part.text).collect()),
        false => Err(invalid("prediction", "the parts of a prediction are of type text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Option<String>, Error> {
        text(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn texts_and_their_parts_are_read_and_other_types_refused() {
        assert!(matches!(read("null"), Ok(None)));
        let one = read(r#"{"type":"content","content":"a b"}"#);
        assert_eq!(one.ok().flatten().as_deref(), Some("a b"));
        let parts = r#"[{"type":"text","text":"a "},{"type":"text","text":"b"}]"#;
        let parts = read(&format!(r#"{{"type":"content","content":{parts}}}"#));
        assert_eq!(parts.ok().flatten().as_deref(), Some("a b"));
        for wrong in [
            r#"{"type":"text","content":"a"}"#,
            r#"{"type":"content","content":[{"type":"image","text":"a"}]}"#,
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.to_string().contains("prediction"), "{error}");
        }
    }
}
