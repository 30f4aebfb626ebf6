//! Health checks of external endpoints: whether the engine is ready, by what each has for that, and
//! which models it lists.
//!
//! Engines list their models at `/models` below the base URL (OpenAI), or at `/api/tags` (Ollama).
//! llama-server lists its model while it loads it, and vLLM while its engine is dead, so `/health`
//! counts where there is one.

use std::collections::BTreeSet;
use std::time::Duration;

use inference_protocol::ids::MODEL_NAME_BYTES_MAX;
use inference_translation::ollama::without_latest;
use reqwest::Response;
use serde_json::Value;

use super::{AUTHORIZATION, Client, innermost};

/// Timeout of each request of a health check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of a list of models.
const LIST_BYTES_MAX: usize = 1024 * 1024;
/// Most models of an endpoint; further ones of its list are ignored.
const MODELS_MAX: usize = 256;

/// Why an external endpoint failed its health check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotReady {
    /// There is no response, with the reason.
    Unreachable(String),
    /// The endpoint rejected the key with this status.
    KeyRejected(u16),
    /// The endpoint responded with this status.
    Status(u16),
    /// The models are not configured, and the endpoint lists none.
    NoModels,
    /// The models are not configured, and the endpoint is too busy to list them. It is ready if it
    /// has listed them before.
    Busy,
}

impl std::fmt::Display for NotReady {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreachable(why) => f.write_str(why),
            Self::KeyRejected(status) => {
                write!(f, "the endpoint rejects the key (status {status})")
            }
            Self::Status(status) => write!(f, "the endpoint responds with status {status}"),
            Self::Busy => f.write_str("the endpoint is too busy to list its models (status 429)"),
            Self::NoModels => f.write_str("the endpoint lists no models: name them in 'models'"),
        }
    }
}

/// What an endpoint that is ready serves.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Our names of its models, if it decides which these are.
    pub discovered: Option<Vec<String>>,
    /// Its names of configured models that its list lacks. It may serve them all the same.
    pub unlisted: Vec<String>,
}

impl Client {
    /// Health check: the endpoint responds, accepts our key, and its engine is ready.
    ///
    /// # Errors
    /// Why it is not ready.
    pub async fn check(&self) -> Result<Served, NotReady> {
        // Without the key: it is public where it exists, and anything but an error of the server
        // means that it does not.
        let health = self.get("/health", false).await?.status();
        if health.is_server_error() {
            return Err(NotReady::Status(health.as_u16()));
        }
        let models = &self.settings.models;
        let listed = match self.listed(health.is_success()).await {
            // Alive, and what it serves is configured.
            Err(NotReady::Busy) if !models.is_empty() => Vec::new(),
            listed => listed?,
        };
        match models.is_empty() {
            true if listed.is_empty() => Err(NotReady::NoModels),
            true => Ok(Served { discovered: Some(listed), unlisted: Vec::new() }),
            false if listed.is_empty() => Ok(Served::default()),
            false => {
                let unlisted = models.values().filter(|model| !is_listed(&listed, model));
                Ok(Served { discovered: None, unlisted: unlisted.cloned().collect() })
            }
        }
    }

    /// The models that the engine lists. A healthy one may have no list.
    async fn listed(&self, is_healthy: bool) -> Result<Vec<String>, NotReady> {
        let url = format!("{}/models", self.settings.base);
        let response = self.get_url(url, true).await?;
        match response.status().as_u16() {
            200..=299 => Ok(names(response).await),
            429 => Err(NotReady::Busy),
            status @ (401 | 403) => Err(NotReady::KeyRejected(status)),
            status @ (404 | 405) => {
                let tags = self.get("/api/tags", true).await?;
                match tags.status().is_success() {
                    true => Ok(names(tags).await),
                    false if is_healthy => Ok(Vec::new()),
                    false => Err(NotReady::Status(status)),
                }
            }
            status => Err(NotReady::Status(status)),
        }
    }

