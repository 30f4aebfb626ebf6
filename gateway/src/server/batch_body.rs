//! What the body of a line may be, through whichever API its batch was created.

use serde::Deserialize;

/// Models that one batch may name.
pub(crate) const MODELS_MAX: usize = 100;

#[derive(Deserialize)]
struct Streamed {
    stream: Option<bool>,
    background: Option<bool>,
}

#[derive(Deserialize)]
struct Named {
    model: String,
}

/// The field for which a body is refused, and why.
pub(crate) fn refused_field(body: &str) -> Option<(&'static str, &'static str)> {
    let Streamed { stream, background } = serde_json::from_str(body).ok()?;
    match (stream, background) {
        (Some(true), _) => Some(("stream", "batches do not stream")),
        (_, Some(true)) => Some(("background", "a batch is in the background already")),
        _ => None,
    }
}

/// The place of a body's model in the list, where it is added if need be; `None` if that is full.
pub(crate) fn place_of(body: &str, models: &mut Vec<String>) -> Option<usize> {
    let named: Option<Named> = serde_json::from_str(body).ok();
    let model = named.map(|Named { model }| model).unwrap_or_default();
    let known = models.iter().position(|known| *known == model);
    known.or_else(|| {
        models.push(model);
        (models.len() <= MODELS_MAX).then(|| models.len() - 1)
    })
}
