//! PURE. Where the key may be sent, and where a redirect may lead.

use hyper::header::HeaderValue;
use url::{Host, Url};

/// The default hub, without `HF_ENDPOINT`.
const HUB: &str = "https://huggingface.co";
/// Maximum length of a redirect's address; signed ones have about 2,000 bytes.
const LOCATION_BYTES_MAX: usize = 16 * 1024;
/// Maximum length of a key in bytes.
const KEY_BYTES_MAX: usize = 4096;

/// The hub and the key for it.
#[derive(Clone)]
pub(crate) struct Endpoint {
    hub: Url,
    /// Header value, marked as sensitive.
    authorization: Option<HeaderValue>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = if self.has_key() { "masked" } else { "none" };
        write!(f, "Endpoint {{ hub: {}, key: {key} }}", self.hub)
    }
}

impl Endpoint {
    /// Creates it from the values of `HF_ENDPOINT` and `HF_TOKEN`.
    pub(crate) fn new(hub: Option<&str>, key: Option<&str>) -> Result<Self, String> {
        let hub = hub.map(str::trim).filter(|h| !h.is_empty()).unwrap_or(HUB);
        let wrong = || "HF_ENDPOINT must be a URL like https://huggingface.co".to_string();
        let hub = Url::parse(hub).map_err(|_| wrong())?;
        let plain = hub.username().is_empty() && hub.password().is_none();
        if !is_web(&hub) || !plain || hub.query().is_some() || hub.fragment().is_some() {
            return Err(wrong());
        }
        let key = key.map(str::trim).filter(|k| !k.is_empty());
        let authorization = key.map(|key| {
            let wrong = "HF_TOKEN contains characters that no token has: check that you copied it completely";
            if key.len() > KEY_BYTES_MAX {
                return Err(wrong.to_string());
            }
            let value = HeaderValue::from_str(&format!("Bearer {key}"));
            let mut value = value.map_err(|_| wrong.to_string())?;
            value.set_sensitive(true);
            Ok(value)
        });
        Ok(Self { hub, authorization: authorization.transpose()? })
    }

    pub(crate) fn hub(&self) -> &Url {
        &self.hub
    }

    pub(crate) fn has_key(&self) -> bool {
        self.authorization.is_some()
    }

    /// True if `url` is on the hub: same scheme, host and port.
    pub(crate) fn is_hub(&self, url: &Url) -> bool {
        url.origin() == self.hub.origin()
    }

    /// The key, if it may be sent to `url`: only the hub gets it.
    pub(crate) fn authorization_for(&self, url: &Url) -> Option<&HeaderValue> {
        self.authorization.as_ref().filter(|_| self.is_hub(url))
    }
}

/// The target of a redirect from `from`, if it may be followed.
pub(crate) fn next_hop(from: &Url, location: Option<&HeaderValue>) -> Result<Url, String> {
    let location = location.ok_or("redirects without a Location header")?;
    if location.len() > LOCATION_BYTES_MAX {
        return Err(format!("redirects to a URL longer than {LOCATION_BYTES_MAX} bytes"));
    }
    let text = std::str::from_utf8(location.as_bytes());
    let text = text.map_err(|_| "redirects to a URL that is not UTF-8")?;
    let mut to = from.join(text).map_err(|e| format!("redirects to an invalid URL: {e}"))?;
    if !is_web(&to) {
        return Err(format!("redirects to {}:, which is not http or https", to.scheme()));
    }
    if from.scheme() == "https" && to.scheme() == "http" {
        return Err(format!("redirects from https to http ({}): not followed", host_of(&to)));
    }
    if !to.username().is_empty() || to.password().is_some() {
        return Err("redirects to a URL with a user name or password: not followed".into());
    }
    to.set_fragment(None);
    Ok(to)
}

/// True if anyone on the path can read and change the traffic: http to another machine.
pub(crate) fn is_open(url: &Url) -> bool {
    let loopback = match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    };
    url.scheme() == "http" && !loopback
}

/// The host, with its port unless it is the default.
pub(crate) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.into(), |port| format!("{host}:{port}"))
}

fn is_web(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.has_host()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn the_key_goes_to_the_hub_and_nowhere_else() {
        let endpoint = Endpoint::new(None, Some(" hf_secret\n")).unwrap();
        let sent = endpoint.authorization_for(&url("https://huggingface.co/o/r")).unwrap();
        assert_eq!(sent, "Bearer hf_secret");
        assert!(sent.is_sensitive());
        for other in [
            "http://huggingface.co/o/r",
            "https://huggingface.co:444/o/r",
            "https://cdn.huggingface.co/o/r",
            "https://huggingface.co.evil.example/",
            "https://evil.example/huggingface.co",
        ] {
            assert!(endpoint.authorization_for(&url(other)).is_none(), "{other}");
        }
        let shown = format!("{endpoint:?} {sent:?}");
        assert!(!shown.contains("hf_secret") && shown.contains("masked"), "{shown}");
    }

    #[test]
    fn a_wrong_endpoint_or_key_is_refused_without_showing_it() {
        for wrong in ["hub", "ftp://h", "https://u:p@h", "https://h/?q", "file:///etc"] {
            let error = Endpoint::new(Some(wrong), None).unwrap_err();
            assert!(error.contains("HF_ENDPOINT"), "{wrong}: {error}");
        }
        let error = Endpoint::new(None, Some("secret\nX-Evil: 1")).unwrap_err();
        assert!(error.contains("HF_TOKEN") && !error.contains("secret"), "{error}");
        assert!(!Endpoint::new(Some(""), Some("  ")).unwrap().has_key());
    }

    #[test]
    fn redirects_lead_on_but_not_out_of_https() {
        let hop = |from: &str, to: &str| {
            next_hop(&url(from), Some(&HeaderValue::from_str(to).unwrap())).map(String::from)
        };
        assert_eq!(hop("https://h/a/b", "/c#x").unwrap(), "https://h/c");
        assert_eq!(hop("https://h/a/b", "//g/c?d").unwrap(), "https://g/c?d");
        assert_eq!(hop("http://h/a", "https://g/").unwrap(), "https://g/");
        assert!(hop("https://h/a", "http://h/a").unwrap_err().contains("from https to http"));
        assert!(hop("https://h/a", "file:///etc/passwd").unwrap_err().contains("file:"));
        assert!(hop("https://h/a", "https://u:p@g/").is_err());
        assert!(hop("https://h/a", &"x".repeat(LOCATION_BYTES_MAX + 1)).is_err());
        assert!(next_hop(&url("https://h/"), None).is_err());
    }

    #[test]
    fn only_http_beyond_this_machine_is_open() {
        for (address, open) in [
            ("http://h/", true),
            ("http://10.0.0.1/", true),
            ("http://127.0.0.1:80/", false),
            ("http://[::1]/", false),
            ("http://localhost/", false),
            ("http://localhost.evil.example/", true),
            ("https://h/", false),
        ] {
            assert_eq!(is_open(&url(address)), open, "{address}");
        }
    }
}