    /// Asks for a path of the server, beside its API of a version.
    async fn get(&self, path: &str, with_key: bool) -> Result<Response, NotReady> {
        self.get_url(format!("{}{path}", root(&self.settings.base)), with_key).await
    }

    async fn get_url(&self, url: String, with_key: bool) -> Result<Response, NotReady> {
        let mut request = self.http.get(url).timeout(CHECK_TIMEOUT);
        if let Some(authorization) = self.authorization.as_ref().filter(|_| with_key) {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.send().await.map_err(|e| NotReady::Unreachable(innermost(&e)))
    }
}

/// The base URL without the version of the API.
fn root(base: &str) -> &str {
    let version = |segment: &&str| {
        let digits = segment.strip_prefix('v').unwrap_or_default();
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    let segment = base.rsplit_once('/').map(|(_, segment)| segment).filter(version);
    segment
        .and_then(|segment| base.strip_suffix(segment))
        .map_or(base, |root| root.trim_end_matches('/'))
}

/// Ollama adds a tag to names without one.
fn is_listed(listed: &[String], model: &str) -> bool {
    listed.iter().any(|name| without_latest(name) == without_latest(model))
}

/// The names in a list of models; none if it is no list, or too long.
async fn names(mut response: Response) -> Vec<String> {
    let mut body = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        if body.len() + piece.len() > LIST_BYTES_MAX {
            return Vec::new();
        }
        body.extend_from_slice(&piece);
    }
    serde_json::from_slice(&body).map_or_else(|_| Vec::new(), |list| names_in(&list))
}

/// OpenAI's `data[].id`, or Ollama's `models[].name`.
fn names_in(list: &Value) -> Vec<String> {
    let names = |entries: &str, name: &str| -> BTreeSet<String> {
        let entries = list.get(entries).and_then(Value::as_array).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.get(name)?.as_str());
        names.filter(|name| is_name(name)).map(String::from).collect()
    };
    let mut found = names("data", "id");
    if found.is_empty() {
        found = names("models", "name");
    }
    found.into_iter().take(MODELS_MAX).collect()
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MODEL_NAME_BYTES_MAX && !name.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_root_of_a_server_is_its_url_without_the_version_of_the_api() {
        for (base, expected) in [
            ("http://a:8000/v1", "http://a:8000"),
            ("http://a:8000/v3", "http://a:8000"),
            ("https://a/openai/v1", "https://a/openai"),
            ("http://a:8000/api", "http://a:8000/api"),
            ("http://a:8000", "http://a:8000"),
            ("http://a/v", "http://a/v"),
        ] {
            assert_eq!(root(base), expected);
        }
    }

    #[test]
    fn lists_of_models_are_read_in_both_forms_and_bounded() {
        let openai = json!({"object": "list", "data": [{"id": "b"}, {"id": "a"}, {"id": "a"}, {}]});
        assert_eq!(names_in(&openai), ["a", "b"]);
        let ollama = json!({"models": [{"name": "llama3:latest", "size": 1}]});
        assert_eq!(names_in(&ollama), ["llama3:latest"]);
        let many: Vec<Value> = (0..999).map(|i| json!({"id": format!("m{i:03}")})).collect();
        assert_eq!(names_in(&json!({ "data": many })).len(), MODELS_MAX);
        for none in [
            json!([]),
            json!({"data": {}}),
            json!({"data": [{"id": "a\nb"}, {"id": ""}, {"id": "x".repeat(9999)}, 1]}),
        ] {
            assert!(names_in(&none).is_empty(), "{none}");
        }
    }

    #[test]
    fn a_name_without_a_tag_is_the_latest_of_ollama() {
        let listed = ["llama3:latest".to_string(), "qwen:7b".into()];
        assert!(is_listed(&listed, "llama3") && is_listed(&listed, "llama3:latest"));
        assert!(is_listed(&listed, "qwen:7b") && !is_listed(&listed, "qwen"));
    }
}
