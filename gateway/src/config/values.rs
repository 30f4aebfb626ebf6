//! Values that several sections read in the same way.

use std::collections::BTreeSet;

use hyper::Uri;
use hyper::header::HeaderValue;
use inference_protocol::ids::is_plain_id;

use super::api_keys::{NAME, NAME_PATTERN};
use super::files::Files;
use super::section::{Problems, Section};
use super::yaml::Problem;
use crate::types::secret::KeyDigest;

/// Shorter keys could be guessed.
const KEY_BYTES_MIN: usize = 16;

/// Digest of a key of sufficient length.
pub(super) fn long_key(files: &Files, file: &str) -> Result<KeyDigest, String> {
    match files.key(file)? {
        key if key.len() >= KEY_BYTES_MIN => Ok(KeyDigest::of(&key)),
        _ => Err(format!("the key must have at least {KEY_BYTES_MIN} characters")),
    }
}

/// The `Authorization` header with a key.
pub(super) fn header(key: &str) -> Result<HeaderValue, String> {
    let mut value = HeaderValue::from_str(&format!("Bearer {key}"))
        .map_err(|_| "the key holds characters that a header cannot".to_string())?;
    value.set_sensitive(true);
    Ok(value)
}

/// Records the problem, if there is one.
pub(super) fn report<T>(
    path: &str,
    result: Result<T, String>,
    problems: &mut Problems,
) -> Option<T> {
    result.map_err(|message| problems.push(Problem { path: path.into(), message })).ok()
}

/// The name of an item of a list, which no other one has.
pub(super) fn unique_name(
    item: &mut Section,
    names: &mut BTreeSet<String>,
    problems: &mut Problems,
) -> Option<String> {
    let name = item.required_text("name", problems);
    item.pattern("name", NAME_PATTERN);
    let name = name?;
    let wrong = match (is_plain_id(&name), names.insert(name.clone())) {
        (false, _) => Some(NAME),
        (true, false) => Some("this name is used twice"),
        (true, true) => None,
    };
    if let Some(message) = wrong {
        item.report("name", message, problems);
        return None;
    }
    Some(name)
}

/// Parses the URL of a server: http or https, with a host, without a query. A fragment, which
/// [`Uri`] drops silently, is not accepted either.
pub(super) fn server_url(url: &str) -> Option<Uri> {
    let uri: Uri = url.parse().ok()?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_host = uri.host().is_some_and(|host| !host.is_empty());
    (is_http && has_host && uri.query().is_none() && !url.contains('#')).then_some(uri)
}
