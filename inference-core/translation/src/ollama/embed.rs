//! `POST /api/embed` and the older `POST /api/embeddings`, in terms of `POST /v1/embeddings`.

use std::time::Duration;

use inference_protocol::openai::ParseError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::response::as_nanos;
use super::{EMBED_FIELDS, EMBEDDINGS_FIELDS};
use crate::fault::{Fault, Fields, expected, list, text};
use crate::fields::refuse_rejected;
use crate::json;
use crate::writer::{Unreadable, read_object};

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbedApi {
    /// `POST /api/embed`.
    Embed,
    /// `POST /api/embeddings`.
    Embeddings,
}

/// A translated request.
#[derive(Debug)]
pub struct TranslatedEmbed {
    /// The body of the embeddings request. `None` if there is nothing to embed: then the response
    /// is [`EmbedWriter::empty`].
    pub body: Option<Vec<u8>>,
    /// Writes the response.
    pub writer: EmbedWriter,
}

/// Turns the response to an embeddings request into Ollama's.
#[derive(Debug)]
pub struct EmbedWriter {
    api: EmbedApi,
    model: Option<String>,
}

/// Translates the body of a request.
///
/// # Errors
/// The body is not JSON, or a field has a wrong type. The error names the field.
pub fn translate_embed(api: EmbedApi, body: &[u8]) -> Result<TranslatedEmbed, ParseError> {
    let mut fields = read_object(body)?;
    let (table, name) = match api {
        EmbedApi::Embed => (EMBED_FIELDS, "input"),
        EmbedApi::Embeddings => (EMBEDDINGS_FIELDS, "prompt"),
    };
    refuse_rejected(&fields, table)?;
    let model = fields.text("model")?;
    let input = input(api, &mut fields, name)?;
    let dimensions = match api {
        EmbedApi::Embed => fields.count("dimensions")?,
        EmbedApi::Embeddings => None,
    };
    let request =
        Request { model: model.as_deref(), input: &input, encoding_format: "float", dimensions };
    let body = (!input.is_empty()).then(|| json::bytes(&request));
    Ok(TranslatedEmbed { body, writer: EmbedWriter { api, model } })
}

/// The texts. An empty text alone is none, as at Ollama.
fn input(api: EmbedApi, fields: &mut Fields, name: &str) -> Result<Vec<String>, Fault> {
    let texts = fields.read(name, |value| match value {
        Value::String(text) if text.is_empty() => Ok(Vec::new()),
        Value::String(text) => Ok(vec![text]),
        Value::Array(_) if api == EmbedApi::Embed => list(value, text),
        other if api == EmbedApi::Embed => Err(expected("a string or a list of strings", &other)),
        other => Err(expected("a string", &other)),
    })?;
    Ok(texts.unwrap_or_default())
}

impl EmbedWriter {
    /// Translates a response. `elapsed`: the time since the request arrived.
    ///
    /// # Errors
    /// It is not a list of embeddings.
    pub fn whole(&self, response: &[u8], elapsed: Duration) -> Result<Vec<u8>, Unreadable> {
        let mut response: Response<'_> =
            serde_json::from_slice(response).map_err(|_| Unreadable)?;
        response.data.sort_by_key(|entry| entry.index);
        let mut embeddings = response.data.iter().map(|entry| entry.embedding);
        if self.api == EmbedApi::Embeddings {
            return Ok(json::bytes(&Single { embedding: embeddings.next().ok_or(Unreadable)? }));
        }
        let tokens = response.usage.and_then(|usage| usage.prompt_tokens).unwrap_or_default();
        Ok(self.embeddings(embeddings.collect(), elapsed, tokens))
    }

    /// The response to a request without input.
    pub fn empty(&self) -> Vec<u8> {
        match self.api {
            EmbedApi::Embed => self.embeddings(Vec::new(), Duration::ZERO, 0),
            EmbedApi::Embeddings => json::bytes(&Single { embedding: [(); 0] }),
        }
    }

