//! CORS settings: the web pages that may call the API.

use hyper::header::HeaderValue;

/// The origins allowed.
#[derive(Debug, Clone, Default)]
pub enum Cors {
    /// None; no CORS headers are sent.
    #[default]
    Off,
    /// These origins.
    Origins(Vec<HeaderValue>),
    /// All origins.
    Any,
}

/// Parses an origin: scheme, host, and optional port, nothing else.
pub(crate) fn origin(text: &str) -> Option<HeaderValue> {
    let (scheme, host) = text.split_once("://")?;
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._:[]+".contains(c);
    let is_origin = !scheme.is_empty() && !host.is_empty() && (scheme.len() + host.len()) < 250;
    let is_plain = scheme.chars().chain(host.chars()).all(is_plain);
    (is_origin && is_plain).then(|| HeaderValue::from_str(text).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_and_a_host() {
        for right in [
            "https://app.example.com",
            "http://localhost:3000",
            "http://[::1]:8080",
            "tauri://localhost",
        ] {
            assert!(origin(right).is_some(), "{right}");
        }
        for wrong in ["", "*", "app.example.com", "https://", "https://a/", "https://A", "://a"] {
            assert!(origin(wrong).is_none(), "{wrong}");
        }
    }
}
