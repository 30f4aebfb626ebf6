//! `POST /embedding`, in terms of `POST /v1/embeddings`.

use inference_protocol::openai::ErrorDetail;
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::completion::inputs;
use crate::answer::{Answer, Chunk};
use crate::fault::{Fault, Fields};
use crate::json;
use crate::writer::{Format, Unreadable};

/// Reads the body of a request into that of an embeddings request.
///
/// # Errors
/// A field has a wrong type, or asks for another length than 1.
pub(crate) fn read(mut fields: Fields) -> Result<(Vec<u8>, Writer), Fault> {
    let name = if fields.0.contains_key("content") { "content" } else { "input" };
    let input = fields.read(name, inputs)?.ok_or_else(|| Fault::missing("content"))?;
    if fields.number("embd_normalize")?.is_some_and(|norm| norm != 2.0) {
        let message = "expected 2: embeddings have the Euclidean length 1";
        return Err(Fault::of("embd_normalize", message));
    }
    let mut body = json!({"input": input, "encoding_format": "float"});
    if let Some(model) = fields.text("model")?.filter(|model| !model.trim().is_empty()) {
        body["model"] = model.into();
    }
    Ok((json::bytes(&body), Writer))
}

/// Turns the response to an embeddings request into llama-server's.
#[derive(Debug)]
pub(crate) struct Writer;

impl Format for Writer {
    fn chunk(&mut self, _: &Chunk<'_>, _: &mut Vec<u8>) {}

    fn end(&mut self, _: &mut Vec<u8>) {}

    fn fail(&mut self, _: u16, _: &ErrorDetail, _: &mut Vec<u8>) {}

    fn whole(&mut self, _: Answer) -> Vec<u8> {
        Vec::new()
    }

    fn translate(&mut self, response: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let mut response: Response<'_> =
            serde_json::from_slice(response).map_err(|_| Unreadable)?;
        response.data.sort_by_key(|entry| entry.index);
        let pooled = response.data.iter().map(Pooled::of);
        Ok(json::bytes(&pooled.collect::<Vec<_>>()))
    }
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow)]
    data: Vec<Entry<'a>>,
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(default)]
    index: u64,
    // Kept as written: a number that is read and written again may change.
    #[serde(borrow)]
    embedding: &'a RawValue,
}

/// One vector, in a list because a server without pooling returns one for each token.
#[derive(Serialize)]
struct Pooled<'a> {
    index: u64,
    embedding: [&'a RawValue; 1],
}

impl<'a> Pooled<'a> {
    fn of(entry: &Entry<'a>) -> Self {
        Self { index: entry.index, embedding: [entry.embedding] }
    }
}

#[cfg(test)]
mod tests {
    use inference_protocol::openai::ParseError;
    use serde_json::Value;

    use super::*;

    fn body(request: Value) -> Value {
        serde_json::from_slice(&read(Fields::of(request).unwrap()).unwrap().0).unwrap()
    }

    #[test]
    fn contents_become_an_embeddings_request() {
        let request = json!({"model": "m", "content": "a", "embd_normalize": 2});
        let expected = json!({"model": "m", "input": ["a"], "encoding_format": "float"});
        assert_eq!(body(request), expected);
        assert_eq!(body(json!({"input": ["a", [1, 2]]}))["input"], json!(["a", [1, 2]]));
        assert_eq!(body(json!({"content": [1, 2]}))["input"], json!([[1, 2]]));
    }

    #[test]
    fn what_cannot_be_embedded_is_named() {
        for (request, param) in [
            (json!({}), "content"),
            (json!({"content": 7}), "content"),
            (json!({"content": ["a", 7]}), "content[1]"),
            (json!({"content": "a", "embd_normalize": -1}), "embd_normalize"),
        ] {
            let fault = read(Fields::of(request).unwrap()).unwrap_err();
            assert_eq!(ParseError::from(fault).param.as_deref(), Some(param));
        }
    }

    #[test]
    fn vectors_come_back_in_order_and_digit_for_digit() {
        let response =
            br#"{"data":[{"index":1,"embedding":[1e-3]},{"index":0,"embedding":[0.10]}]}"#;
        let whole = Writer.translate(response).unwrap();
        let expected = r#"[{"index":0,"embedding":[[0.10]]},{"index":1,"embedding":[[1e-3]]}]"#;
        assert_eq!(String::from_utf8(whole).unwrap(), expected);
        assert_eq!(Writer.translate(b"{}"), Err(Unreadable));
    }
}
