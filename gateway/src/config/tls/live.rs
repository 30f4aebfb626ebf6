//! The certificate of a listener that gets it from an ACME server: absent until the first one is
//! issued, and replaced while the listener serves. Holds the answers to pending challenges, too.

use std::collections::HashMap;
use std::fmt::{self, Debug, Formatter};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use super::{mismatch, provider, server_builder};
use crate::config::files;

/// Protocol name of a TLS-ALPN-01 challenge (RFC 8737).
const ACME_TLS: &[u8] = b"acme-tls/1";
/// A chain and its key. Let's Encrypt's are 5 KiB.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// A certificate chain with its key.
#[derive(Clone)]
pub(crate) struct Certificate {
    key: Arc<CertifiedKey>,
    /// When it is valid.
    pub validity: Validity,
    /// DNS names that it is for.
    names: Vec<String>,
}

/// The period in which a certificate is valid, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    /// First second.
    pub not_before: u64,
    /// Last second.
    pub not_after: u64,
}

impl Certificate {
    /// Parses a certificate chain and its private key, all PEM, in one text.
    ///
    /// # Errors
    /// One of them is missing or invalid, or they do not match.
    pub(crate) fn parse(pem: &str) -> Result<Self, String> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        let chain = chain.map_err(|e| format!("invalid certificate: {e}"))?;
        let own = chain.first().ok_or("no certificate")?;
        let (validity, names) = describe(own)?;
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes());
        let key = key.map_err(|e| format!("invalid private key: {e}"))?;
        let key = CertifiedKey::from_der(chain, key, &provider()).map_err(mismatch)?;
        Ok(Self { key: Arc::new(key), validity, names })
    }

    /// Reads a file that contains what [`Self::parse`] needs; `None` if it does not exist.
    ///
    /// # Errors
    /// The file is unreadable or invalid.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, String> {
        if !path.try_exists().map_err(|e| format!("{}: {e}", path.display()))? {
            return Ok(None);
        }
        let text = files::read(path, FILE_BYTES_MAX)?;
        Self::parse(&text).map(Some).map_err(|why| format!("{}: {why}", path.display()))
    }

    /// True if it is valid for all of these domains.
    pub(crate) fn covers(&self, domains: &[String]) -> bool {
        domains.iter().all(|domain| self.names.contains(domain))
    }
}

fn describe(certificate: &CertificateDer) -> Result<(Validity, Vec<String>), String> {
    let invalid = |e: &dyn fmt::Display| format!("invalid certificate: {e}");
    let (_, parsed) = parse_x509_certificate(certificate).map_err(|e| invalid(&e))?;
    let second = |time: i64| u64::try_from(time).unwrap_or_default();
    let validity = Validity {
        not_before: second(parsed.validity().not_before.timestamp()),
        not_after: second(parsed.validity().not_after.timestamp()),
    };
    let names = parsed.subject_alternative_name().map_err(|e| invalid(&e))?;
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let dns = names.filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    Ok((validity, dns.collect()))
}

/// The certificate that a listener serves now, and the challenges that it answers.
#[derive(Default)]
pub(crate) struct LiveCertificate(Mutex<State>);

#[derive(Default)]
struct State {
    served: Option<Certificate>,
    /// TLS-ALPN-01: the certificate that proves control, by domain.
    tls: HashMap<String, Arc<ServerConfig>>,
    /// HTTP-01: the content of the file, by token.
    http: HashMap<String, String>,
}

