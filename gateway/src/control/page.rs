//! The fleet page: a few files embedded in the binary. They contain no secrets, and anyone who
//! reaches the admin listener may load them. The data comes from the API, which needs the key.

use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use crate::types::response::{self, Body};

/// The files: path, content type, content.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("page/index.html")),
    ("/page/style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("/page/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/page/main.js", SCRIPT, include_str!("page/main.js")),
    ("/page/api.js", SCRIPT, include_str!("page/api.js")),
    ("/page/dom.js", SCRIPT, include_str!("page/dom.js")),
    ("/page/fleet.js", SCRIPT, include_str!("page/fleet.js")),
    ("/page/tables.js", SCRIPT, include_str!("page/tables.js")),
    ("/page/charts.js", SCRIPT, include_str!("page/charts.js")),
    ("/page/chat.js", SCRIPT, include_str!("page/chat.js")),
];
const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Restricts the page to its own files and this API, and forbids framing. The key is sent in a
/// header, never automatically by the browser, so no other page can use it.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // Another version of the gateway may have another page.
    (header::CACHE_CONTROL, "no-cache"),
];

/// The page's file at `path`, if there is one.
pub(crate) fn file(path: &str) -> Option<Response<Body>> {
    let (_, kind, content) = FILES.iter().find(|(at, ..)| *at == path)?;
    let mut response = response::with_type(StatusCode::OK, kind, *content);
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_only_files_that_it_has() {
        for (path, kind, content) in FILES {
            assert_eq!(file(path).unwrap().headers()[header::CONTENT_TYPE], *kind);
            let quoted = content
                .split(['"', '\''])
                .filter(|t| t.starts_with("/page/") || t.starts_with("./"));
            for name in quoted {
                let name = name.replacen("./", "/page/", 1);
                assert!(file(&name).is_some(), "{path} names {name}");
            }
        }
        assert!(file("/page/").is_none() && file("/index.html").is_none());
    }

    #[test]
    fn nothing_of_the_page_writes_markup_or_runs_text() {
        let forbidden = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            " onclick=",
            "style=\"",
            "javascript:",
            "localStorage",
            "document.cookie",
            "https://",
            "http://",
        ];
        for (path, _, content) in FILES {
            // The SVG namespace is only a name; nothing is fetched.
            let content = content.replace("http://www.w3.org/2000/svg", "");
            for word in forbidden {
                assert!(!content.contains(word), "{path} has {word}");
            }
        }
    }
}
