//! Reads the settings of automatic certificates (`tls.acme`).

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use instant_acme::LetsEncrypt;

use super::files::{self, Files};
use super::section::{Problems, Section};
use super::tls::live::{Certificate, LiveCertificate};
use super::values::{report, server_url};

/// Most names in a certificate from Let's Encrypt.
pub(crate) const DOMAINS_MAX: usize = 100;
const DOMAIN_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;
const CA_BYTES_MAX: u64 = 1024 * 1024;
const HTTPS_PORT: u16 = 443;
/// A DNS name, not an address and no wildcard.
const DOMAIN: &str =
    r"^([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$";

/// How the ACME server verifies that the gateway controls a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Challenge {
    /// By a TLS handshake with the public listener, at port 443 of the domain.
    #[default]
    TlsAlpn01,
    /// By an HTTP request to `http_listen`, at port 80 of the domain.
    Http01,
}

impl Challenge {
    /// All variants.
    pub const ALL: [Self; 2] = [Self::TlsAlpn01, Self::Http01];

    /// Its name in the configuration and in ACME.
    pub fn name(self) -> &'static str {
        match self {
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Http01 => "http-01",
        }
    }
}

/// Settings of automatic certificates, and the certificate in use.
#[derive(Debug, Clone)]
pub struct Acme {
    /// Domains of the certificate, in lower case; at least one.
    pub domains: Vec<String>,
    /// Contact for the account at the ACME server.
    pub email: Option<String>,
    /// URL of the ACME server's directory.
    pub directory: String,
    /// CA certificates (PEM) that the ACME server's own certificate must be from, instead of the
    /// system's.
    pub roots: Option<String>,
    /// Folder for the account and the certificate.
    pub folder: PathBuf,
    /// How domains are verified.
    pub challenge: Challenge,
    /// Address for plain HTTP: HTTP-01 challenges, and redirects to https.
    pub http_listen: Option<SocketAddr>,
    /// The certificate in use.
    pub(crate) certificate: Arc<LiveCertificate>,
}

/// Equal if the settings are. The certificate does not count.
impl PartialEq for Acme {
    fn eq(&self, other: &Self) -> bool {
        let settings = |of: &Self| {
            let names = (of.domains.clone(), of.email.clone(), of.directory.clone());
            (names, of.roots.clone(), of.folder.clone(), of.challenge, of.http_listen)
        };
        settings(self) == settings(other)
    }
}

impl Acme {
    /// The file with the certificate chain and its private key.
    pub(crate) fn certificate_file(&self) -> PathBuf {
        self.folder.join("certificate.pem")
    }

    /// URL of a domain. The ACME server verifies TLS-ALPN-01 at port 443, so clients reach the
    /// gateway there, whichever port it listens on.
    pub(crate) fn url(&self, domain: &str, listen: SocketAddr) -> String {
        match (self.challenge, listen.port()) {
            (Challenge::TlsAlpn01, _) | (_, HTTPS_PORT) => format!("https://{domain}"),
            (_, port) => format!("https://{domain}:{port}"),
        }
    }

    /// The configured domain that a `Host` header names, or else the first one.
    pub(crate) fn domain_of(&self, host: Option<&str>) -> &str {
        let host = host.unwrap_or_default();
        let host = host.split_once(':').map_or(host, |(host, _)| host);
        let named = self.domains.iter().find(|domain| domain.eq_ignore_ascii_case(host));
        named.or(self.domains.first()).map_or("", String::as_str)
    }
}

