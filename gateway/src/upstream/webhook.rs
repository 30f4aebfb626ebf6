//! Receivers of webhooks: what happened is posted to them, signed as
//! [Standard Webhooks](https://www.standardwebhooks.com) describes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, StatusCode, Url};
use sha2::Sha256;

use crate::types::address::is_public;

/// Longest wait for a connection, and for a response.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(15);
/// How long idle connections are kept.
const IDLE: Duration = Duration::from_secs(30);
/// Longest pause that a receiver may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes of a secret.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Secrets at a time: a new one, and the one before it.
const SECRETS_MAX: usize = 4;

/// Keys that sign. They are not printed.
struct Secrets(Vec<Vec<u8>>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

impl Secrets {
    /// Reads secrets, one in each line: `whsec_` and base64.
    fn read(text: &str) -> Result<Self, String> {
        let expected = "expected whsec_ and the base64 of 24 to 64 random bytes in each line";
        let read = |line: &str| {
            let decoded = STANDARD.decode(line.trim().strip_prefix("whsec_")?).ok()?;
            SECRET_BYTES.contains(&decoded.len()).then_some(decoded)
        };
        let secrets: Option<Vec<_>> =
            text.lines().filter(|line| !line.trim().is_empty()).map(read).collect();
        match secrets {
            Some(secrets) if (1..=SECRETS_MAX).contains(&secrets.len()) => Ok(Self(secrets)),
            Some(secrets) if secrets.len() > SECRETS_MAX => {
                Err(format!("expected at most {SECRETS_MAX} secrets"))
            }
            _ => Err(expected.into()),
        }
    }

    /// The signatures of a message, one of each secret.
    fn sign(&self, id: &str, timestamp: u64, body: &str) -> String {
        let sign = |secret: &Vec<u8>| {
            // Keys of all lengths are valid.
            let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
            mac.update(format!("{id}.{timestamp}.{body}").as_bytes());
            Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
        };
        self.0.iter().filter_map(sign).collect::<Vec<_>>().join(" ")
    }
}

/// Why a message was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SendError {
    /// What happened.
    pub why: String,
    /// What the receiver asks for.
    pub retry_after: Option<Duration>,
    /// True if the receiver is gone for good.
    pub is_final: bool,
}

/// A receiver.
#[derive(Debug)]
pub struct Receiver {
    http: Client,
    url: Url,
    secrets: Secrets,
}

impl Receiver {
    /// A receiver at this URL, with the secrets that it shares with us. Unless private addresses
    /// are allowed, its connection is encrypted, and leads to the internet: a URL must not make the
    /// gateway talk to machines that only it can reach. `roots` are CA certificates (PEM) to trust
    /// instead of the system's.
    ///
    /// # Errors
    /// The URL or the secrets are not right.
    pub fn new(
        url: &str,
        secrets: &str,
        allows_private: bool,
        roots: Option<&[u8]>,
    ) -> Result<Self, String> {
        let url: Url = url.parse().map_err(|_| "is no URL")?;
        check(&url, allows_private)?;
        let mut builder = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(TIMEOUT)
            .pool_idle_timeout(IDLE)
            .user_agent(concat!("flotilla-gateway/", env!("CARGO_PKG_VERSION")))
            .no_proxy();
        if !allows_private {
            builder = builder.dns_resolver(Arc::new(PublicOnly));
        }
        if let Some(pem) = roots {
            let roots = reqwest::Certificate::from_pem_bundle(pem).map_err(|e| e.to_string())?;
            builder = builder.tls_certs_only(roots);
        }
        let http = builder.build().map_err(|e| e.to_string())?;
        Ok(Self { http, url, secrets: Secrets::read(secrets)? })
    }

