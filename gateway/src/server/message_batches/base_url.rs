//! Where a client reaches the gateway.

use hyper::Request;
use hyper::header::{HOST, HeaderMap};

use crate::config::Config;

const FORWARDED_PROTO: &str = "x-forwarded-proto";
const FORWARDED_HOST: &str = "x-forwarded-host";
/// Longest name of a host, with its port.
const HOST_BYTES_MAX: usize = 300;

/// The URL, without a path, by which a request has reached the gateway. `None` if that is not
/// certain: a client that followed a wrong one would send its key there.
pub(super) fn of<B>(request: &Request<B>, config: &Config) -> Option<String> {
    url(request, config.tls.is_some(), !config.trusted_proxies.is_empty())
}

fn url<B>(request: &Request<B>, has_tls: bool, is_behind_proxy: bool) -> Option<String> {
    let headers = request.headers();
    let scheme = match header(headers, FORWARDED_PROTO) {
        Some(scheme) => Some(scheme).filter(|scheme| ["http", "https"].contains(scheme))?,
        // A proxy may speak https with the client, and have another name.
        None if is_behind_proxy => return None,
        None if has_tls => "https",
        None => "http",
    };
    let authority = request.uri().authority().map(|authority| authority.as_str());
    let host = header(headers, FORWARDED_HOST).or(authority);
    let host = host.or_else(|| headers.get(HOST)?.to_str().ok())?;
    let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
    let is_valid = !host.is_empty() && host.len() <= HOST_BYTES_MAX && host.chars().all(is_host);
    is_valid.then(|| format!("{scheme}://{host}"))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(target: &str, headers: &[(&str, &str)], has_tls: bool, has_proxy: bool) -> String {
        let mut request = Request::get(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        url(&request.body(()).unwrap(), has_tls, has_proxy).unwrap_or_default()
    }

    #[test]
    fn the_client_itself_says_by_which_name_it_reaches_the_gateway() {
        let host = [("host", "here.example:8443")];
        assert_eq!(of("/v1", &host, true, false), "https://here.example:8443");
        assert_eq!(of("/v1", &host, false, false), "http://here.example:8443");
        assert_eq!(of("https://here.example/v1", &[], true, false), "https://here.example");
        assert_eq!(of("/v1", &[("host", "[::1]:80")], false, false), "http://[::1]:80");
        assert_eq!(of("/v1", &[], true, false), "");
        assert_eq!(of("/v1", &[("host", "a/b?c")], true, false), "");
        assert_eq!(of("/v1", &[("host", "")], true, false), "");
        assert_eq!(of("/v1", &[("host", &"a".repeat(301))], true, false), "");
    }

    #[test]
    fn behind_a_proxy_only_what_the_proxy_says_is_certain() {
        let proto = ("x-forwarded-proto", "https");
        assert_eq!(of("/v1", &[("host", "inside")], false, true), "");
        assert_eq!(of("/v1", &[("host", "a.example"), proto], false, true), "https://a.example");
        let host = ("x-forwarded-host", "b.example");
        assert_eq!(of("/v1", &[("host", "a"), proto, host], false, true), "https://b.example");
        assert_eq!(of("/v1", &[("host", "a"), ("x-forwarded-proto", "x")], true, false), "");
    }
}
