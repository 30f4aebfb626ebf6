//! Parameters in the query string of a path.

use inference_protocol::openai::ParseError;
use percent_encoding::percent_decode_str;

use crate::types::error::Error;

/// The value of a parameter in a query string.
pub(crate) fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.into_iter().find(|(key, _)| *key == name)?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}

/// The parameter `limit`: how many entries of a list are asked for.
pub(crate) fn limit(query: Option<&str>, default: usize, max: usize) -> Result<usize, Error> {
    let Some(limit) = parameter(query, "limit") else { return Ok(default) };
    let limit = limit.parse().ok().filter(|limit| (1..=max).contains(limit));
    limit.ok_or_else(|| invalid("limit", &format!("expected a whole number, 1 to {max}")))
}

/// The error of a field with an invalid value.
pub(crate) fn invalid(name: &str, why: &str) -> Error {
    let message = format!("invalid value for '{name}': {why}");
    Error::Invalid(ParseError { message, param: Some(name.into()) })
}