/// Reads the section.
pub(super) fn read(
    section: Option<Section>,
    files: &Files,
    problems: &mut Problems,
) -> Option<Acme> {
    let mut section = section?;
    let before = problems.len();
    let domains = read_domains(&mut section, problems);
    let email = section.text("email", problems);
    section.pattern("email", r"^[^@\s]+@[^@\s]+$");
    if email.as_deref().is_some_and(|email| !is_email(email)) {
        section.report("email", "expected an address, such as ops@example.com", problems);
    }
    let directory = read_directory(&mut section, problems);
    let roots = section.text("ca_file", problems).and_then(|file| {
        let text = read_roots(&files.path(&file));
        report(&format!("{}.ca_file", section.path), text, problems)
    });
    let state_dir = section.text("state_dir", problems);
    let challenge = (&Challenge::ALL[..], Challenge::name as fn(Challenge) -> &'static str);
    let challenge = section.choice("challenge", challenge, Challenge::default(), problems);
    let http_listen = section.optional_address("http_listen", problems);
    if challenge == Some(Challenge::Http01) && http_listen.is_none() {
        let message = "http-01 needs a listener at port 80: set http_listen, such as 0.0.0.0:80";
        section.report("http_listen", message, problems);
    }
    section.finish(problems);
    if problems.len() > before {
        return None;
    }
    let directory = directory?;
    let folder = files.state_dir(state_dir.as_deref(), "acme").join(server_name(&directory));
    let challenge = challenge?;
    let certificate = Arc::<LiveCertificate>::default();
    let acme =
        Acme { domains, email, directory, roots, folder, challenge, http_listen, certificate };
    // The task that renews the certificate reports problems of the file.
    if let Ok(Some(stored)) = Certificate::read(&acme.certificate_file()) {
        acme.certificate.set(stored);
    }
    Some(acme)
}

fn read_domains(section: &mut Section, problems: &mut Problems) -> Vec<String> {
    let texts = section.required_texts("domains", problems);
    section.pattern("domains", DOMAIN);
    if texts.len() > DOMAINS_MAX {
        section.report("domains", &format!("expected at most {DOMAINS_MAX} domains"), problems);
    }
    let mut domains: Vec<String> = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        let path = format!("{}.domains[{at}]", section.path);
        match report(&path, check_domain(text), problems) {
            Some(domain) if !domains.contains(&domain) => domains.push(domain),
            _ => {}
        }
    }
    domains
}

/// Checks a domain and returns it in lower case.
///
/// # Errors
/// A certificate for it cannot be requested, and why.
pub(crate) fn check_domain(text: &str) -> Result<String, String> {
    if text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
        return Err("is an address; ACME certificates need a domain".into());
    }
    if text.contains('*') {
        return Err("is a wildcard, which tls-alpn-01 and http-01 cannot verify; list the \
                    domains one by one"
            .into());
    }
    let is_label = |label: &str| {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        let is_edge_free = !label.starts_with('-') && !label.ends_with('-');
        (1..=LABEL_BYTES_MAX).contains(&label.len()) && is_edge_free && label.bytes().all(is_plain)
    };
    let last = text.rsplit('.').next().unwrap_or_default();
    let begins_with_letter = last.starts_with(|c: char| c.is_ascii_alphabetic());
    match text.len() <= DOMAIN_BYTES_MAX && text.split('.').all(is_label) && begins_with_letter {
        true => Ok(text.to_ascii_lowercase()),
        false => Err("expected a domain, such as llm.example.com".into()),
    }
}

/// True if a text may be the address of a contact.
pub(crate) fn is_email(text: &str) -> bool {
    let parts = text.split_once('@');
    parts.is_some_and(|(user, host)| !user.is_empty() && !host.is_empty() && !host.contains('@'))
        && !text.contains(char::is_whitespace)
}

fn read_directory(section: &mut Section, problems: &mut Problems) -> Option<String> {
    let is_staging = section.boolean("staging", false, problems);
    let given = section.text("directory", problems);
    section.pattern("directory", "^https://");
    let Some(given) = given else {
        let known = if is_staging { LetsEncrypt::Staging } else { LetsEncrypt::Production };
        return Some(known.url().to_string());
    };
    if is_staging {
        let message = "is Let's Encrypt's; it cannot be set together with directory";
        section.report("staging", message, problems);
    }
    let is_https = server_url(&given).is_some_and(|url| url.scheme_str() == Some("https"));
    if !is_https {
        let message = "expected the https URL of an ACME directory";
        section.report("directory", message, problems);
    }
    Some(given)
}

fn read_roots(path: &Path) -> Result<String, String> {
    let text = files::read(path, CA_BYTES_MAX)?;
    let parsed = reqwest::Certificate::from_pem_bundle(text.as_bytes());
    match parsed.map_err(|e| format!("{}: {e}", path.display()))?.is_empty() {
        true => Err(format!("{}: contains no certificates", path.display())),
        false => Ok(text),
    }
}

