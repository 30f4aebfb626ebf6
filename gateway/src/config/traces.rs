//! What a configuration says about traces.

use hyper::Uri;

use super::raw::report;
use super::section::{Problems, Section};
use crate::traces::Traces;

/// Where traces go, and how many.
pub(super) fn read(section: Option<Section>, problems: &mut Problems) -> Option<Traces> {
    let mut section = section?;
    let endpoint = section.required_text("otlp_endpoint", problems);
    section.pattern("otlp_endpoint", "^[Hh][Tt][Tt][Pp][Ss]?://[^/?#]+[^?#]*$");
    let sample_ratio = section.share("sample_ratio", 1.0, problems);
    let endpoint = endpoint.filter(|url| {
        let is_right = is_endpoint(url);
        if !is_right {
            let message = "expected http://host:4318 or https://host:4318";
            section.complain("otlp_endpoint", message, problems);
        }
        is_right
    });
    section.finish(problems);
    report("traces.otlp_endpoint", Traces::new(&endpoint?, sample_ratio), problems)
}

fn is_endpoint(url: &str) -> bool {
    let uri: Option<Uri> = url.parse().ok();
    uri.is_some_and(|uri| {
        let scheme = matches!(uri.scheme_str(), Some("http" | "https"));
        scheme && uri.host().is_some_and(|host| !host.is_empty()) && uri.query().is_none()
    })
}
