//! Writes lists and descriptions of models, from what the caller knows of them.

use inference_protocol::fleet::ModelDetails;
use inference_protocol::openai::ParseError;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{rfc3339, with_tag};
use crate::body::read_object;
use crate::fault::Fault;
use crate::json;

/// What is known of a model.
#[derive(Debug, Clone, Copy, Default)]
pub struct Model<'a> {
    /// Its name.
    pub name: &'a str,
    /// Size of its file.
    pub bytes: Option<u64>,
    /// SHA-256 of its file or another id, in hexadecimal.
    pub digest: Option<&'a str>,
    /// When its file was changed, in Unix seconds.
    pub modified: Option<u64>,
    /// Format of its file: `gguf`.
    pub format: Option<&'a str>,
    /// Its architecture: `llama`, `qwen3`...
    pub family: Option<&'a str>,
    /// How many parameters it has.
    pub parameters: Option<u64>,
    /// Its quantization: `Q4_K_M`...
    pub quantization: Option<&'a str>,
    /// Maximum tokens of a request.
    pub context_tokens: Option<u64>,
    /// Length of its embeddings.
    pub embedding_length: Option<u64>,
    /// What it can do.
    pub capabilities: &'a [Capability],
}

/// What a model can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Capability {
    /// Generate text.
    Completion,
    /// Call tools.
    Tools,
    /// Fill gaps.
    Insert,
    /// Reason before the text.
    Thinking,
    /// Embed texts.
    Embedding,
}

impl<'a> Model<'a> {
    /// With what an endpoint says of it.
    pub fn with_details(self, details: &'a ModelDetails) -> Self {
        let known = |number: u64| Some(number).filter(|number| *number > 0);
        Self {
            bytes: known(details.bytes),
            format: known(details.bytes).map(|_| "gguf"),
            family: Some(details.family.as_str()).filter(|family| !family.is_empty()),
            parameters: known(details.parameters),
            embedding_length: known(details.embedding_width.into()),
            capabilities: Capability::of(details),
            ..self
        }
    }
}

impl Capability {
    /// The agent describes tools to models whose templates do not.
    fn of(details: &ModelDetails) -> &'static [Self] {
        use Capability::{Completion, Embedding, Insert, Thinking, Tools};
        match (details.embeds, details.fills, details.reasons) {
            (true, _, _) => &[Embedding],
            (false, false, false) => &[Completion, Tools],
            (false, true, false) => &[Completion, Tools, Insert],
            (false, false, true) => &[Completion, Tools, Thinking],
            (false, true, true) => &[Completion, Tools, Insert, Thinking],
        }
    }
}

/// The body of the response to `GET /api/tags`.
pub fn tags(models: &[Model<'_>]) -> Vec<u8> {
    json::bytes(&List { models: models.iter().map(Listed::of).collect::<Vec<_>>() })
}

/// The body of the response to `GET /api/ps`: all models are loaded.
pub fn ps(models: &[Model<'_>]) -> Vec<u8> {
    let running = |model: &Model<'_>| Running {
        size_vram: 0,
        expires_at: NEVER,
        context_length: model.context_tokens.unwrap_or_default(),
    };
    let models =
        models.iter().map(|model| Listed { running: Some(running(model)), ..Listed::of(model) });
    json::bytes(&List { models: models.collect::<Vec<_>>() })
}

/// The body of the response to `POST /api/show`.
pub fn show(model: &Model<'_>) -> Vec<u8> {
    json::bytes(&Shown {
        details: Details::of(model),
        model_info: info(model),
        capabilities: model.capabilities,
        modified_at: modified(model),
    })
}

/// The body of the response to `GET /api/version`.
pub fn version() -> Vec<u8> {
    json::bytes(&Version { version: super::VERSION })
}

/// The model that `POST /api/show` asks for.
///
/// # Errors
/// The body is not a JSON object with the name of a model.
pub fn requested_model(body: &[u8]) -> Result<String, ParseError> {
    let mut fields = read_object(body)?;
    let older = fields.text("name")?;
    let name = fields.text("model")?.or(older).filter(|name| !name.is_empty());
    Ok(name.ok_or_else(|| Fault::missing("model"))?)
}

/// Clients that know Ollama's own far future show it as forever. Later years are not valid in some.
const NEVER: &str = "2318-01-01T00:00:00Z";

/// Stands for an unknown digest: Ollama's command line cuts off its beginning, unchecked.
const UNKNOWN_DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

#[derive(Serialize)]
struct Version {
    version: &'static str,
}

#[derive(Serialize)]
struct List<'a> {
    models: Vec<Listed<'a>>,
}

#[derive(Serialize)]
struct Listed<'a> {
    name: String,
    model: String,
    modified_at: String,
    size: u64,
    digest: &'a str,
    details: Details<'a>,
    #[serde(flatten)]
    running: Option<Running>,
}

#[derive(Serialize)]
struct Running {
    expires_at: &'static str,
    size_vram: u64,
    context_length: u64,
}

impl<'a> Listed<'a> {
    fn of(model: &Model<'a>) -> Self {
        let name = with_tag(model.name).into_owned();
        Self {
            model: name.clone(),
            name,
            modified_at: modified(model),
            size: model.bytes.unwrap_or_default(),
            digest: model.digest.unwrap_or(UNKNOWN_DIGEST),
            details: Details::of(model),
            running: None,
        }
    }
}

