//! `GET /v1/models` for Anthropic's clients, which send the header [`VERSION_HEADER`].

use chrono::{DateTime, SecondsFormat};
use inference_protocol::openai::to_json;
use serde::Serialize;

/// Header by which Anthropic's clients name the version of the API.
pub const VERSION_HEADER: &str = "anthropic-version";
/// Header in which they find the request's id.
pub const REQUEST_ID_HEADER: &str = "request-id";

#[derive(Serialize)]
struct Model<'a> {
    r#type: &'static str,
    id: &'a str,
    display_name: &'a str,
    created_at: String,
}

impl<'a> Model<'a> {
    fn new(id: &'a str, created: u64) -> Self {
        let seconds = i64::try_from(created).unwrap_or_default();
        let time = DateTime::from_timestamp(seconds, 0).unwrap_or_default();
        let created_at = time.to_rfc3339_opts(SecondsFormat::Secs, true);
        Self { r#type: "model", id, display_name: id, created_at }
    }
}

#[derive(Serialize)]
struct ModelList<'a> {
    data: Vec<Model<'a>>,
    has_more: bool,
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
}

/// The entry of one model, created at this Unix time.
pub fn model(id: &str, created: u64) -> String {
    to_json(&Model::new(id, created))
}

/// The list of all models, in one page.
pub fn model_list<'a>(models: impl Iterator<Item = (&'a str, u64)>) -> String {
    let data: Vec<_> = models.map(|(id, created)| Model::new(id, created)).collect();
    let (first_id, last_id) = (data.first().map(|m| m.id), data.last().map(|m| m.id));
    to_json(&ModelList { data, has_more: false, first_id, last_id })
}