impl LiveCertificate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves this certificate to new connections.
    pub(crate) fn set(&self, certificate: Certificate) {
        self.state().served = Some(certificate);
    }

    /// The certificate in use, if there is one.
    pub(crate) fn get(&self) -> Option<Certificate> {
        self.state().served.clone()
    }

    /// Answers a TLS-ALPN-01 challenge: `digest` is the SHA-256 of the key authorization.
    ///
    /// # Errors
    /// The certificate for the answer cannot be created.
    pub(crate) fn answer_tls(&self, domain: &str, digest: &[u8]) -> Result<(), String> {
        let config = challenge_server(domain, digest)?;
        self.state().tls.insert(domain.to_string(), config);
        Ok(())
    }

    /// Answers an HTTP-01 challenge.
    pub(crate) fn answer_http(&self, token: &str, key_authorization: &str) {
        self.state().http.insert(token.to_string(), key_authorization.to_string());
    }

    /// The answer to the HTTP-01 challenge with this token.
    pub(crate) fn http_answer(&self, token: &str) -> Option<String> {
        self.state().http.get(token).cloned()
    }

    /// Answers no challenge any more.
    pub(crate) fn forget_challenges(&self) {
        let mut state = self.state();
        state.tls.clear();
        state.http.clear();
    }

    /// The server for a client that validates a TLS-ALPN-01 challenge; `None` for others.
    pub(crate) fn challenge_config(&self, hello: &ClientHello) -> Option<Arc<ServerConfig>> {
        let mut protocols = hello.alpn()?;
        if protocols.next() != Some(ACME_TLS) || protocols.next().is_some() {
            return None;
        }
        self.state().tls.get(&hello.server_name()?.to_ascii_lowercase()).cloned()
    }
}

impl Debug for LiveCertificate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("LiveCertificate")
    }
}

impl ResolvesServerCert for LiveCertificate {
    fn resolve(&self, _: ClientHello) -> Option<Arc<CertifiedKey>> {
        let served = self.state().served.as_ref().map(|served| served.key.clone());
        if served.is_none() {
            tracing::debug!("TLS handshake refused: no certificate has been issued yet");
        }
        served
    }
}

/// A server whose self-signed certificate contains the digest (RFC 8737).
fn challenge_server(domain: &str, digest: &[u8]) -> Result<Arc<ServerConfig>, String> {
    let fail = |e: rcgen::Error| format!("cannot create a certificate: {e}");
    let mut params = rcgen::CertificateParams::new([domain.to_string()]).map_err(fail)?;
    params.custom_extensions = vec![rcgen::CustomExtension::new_acme_identifier(digest)];
    let key = rcgen::KeyPair::generate().map_err(fail)?;
    let certificate = params.self_signed(&key).map_err(fail)?;
    let key = PrivateKeyDer::try_from(key.serialize_der())?;
    let key = provider().key_provider.load_private_key(key).map_err(mismatch)?;
    // Unchecked: webpki knows no certificate with the critical extension of RFC 8737.
    let key = CertifiedKey::new(vec![certificate.der().clone()], key);
    let resolver = Arc::new(SingleCertAndKey::from(key));
    let mut config = server_builder(None)?.with_cert_resolver(resolver);
    config.alpn_protocols = vec![ACME_TLS.to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issued(names: &[&str]) -> String {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 2);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().pem() + &key.serialize_pem()
    }

    #[test]
    fn a_certificate_says_when_it_is_valid_and_for_what() {
        let certificate = Certificate::parse(&issued(&["A.example.com", "b.example.com"])).unwrap();
        let day = Validity { not_before: 1_577_836_800, not_after: 1_577_923_200 };
        assert_eq!(certificate.validity, day);
        let covers = |all: &[&str]| {
            certificate.covers(&all.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert!(covers(&["a.example.com", "b.example.com"]) && covers(&["b.example.com"]));
        assert!(!covers(&["a.example.com", "c.example.com"]));
    }

    #[test]
    fn what_is_no_certificate_with_its_key_says_why() {
        let (one, other) = (issued(&["a.example.com"]), issued(&["a.example.com"]));
        let cut = |text: &str| text.find("-----BEGIN PRIVATE").unwrap();
        let mixed = one[..cut(&one)].to_string() + &other[cut(&other)..];
        for (text, expected) in [
            ("", "no certificate"),
            (&one[..cut(&one)], "invalid private key"),
            (&one[cut(&one)..], "no certificate"),
            (&mixed, "do not match"),
        ] {
            let error = Certificate::parse(text).err().unwrap();
            assert!(error.contains(expected), "{expected} in {error}");
        }
    }

    #[test]
    fn challenges_are_answered_until_they_are_forgotten() {
        let live = LiveCertificate::default();
        assert!(live.get().is_none());
        live.answer_http("token", "token.thumbprint");
        live.answer_tls("a.example.com", &[7; 32]).unwrap();
        assert_eq!(live.http_answer("token").unwrap(), "token.thumbprint");
        assert_eq!(live.http_answer("other"), None);
        live.forget_challenges();
        assert_eq!(live.http_answer("token"), None);
        assert!(live.state().tls.is_empty());
    }
}
