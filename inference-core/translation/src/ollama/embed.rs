//! `POST /api/embed` and the older `POST /api/embeddings`, in terms of `POST /v1/embeddings`.

use std::time::Duration;

use inference_protocol::openai::ErrorDetail;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::response::as_nanos;
use super::{EMBED_FIELDS, EMBEDDINGS_FIELDS};
use crate::answer::{Answer, Chunk};
use crate::fault::{Fault, Fields, expected, list, text};
use crate::fields::refuse_rejected;
use crate::json;
use crate::writer::{ClientApi, Format, Unreadable};

/// Turns the response to an embeddings request into Ollama's.
#[derive(Debug)]
pub(crate) struct Writer {
    /// `/api/embed`, not the older one.
    takes_lists: bool,
    model: Option<String>,
    elapsed: Duration,
}

/// Reads the body of a request of one of the two.
///
/// # Errors
/// A field has a wrong type.
pub(crate) fn read(api: ClientApi, mut fields: Fields) -> Result<(Request, Writer), Fault> {
    let takes_lists = api == ClientApi::OllamaEmbed;
    let (table, name) = match takes_lists {
        true => (EMBED_FIELDS, "input"),
        false => (EMBEDDINGS_FIELDS, "prompt"),
    };
    refuse_rejected(&fields, table)?;
    let model = fields.text("model")?;
    let input = input(takes_lists, &mut fields, name)?;
    let dimensions = if takes_lists { fields.count("dimensions")? } else { None };
    let request = Request { model: model.clone(), input, encoding_format: "float", dimensions };
    Ok((request, Writer { takes_lists, model, elapsed: Duration::ZERO }))
}

/// The texts. An empty text alone is none, as at Ollama.
fn input(takes_lists: bool, fields: &mut Fields, name: &str) -> Result<Vec<String>, Fault> {
    let texts = fields.read(name, |value| match value {
        Value::String(text) if text.is_empty() => Ok(Vec::new()),
        Value::String(text) => Ok(vec![text]),
        Value::Array(_) if takes_lists => list(value, text),
        other if takes_lists => Err(expected("a string or a list of strings", &other)),
        other => Err(expected("a string", &other)),
    })?;
    Ok(texts.unwrap_or_default())
}

impl Format for Writer {
    fn chunk(&mut self, _: &Chunk<'_>, _: &mut Vec<u8>) {}

    fn end(&mut self, _: &mut Vec<u8>) {}

    fn fail(&mut self, _: u16, _: &ErrorDetail, _: &mut Vec<u8>) {}

    fn set_elapsed(&mut self, elapsed: Duration) {
        self.elapsed = elapsed;
    }

    fn whole(&mut self, _: Answer) -> Vec<u8> {
        self.empty()
    }

    fn translate(&mut self, response: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let mut response: Response<'_> =
            serde_json::from_slice(response).map_err(|_| Unreadable)?;
        response.data.sort_by_key(|entry| entry.index);
        let mut embeddings = response.data.iter().map(|entry| entry.embedding);
        if !self.takes_lists {
            return Ok(json::bytes(&Single { embedding: embeddings.next().ok_or(Unreadable)? }));
        }
        let tokens = response.usage.and_then(|usage| usage.prompt_tokens).unwrap_or_default();
        Ok(self.embeddings(embeddings.collect(), tokens))
    }
}

impl Writer {
    /// The response to a request without input.
    pub(crate) fn empty(&self) -> Vec<u8> {
        match self.takes_lists {
            true => self.embeddings(Vec::new(), 0),
            false => json::bytes(&Single { embedding: [(); 0] }),
        }
    }

    fn embeddings(&self, embeddings: Vec<&RawValue>, tokens: u64) -> Vec<u8> {
        json::bytes(&Several {
            model: self.model.as_deref().unwrap_or_default(),
            embeddings,
            total_duration: as_nanos(self.elapsed),
            load_duration: 0,
            prompt_eval_count: tokens,
        })
    }
}

/// An embeddings request.
#[derive(Debug, Serialize)]
pub(crate) struct Request {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<String>,
    /// The texts; none if there is nothing to embed.
    pub(crate) input: Vec<String>,
    encoding_format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<u64>,
}

impl Request {
    /// The body for `/v1/embeddings`.
    pub(crate) fn body(&self) -> Vec<u8> {
        json::bytes(self)
    }
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow)]
    data: Vec<Entry<'a>>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(default)]
    index: u64,
    // Kept as written: a number that is read and written again may change.
    #[serde(borrow)]
    embedding: &'a RawValue,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
}