/// Name of the folder for what an ACME server has issued: certificates of a test server must not be
/// taken for those of another one.
fn server_name(directory: &str) -> String {
    let host = directory.split_once("://").map_or(directory, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or(host);
    let plain = |c: char| if c.is_ascii_alphanumeric() || ".-".contains(c) { c } else { '_' };
    host.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::config::document::check;
    use crate::config::yaml::parse;

    fn read(tls: &str) -> Result<Config, Vec<String>> {
        let text = format!(
            "allow_anonymous: true\nnodes: {{static: [{{url: 'http://10.0.0.1:8080'}}]}}\ntls: {tls}\n"
        );
        let files = Files::beside(Path::new("/nonexistent/gateway.yaml"));
        let checked = check(parse(&text).unwrap(), files);
        checked.map_err(|problems| problems.iter().map(ToString::to_string).collect())
    }

    fn acme(more: &str) -> Acme {
        read(&format!("{{acme: {{domains: [LLM.example.com]{more}}}}}")).unwrap().acme.unwrap()
    }

    #[test]
    fn a_domain_is_all_that_is_needed() {
        let acme = acme("");
        assert_eq!(acme.domains, ["llm.example.com"]);
        assert_eq!(acme.directory, "https://acme-v02.api.letsencrypt.org/directory");
        assert_eq!(acme.challenge, Challenge::TlsAlpn01);
        assert_eq!(acme.folder, Path::new("/nonexistent/acme/acme-v02.api.letsencrypt.org"));
        assert_eq!((acme.http_listen, acme.email, acme.roots), (None, None, None));
    }

    #[test]
    fn each_server_has_a_folder_of_its_own() {
        let staging = acme(", staging: true, state_dir: /var/lib/flotilla");
        let folder = "/var/lib/flotilla/acme-staging-v02.api.letsencrypt.org";
        assert_eq!(staging.folder, Path::new(folder));
        let own = acme(", directory: 'https://[::1]:14000/dir'");
        assert_eq!(own.folder, Path::new("/nonexistent/acme/___1__14000"));
    }

    #[test]
    fn what_cannot_work_says_why() {
        let own = "domains: [a.example.com]";
        for (tls, expected) in [
            ("{acme: {domains: []}}", "tls.acme.domains: is missing"),
            ("{acme: {email: a@b.c}}", "tls.acme.domains: is missing"),
            ("{acme: {domains: [10.0.0.7]}}", "tls.acme.domains[0]: is an address"),
            ("{acme: {domains: ['::1']}}", "tls.acme.domains[0]: is an address"),
            ("{acme: {domains: ['*.a.example']}}", "tls.acme.domains[0]: is a wildcard"),
            ("{acme: {domains: [a.b, 'a b']}}", "tls.acme.domains[1]: expected a domain"),
            ("{acme: {domains: [a..b]}}", "tls.acme.domains[0]: expected a domain"),
            (&format!("{{acme: {{{own}, email: ops}}}}"), "tls.acme.email: expected an address"),
            (
                &format!("{{acme: {{{own}, challenge: http-01}}}}"),
                "tls.acme.http_listen: http-01 needs a listener",
            ),
            (
                &format!("{{acme: {{{own}, challenge: dns-01}}}}"),
                "tls.acme.challenge: expected tls-alpn-01 or http-01",
            ),
            (
                &format!("{{acme: {{{own}, directory: 'http://a/dir'}}}}"),
                "tls.acme.directory: expected the https URL",
            ),
            (
                &format!("{{acme: {{{own}, staging: true, directory: 'https://a/dir'}}}}"),
                "tls.acme.staging: is Let's Encrypt's",
            ),
            (&format!("{{acme: {{{own}, ca_file: none.pem}}}}"), "tls.acme.ca_file: /nonexistent"),
            (
                &format!("{{cert_file: c.pem, key_file: k.pem, acme: {{{own}}}}}"),
                "tls: acme and cert_file",
            ),
            ("{cert_file: c.pem}", "tls.key_file: is missing"),
        ] {
            let found = read(tls).unwrap_err();
            assert!(found.iter().any(|p| p.starts_with(expected)), "{expected} in {found:#?}");
            assert_eq!(found.len(), 1, "{found:#?}");
        }
    }

    #[test]
    fn urls_have_the_port_at_which_clients_reach_the_domain() {
        let at = |port| SocketAddr::from(([0, 0, 0, 0], port));
        let tls = acme("");
        assert_eq!(tls.url("llm.example.com", at(8443)), "https://llm.example.com");
        let http = acme(", challenge: http-01, http_listen: '0.0.0.0:80'");
        assert_eq!(http.url("llm.example.com", at(443)), "https://llm.example.com");
        assert_eq!(http.url("llm.example.com", at(8443)), "https://llm.example.com:8443");
        assert_eq!(http.domain_of(Some("evil.example:80")), "llm.example.com");
    }
}