/// Clients read a time in any case: 1970 if it is unknown.
fn modified(model: &Model<'_>) -> String {
    rfc3339(model.modified.unwrap_or_default(), 0)
}

#[derive(Serialize)]
struct Details<'a> {
    parent_model: &'static str,
    format: &'a str,
    family: &'a str,
    families: Vec<&'a str>,
    parameter_size: String,
    quantization_level: &'a str,
}

impl<'a> Details<'a> {
    fn of(model: &Model<'a>) -> Self {
        Self {
            parent_model: "",
            format: model.format.unwrap_or_default(),
            family: model.family.unwrap_or_default(),
            families: Vec::from_iter(model.family),
            parameter_size: model.parameters.map(rounded).unwrap_or_default(),
            quantization_level: model.quantization.unwrap_or_default(),
        }
    }
}

#[derive(Serialize)]
struct Shown<'a> {
    details: Details<'a>,
    model_info: Map<String, Value>,
    capabilities: &'a [Capability],
    modified_at: String,
}

/// Under the keys of GGUF files. Clients look up the context under the architecture's name, so an
/// unknown one needs a name, too.
fn info(model: &Model<'_>) -> Map<String, Value> {
    let family = model.family.unwrap_or("unknown");
    let rows = [
        ("general.architecture".into(), Some(family.into())),
        ("general.parameter_count".into(), model.parameters.map(Value::from)),
        (format!("{family}.context_length"), model.context_tokens.map(Value::from)),
        (format!("{family}.embedding_length"), model.embedding_length.map(Value::from)),
    ];
    rows.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

/// A number of parameters as Ollama writes it: `494.03M`, `8.2B`.
fn rounded(parameters: u64) -> String {
    let digits = |unit: u64, decimals: usize| {
        let decimals = if parameters.is_multiple_of(unit) { 0 } else { decimals };
        format!("{:.decimals$}", parameters as f64 / unit as f64)
    };
    match parameters {
        1_000_000_000.. => digits(1_000_000_000, 1) + "B",
        1_000_000.. => digits(1_000_000, 2) + "M",
        1_000.. => digits(1_000, 0) + "K",
        _ => parameters.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KNOWN: Model<'_> = Model {
        name: "qwen3",
        bytes: Some(397_000_000),
        digest: Some("a3de86cd1c13"),
        modified: Some(1_700_000_000),
        format: Some("gguf"),
        family: Some("qwen3"),
        parameters: Some(596_049_920),
        quantization: Some("Q4_K_M"),
        context_tokens: Some(40_960),
        embedding_length: Some(1024),
        capabilities: &[Capability::Completion, Capability::Tools],
    };

    fn read(body: &[u8]) -> Value {
        serde_json::from_slice(body).unwrap()
    }

    fn details() -> Value {
        json!({"parent_model": "", "format": "gguf", "family": "qwen3", "families": ["qwen3"],
            "parameter_size": "596.05M", "quantization_level": "Q4_K_M"})
    }

    #[test]
    fn models_are_listed_with_a_tag() {
        let listed = json!({"models": [{"name": "qwen3:latest", "model": "qwen3:latest",
            "modified_at": "2023-11-14T22:13:20.000000Z", "size": 397_000_000, "digest": "a3de86cd1c13",
            "details": details()}]});
        assert_eq!(read(&tags(&[KNOWN])), listed);
        let mut running = listed;
        let fields = json!({"expires_at": NEVER, "size_vram": 0, "context_length": 40_960});
        running["models"][0].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(read(&ps(&[KNOWN])), running);
    }

    #[test]
    fn a_model_is_shown_under_the_keys_of_its_file() {
        let shown = json!({"details": details(), "capabilities": ["completion", "tools"],
            "modified_at": "2023-11-14T22:13:20.000000Z", "model_info": {
                "general.architecture": "qwen3", "general.parameter_count": 596_049_920,
                "qwen3.context_length": 40_960, "qwen3.embedding_length": 1024}});
        assert_eq!(read(&show(&KNOWN)), shown);
    }

    #[test]
    fn what_is_not_known_of_a_model_has_a_form_that_clients_can_read() {
        let model = Model { name: "m:4b", context_tokens: Some(9), ..Model::default() };
        let listed = read(&tags(&[model]))["models"][0].clone();
        assert_eq!((&listed["name"], &listed["size"]), (&json!("m:4b"), &json!(0)));
        assert_eq!(listed["modified_at"], "1970-01-01T00:00:00.000000Z");
        assert_eq!(listed["digest"].as_str().unwrap().len(), 64);
        let info = json!({"general.architecture": "unknown", "unknown.context_length": 9});
        assert_eq!(read(&show(&model))["model_info"], info);
    }

    #[test]
    fn parameters_are_rounded() {
        for (parameters, text) in [
            (999, "999"),
            (15_000, "15K"),
            (494_032_768, "494.03M"),
            (7_000_000_000, "7B"),
            (8_190_735_360, "8.2B"),
        ] {
            assert_eq!(rounded(parameters), text);
        }
    }

    #[test]
    fn the_model_to_show_has_two_names() {
        assert_eq!(requested_model(br#"{"model":"m","verbose":true}"#).unwrap(), "m");
        assert_eq!(requested_model(br#"{"name":"m"}"#).unwrap(), "m");
        let error = requested_model(b"{}").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("model"));
    }
}
