//! `POST /rerank` of Text Embeddings Inference (TEI), in terms of `POST /v1/rerank`: the documents
//! are called `texts`, and the response is a list of scores.

use inference_protocol::openai::{ErrorDetail, RawObject};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::answer::{Answer, Chunk};
use crate::fault::{Fault, Fields, text};
use crate::fields::{Field, refuse_rejected};
use crate::json;
use crate::writer::{Format, Unreadable};

/// Every field of TEI's `POST /rerank`.
pub const TEXTS_FIELDS: &[Field] = &[
    Field::honored(
        "model",
        "TEI has no such field. Without it, the gateway takes the only one that the key may use.",
    ),
    Field::honored("query", ""),
    Field::honored("texts", "At most 2048."),
    Field::honored("return_text", ""),
    Field::rejected("raw_scores", "scores are always 0 to 1"),
    Field::ignored("truncate", "A text that is too long is refused, never cut."),
    Field::ignored("truncation_direction", ""),
];

/// True if a rerank request is one of TEI's.
pub fn has_texts(body: &[u8]) -> bool {
    // Most requests are not, and need not be parsed for this.
    memchr::memmem::find(body, b"\"texts\"").is_some()
        && RawObject::parse(body).is_ok_and(|object| {
            let has = |name: &str| object.fields().any(|field| field.name == name);
            has("texts") && !has("documents")
        })
}

/// Reads the body of a request into that of a rerank request.
pub(crate) fn read(mut fields: Fields) -> Result<(Vec<u8>, Writer), Fault> {
    refuse_rejected(&fields, TEXTS_FIELDS)?;
    let model = fields.text("model")?;
    let query = fields.required_text("query")?;
    let documents = fields.list("texts", text)?.ok_or_else(|| Fault::missing("texts"))?;
    let returns_text = fields.flag("return_text")?.unwrap_or(false);
    let body = json::bytes(&Request { model, query, documents: &documents });
    Ok((body, Writer { texts: returns_text.then_some(documents) }))
}

/// Turns the response to a rerank request into TEI's.
#[derive(Debug)]
pub(crate) struct Writer {
    /// The texts, if the response contains them.
    texts: Option<Vec<String>>,
}

impl Format for Writer {
    fn chunk(&mut self, _: &Chunk<'_>, _: &mut Vec<u8>) {}

    fn end(&mut self, _: &mut Vec<u8>) {}

    fn fail(&mut self, _: u16, _: &ErrorDetail, _: &mut Vec<u8>) {}

    fn whole(&mut self, _: Answer) -> Vec<u8> {
        Vec::new()
    }

    fn translate(&mut self, response: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let response: Response<'_> = serde_json::from_slice(response).map_err(|_| Unreadable)?;
        let texts = self.texts.as_deref();
        let score = |Ranked { index, relevance_score: score }| {
            let text = match texts {
                Some(texts) => Some(texts.get(index)?.as_str()),
                None => None,
            };
            Some(Score { index, text, score })
        };
        let scores: Option<Vec<_>> = response.results.into_iter().map(score).collect();
        Ok(json::bytes(&scores.ok_or(Unreadable)?))
    }
}

#[derive(Serialize)]
struct Request<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    query: String,
    documents: &'a [String],
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow)]
    results: Vec<Ranked<'a>>,
}

#[derive(Deserialize)]
struct Ranked<'a> {
    index: usize,
    // Kept as written: a number that is read and written again may change.
    #[serde(borrow)]
    relevance_score: &'a RawValue,
}

#[derive(Serialize)]
struct Score<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    score: &'a RawValue,
}

#[cfg(test)]
mod tests {
    use inference_protocol::openai::ParseError;
    use serde_json::{Value, json};

    use super::*;

    fn translated(body: Value) -> (Value, Writer) {
        let (body, writer) = read(Fields::of(body).unwrap()).unwrap();
        (serde_json::from_slice(&body).unwrap(), writer)
    }

    #[test]
    fn texts_become_documents_and_results_a_list() {
        let body = json!({"query": "q", "texts": ["a", "b"], "truncate": true, "raw_scores": false,
            "return_text": true, "truncation_direction": "Left"});
        assert!(has_texts(body.to_string().as_bytes()));
        let (request, mut writer) = translated(body);
        assert_eq!(request, json!({"query": "q", "documents": ["a", "b"]}));
        let response = br#"{"results":[{"index":1,"relevance_score":9.50e-1},
            {"index":0,"relevance_score":0.1}],"usage":{}}"#;
        let expected =
            r#"[{"index":1,"text":"b","score":9.50e-1},{"index":0,"text":"a","score":0.1}]"#;
        assert_eq!(writer.translate(response).unwrap(), expected.as_bytes());
        let (request, mut writer) = translated(json!({"model": "m", "query": "q", "texts": []}));
        assert_eq!(request, json!({"model": "m", "query": "q", "documents": []}));
        let expected = r#"[{"index":1,"score":9.50e-1},{"index":0,"score":0.1}]"#;
        assert_eq!(writer.translate(response).unwrap(), expected.as_bytes());
    }

    #[test]
    fn a_response_without_results_or_with_a_text_that_was_not_sent_is_unreadable() {
        let (_, mut writer) =
            translated(json!({"query": "q", "texts": ["a"], "return_text": true}));
        let other = br#"{"results":[{"index":1,"relevance_score":0}]}"#;
        for response in [&b"{}"[..], b"[]", b"", other] {
            assert_eq!(writer.translate(response), Err(Unreadable));
        }
    }

    #[test]
    fn only_a_request_with_texts_and_without_documents_is_one_of_these() {
        for body in [
            r#"{"query":"\"texts\"","documents":["texts"]}"#,
            r#"{"texts":["a"],"documents":["a"]}"#,
            r#"{"texts":["a"]"#,
            r#"["texts"]"#,
        ] {
            assert!(!has_texts(body.as_bytes()), "{body}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, param) in [
            (json!({"texts": ["a"]}), "query"),
            (json!({"query": "q", "texts": null}), "texts"),
            (json!({"query": "q", "texts": ["a", 7]}), "texts[1]"),
            (json!({"query": "q", "texts": ["a"], "raw_scores": true}), "raw_scores"),
            (json!({"query": "q", "texts": ["a"], "return_text": "x"}), "return_text"),
        ] {
            let error = ParseError::from(read(Fields::of(body.clone()).unwrap()).unwrap_err());
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }
}
