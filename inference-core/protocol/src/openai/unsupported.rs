//! PURE. Fields of other servers' APIs that would change a response and that our engine does not
//! honor. A request that sets one is rejected by name: an unconstrained response to a constrained
//! request is worse than none. [`UNSUPPORTED`] is the only list of them; docs/api.md and
//! docs/openapi.json are generated from it.

use serde_json::Value;

use super::{ParseError, RawObject};

mod table;

pub use table::{IGNORED, UNSUPPORTED};

/// An API that has the field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// OpenAI's own.
    OpenAi,
    /// vLLM's OpenAI-compatible server.
    Vllm,
    /// llama.cpp's server.
    LlamaServer,
    /// Ollama.
    Ollama,
}

impl Api {
    /// The name as its makers write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenAi => "OpenAI",
            Self::Vllm => "vLLM",
            Self::LlamaServer => "llama-server",
            Self::Ollama => "Ollama",
        }
    }
}

/// An endpoint with a request body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completions,
    /// `/v1/embeddings`
    Embeddings,
    /// `/v1/rerank`
    Rerank,
}

impl Endpoint {
    /// All endpoints.
    pub const ALL: [Self; 4] = [Self::Chat, Self::Completions, Self::Embeddings, Self::Rerank];

    /// A one-word name for tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Rerank => "rerank",
        }
    }
}

/// An unsupported field.
#[derive(Debug)]
pub struct Unsupported {
    /// Field name, at the top level of the body.
    pub field: &'static str,
    /// APIs that have the field.
    pub from: &'static [Api],
    /// Endpoints that reject it; the others ignore it.
    pub at: &'static [Endpoint],
    /// Values (JSON text) that ask for the default behavior; `null` always does.
    pub neutral: &'static [&'static str],
    /// A rejected value (JSON text), for tests.
    pub refused: &'static str,
    /// The reason or the alternative: the end of a sentence.
    pub instead: &'static str,
}

impl Unsupported {
    /// Finds the row of a field.
    pub fn find(field: &str) -> Option<&'static Self> {
        let index = UNSUPPORTED.binary_search_by(|row| row.field.cmp(field)).ok()?;
        UNSUPPORTED.get(index)
    }

    /// True if `value` asks for the default behavior. An object that contains only nulls is empty.
    pub fn is_neutral(&self, value: &Value) -> bool {
        let is_empty = |v: &Value| v.as_object().is_some_and(|o| o.values().all(Value::is_null));
        let read = |text: &&str| serde_json::from_str::<Value>(text).ok();
        let alike = |neutral: Value| match (neutral.as_f64(), value.as_f64()) {
            (Some(neutral), Some(value)) => neutral == value,
            _ => neutral == *value || (is_empty(&neutral) && is_empty(value)),
        };
        value.is_null() || self.neutral.iter().filter_map(read).any(alike)
    }

    /// The error message for a client that set it.
    pub fn refusal(&self) -> String {
        format!("{} is not supported by this engine: {}", self.field, self.instead)
    }
}

/// The first field of `body` that `endpoint` rejects.
///
/// # Errors
/// The value of such a field is not valid JSON.
pub fn first_unsupported(
    endpoint: Endpoint,
    body: &RawObject<'_>,
) -> Result<Option<&'static Unsupported>, ParseError> {
    for field in body.fields() {
        let row = Unsupported::find(&field.name).filter(|row| row.at.contains(&endpoint));
        if let Some(row) = row
            && !row.is_neutral(&body.read_field(field)?)
        {
            return Ok(Some(row));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(endpoint: Endpoint, body: &str) -> Option<&'static str> {
        let body = RawObject::parse(body.as_bytes()).unwrap();
        first_unsupported(endpoint, &body).unwrap().map(|row| row.field)
    }

    #[test]
    fn the_table_is_sorted_and_every_row_is_whole() {
        assert!(UNSUPPORTED.is_sorted_by(|a, b| a.field < b.field), "rows are found by bisection");
        for row in UNSUPPORTED {
            assert!(!row.from.is_empty() && !row.at.is_empty(), "{}", row.field);
            assert!(!row.instead.is_empty() && !row.instead.ends_with('.'), "{}", row.field);
            for text in row.neutral.iter().chain([&row.refused]) {
                serde_json::from_str::<Value>(text).unwrap();
            }
        }
    }

    #[test]
    fn every_row_refuses_its_value_at_its_endpoints_and_takes_neutral_ones_everywhere() {
        for row in UNSUPPORTED {
            let set = |text: &str| format!(r#"{{"a":[{{"b":1}}],"{}":{text},"c":"d"}}"#, row.field);
            for endpoint in Endpoint::ALL {
                let expected = row.at.contains(&endpoint).then_some(row.field);
                assert_eq!(found(endpoint, &set(row.refused)), expected, "{}", row.field);
                for neutral in row.neutral.iter().chain([&"null"]) {
                    assert_eq!(found(endpoint, &set(neutral)), None, "{} {neutral}", row.field);
                }
            }
        }
    }

    #[test]
    fn numbers_are_compared_by_value_and_objects_of_nulls_are_empty() {
        let chat = |body: &str| found(Endpoint::Chat, body);
        assert_eq!(chat(r#"{"length_penalty":1.0,"dynatemp_range":0.0,"mirostat":0}"#), None);
        assert_eq!(chat(r#"{"length_penalty":1.01}"#), Some("length_penalty"));
        assert_eq!(chat(r#"{"reasoning":{"effort":null,"summary":null}}"#), None);
        let one = r#"{"reasoning":{"effort":null,"summary":"auto"}}"#;
        assert_eq!(chat(one), Some("reasoning"));
    }

    #[test]
    fn a_field_that_is_there_twice_is_refused_whichever_comes_last() {
        let twice = r#"{"format":"a","format":null}"#;
        assert_eq!(found(Endpoint::Chat, twice), Some("format"));
    }

    #[test]
    fn what_is_ignored_is_not_refused() {
        for (_, fields) in IGNORED {
            for field in *fields {
                assert!(Unsupported::find(field).is_none(), "{field} is in both lists");
            }
        }
    }
}