#[derive(Serialize)]
struct Several<'a> {
    model: &'a str,
    embeddings: Vec<&'a RawValue>,
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u64,
}

#[derive(Serialize)]
struct Single<T> {
    embedding: T,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use inference_protocol::openai::ParseError;

    use super::*;

    const EMBED: ClientApi = ClientApi::OllamaEmbed;
    const OLDER: ClientApi = ClientApi::OllamaEmbeddings;

    fn translated(api: ClientApi, body: Value) -> (Request, Writer) {
        read(api, Fields::of(body).unwrap()).unwrap()
    }

    fn request(api: ClientApi, body: Value) -> Value {
        serde_json::from_slice(&translated(api, body).0.body()).unwrap()
    }

    #[test]
    fn inputs_become_an_embeddings_request() {
        let both = json!({"model": "m", "input": ["a", "b"], "truncate": true, "dimensions": 8,
            "keep_alive": "5m", "options": {"num_ctx": 9}});
        let expected =
            json!({"model": "m", "input": ["a", "b"], "encoding_format": "float", "dimensions": 8});
        assert_eq!(request(EMBED, both), expected);
        let one = request(EMBED, json!({"model": "m", "input": "a"}));
        assert_eq!(one, json!({"model": "m", "input": ["a"], "encoding_format": "float"}));
        let older = request(OLDER, json!({"model": "m", "prompt": "a"}));
        assert_eq!(older, one);
    }

    #[test]
    fn embeddings_come_back_in_the_order_of_their_inputs_and_digit_for_digit() {
        let mut writer = translated(EMBED, json!({"model": "m:latest", "input": "a"})).1;
        let response = br#"{"object":"list","data":[{"index":1,"embedding":[1e-3]},
            {"index":0,"embedding":[0.10000000149,-2]}],"usage":{"prompt_tokens":7}}"#;
        writer.set_elapsed(Duration::from_micros(3));
        let whole = writer.translate(response).unwrap();
        let expected = r#"{"model":"m:latest","embeddings":[[0.10000000149,-2],[1e-3]],"total_duration":3000,"load_duration":0,"prompt_eval_count":7}"#;
        assert_eq!(String::from_utf8(whole).unwrap(), expected);
        let mut older = translated(OLDER, json!({"prompt": "a"})).1;
        let whole = older.translate(response).unwrap();
        assert_eq!(whole, br#"{"embedding":[0.10000000149,-2]}"#);
        assert_eq!(writer.translate(b"{}"), Err(Unreadable));
        assert_eq!(older.translate(br#"{"data":[]}"#), Err(Unreadable));
    }

    #[test]
    fn without_input_nothing_is_embedded() {
        for body in [json!({"model": "m"}), json!({"input": ""}), json!({"input": []})] {
            let (request, writer) = translated(EMBED, body);
            assert!(request.input.is_empty());
            let empty: Value = serde_json::from_slice(&writer.empty()).unwrap();
            assert_eq!(empty["embeddings"], json!([]));
        }
        let (request, writer) = translated(OLDER, json!({"prompt": ""}));
        assert!(request.input.is_empty());
        assert_eq!(writer.empty(), br#"{"embedding":[]}"#);
    }

    #[test]
    fn a_wrong_type_is_refused_with_its_path() {
        for (api, body, param) in [
            (EMBED, json!({"input": 7}), "input"),
            (EMBED, json!({"input": ["a", 7]}), "input[1]"),
            (EMBED, json!({"input": "a", "dimensions": "b"}), "dimensions"),
            (OLDER, json!({"prompt": ["a"]}), "prompt"),
            (OLDER, json!({"model": 7}), "model"),
        ] {
            let error = ParseError::from(read(api, Fields::of(body.clone()).unwrap()).unwrap_err());
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }
}