    /// Posts a message. `timestamp`: now, in seconds since 1970.
    ///
    /// # Errors
    /// The receiver did not answer with a status of 2xx.
    pub(crate) async fn send(&self, id: &str, timestamp: u64, body: &str) -> Result<(), SendError> {
        let request = self
            .http
            .post(self.url.clone())
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", self.secrets.sign(id, timestamp, body))
            .body(body.to_string());
        // Its URL may have a secret.
        let sent = request.send().await.map_err(|error| SendError {
            why: deepest(&error.without_url()),
            retry_after: None,
            is_final: false,
        })?;
        let status = sent.status();
        if status.is_success() {
            return Ok(());
        }
        let seconds = sent.headers().get("retry-after").and_then(|after| after.to_str().ok());
        let after = seconds.and_then(|text| text.parse().ok()).map(Duration::from_secs);
        Err(SendError {
            why: format!("status {status}"),
            retry_after: after.map(|after| after.min(RETRY_AFTER_MAX)),
            is_final: status == StatusCode::GONE,
        })
    }
}

/// What began it.
fn deepest(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), deepest)
}

fn check(url: &Url, allows_private: bool) -> Result<(), String> {
    let is_private = |host: &url::Host<&str>| match *host {
        url::Host::Domain(_) => false,
        url::Host::Ipv4(v4) => !is_public(v4.into()),
        url::Host::Ipv6(v6) => !is_public(v6.into()),
    };
    match (url.scheme(), url.host()) {
        ("https", Some(_)) | ("http", Some(_)) if allows_private => Ok(()),
        ("https", Some(host)) if is_private(&host) => {
            Err("its address is private: set allow_private if that is right".into())
        }
        ("https", Some(_)) => Ok(()),
        _ => Err("expected https://host/path (with allow_private, http:// as well)".into()),
    }
}

/// Finds addresses of the internet only, each time a connection is made: names may change their
/// addresses.
#[derive(Debug)]
struct PublicOnly;

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let public: Vec<SocketAddr> = found.filter(|address| is_public(address.ip())).collect();
            if public.is_empty() {
                return Err("its address is private: set allow_private if that is right".into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    fn wrong(url: &str) -> bool {
        Receiver::new(url, SECRET, false, None).is_err()
    }

    #[test]
    fn a_signature_is_that_of_the_specification() {
        // The example of https://github.com/standard-webhooks/standard-webhooks.
        let signed = Secrets::read(SECRET).unwrap().sign(
            "msg_p5jXN8AQM9LWM0D4loKWxJek",
            1_614_265_330,
            r#"{"test": 2432232314}"#,
        );
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let two = Secrets::read(&format!("{SECRET}\n{SECRET}\n")).unwrap();
        assert_eq!(two.sign("a", 1, "b").split(' ').count(), 2);
        assert_eq!(format!("{two:?}"), "2 secrets");
    }

    #[test]
    fn secrets_are_long_enough_and_few() {
        for text in ["", "secret", "whsec_", "whsec_c2hvcnQ=", "whsec_%%%"] {
            assert!(Secrets::read(text).is_err(), "{text}");
        }
        assert!(Secrets::read(&format!("{SECRET}\n").repeat(5)).is_err());
    }

    #[test]
    fn a_url_leads_to_the_internet_unless_it_may_be_private() {
        for url in [
            "http://example.com/",
            "ftp://example.com/",
            "https://127.0.0.1/",
            "https://[::1]/",
            "https://10.0.0.1/",
            "https://169.254.169.254/latest",
            "https://2130706433/",
            "https://0x7f.1/",
            "https://[::ffff:10.0.0.1]/",
            "",
            "https://",
        ] {
            assert!(wrong(url), "{url}");
        }
        assert!(!wrong("https://example.com/hook?token=x"));
        assert!(!wrong("https://1.1.1.1/"));
        for url in ["http://127.0.0.1:1/", "https://10.0.0.1/", "http://hooks.internal/"] {
            assert!(Receiver::new(url, SECRET, true, None).is_ok(), "{url}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_to_this_machine_is_not_connected() {
        let receiver = Receiver::new("https://localhost:1/", SECRET, false, None).unwrap();
        let why = receiver.send("evt_1", 1, "{}").await.unwrap_err().why;
        assert!(why.contains("is private"), "{why}");
    }
}