    fn embeddings(&self, embeddings: Vec<&RawValue>, elapsed: Duration, tokens: u64) -> Vec<u8> {
        json::bytes(&Several {
            model: self.model.as_deref().unwrap_or_default(),
            embeddings,
            total_duration: as_nanos(elapsed),
            load_duration: 0,
            prompt_eval_count: tokens,
        })
    }
}

#[derive(Serialize)]
struct Request<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    input: &'a [String],
    encoding_format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    dimensions: Option<u64>,
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

    use super::*;

    fn translated(api: EmbedApi, body: Value) -> TranslatedEmbed {
        translate_embed(api, body.to_string().as_bytes()).unwrap()
    }

    fn request(api: EmbedApi, body: Value) -> Value {
        serde_json::from_slice(&translated(api, body).body.unwrap()).unwrap()
    }

    #[test]
    fn inputs_become_an_embeddings_request() {
        let both = json!({"model": "m", "input": ["a", "b"], "truncate": true, "dimensions": 8,
            "keep_alive": "5m", "options": {"num_ctx": 9}});
        let expected =
            json!({"model": "m", "input": ["a", "b"], "encoding_format": "float", "dimensions": 8});
        assert_eq!(request(EmbedApi::Embed, both), expected);
        let one = request(EmbedApi::Embed, json!({"model": "m", "input": "a"}));
        assert_eq!(one, json!({"model": "m", "input": ["a"], "encoding_format": "float"}));
        let older = request(EmbedApi::Embeddings, json!({"model": "m", "prompt": "a"}));
        assert_eq!(older, one);
    }

    #[test]
    fn embeddings_come_back_in_the_order_of_their_inputs_and_digit_for_digit() {
        let writer = translated(EmbedApi::Embed, json!({"model": "m:latest", "input": "a"})).writer;
        let response = br#"{"object":"list","data":[{"index":1,"embedding":[1e-3]},
            {"index":0,"embedding":[0.10000000149,-2]}],"usage":{"prompt_tokens":7}}"#;
        let whole = writer.whole(response, Duration::from_micros(3)).unwrap();
        let expected = r#"{"model":"m:latest","embeddings":[[0.10000000149,-2],[1e-3]],"total_duration":3000,"load_duration":0,"prompt_eval_count":7}"#;
        assert_eq!(String::from_utf8(whole).unwrap(), expected);
        let older = translated(EmbedApi::Embeddings, json!({"prompt": "a"})).writer;
        let whole = older.whole(response, Duration::ZERO).unwrap();
        assert_eq!(whole, br#"{"embedding":[0.10000000149,-2]}"#);
        assert_eq!(writer.whole(b"{}", Duration::ZERO), Err(Unreadable));
        assert_eq!(older.whole(br#"{"data":[]}"#, Duration::ZERO), Err(Unreadable));
    }

    #[test]
    fn without_input_nothing_is_embedded() {
        for body in [json!({"model": "m"}), json!({"input": ""}), json!({"input": []})] {
            let TranslatedEmbed { body, writer } = translated(EmbedApi::Embed, body);
            assert_eq!(body, None);
            let empty: Value = serde_json::from_slice(&writer.empty()).unwrap();
            assert_eq!(empty["embeddings"], json!([]));
        }
        let older = translated(EmbedApi::Embeddings, json!({"prompt": ""}));
        assert_eq!((older.body, older.writer.empty()), (None, br#"{"embedding":[]}"#.to_vec()));
    }

    #[test]
    fn a_wrong_type_is_refused_with_its_path() {
        for (api, body, param) in [
            (EmbedApi::Embed, json!({"input": 7}), "input"),
            (EmbedApi::Embed, json!({"input": ["a", 7]}), "input[1]"),
            (EmbedApi::Embed, json!({"input": "a", "dimensions": "b"}), "dimensions"),
            (EmbedApi::Embeddings, json!({"prompt": ["a"]}), "prompt"),
            (EmbedApi::Embeddings, json!({"model": 7}), "model"),
        ] {
            let error = translate_embed(api, body.to_string().as_bytes()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{body}");
        }
    }
}
