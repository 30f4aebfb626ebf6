//! `flotilla-gateway join-command`: how a node joins, as a command line or as environment
//! variables.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use hyper::Uri;
use inference_protocol::pin::Pin;

use crate::commands::error::CommandError;
use crate::config::{Config, files};

const KEY_BYTES_MAX: u64 = 4096;

/// How the node gets the join key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinKey {
    /// As an environment variable: the line is all that the node's machine needs, and is a secret.
    Inline,
    /// From the gateway's file, which the node's machine must have.
    File,
}

/// What a node needs to join. Contains the join key, and cannot be printed by accident.
#[allow(missing_debug_implementations, reason = "the key is a secret")]
pub struct Join {
    url: String,
    pin: Option<Pin>,
    key: KeySource,
}

enum KeySource {
    Value(String),
    File(String),
}

impl Join {
    /// How a node joins the gateway at `url`; without one, at the first domain of its automatic
    /// certificate, or at the address that the gateway listens on.
    ///
    /// # Errors
    /// Nodes cannot join, or `url` is missing and the address does not say where nodes reach it.
    pub fn new(config: &Config, url: Option<&str>, key: JoinKey) -> Result<Self, CommandError> {
        let file = config.join_key_file.as_deref();
        let file = file.ok_or_else(|| CommandError::Usage(NO_JOIN_KEY.into()))?;
        let url = match url {
            Some(url) => url.trim_end_matches('/').to_string(),
            None => match domain_url(config) {
                Some(url) => url,
                None => own_url(config.listen, config.tls.is_some())?,
            },
        };
        let pin = pin(config, &url)?;
        let key = match key {
            JoinKey::File => KeySource::File(absolute(file)),
            JoinKey::Inline => {
                let key = files::read(file, KEY_BYTES_MAX).map_err(CommandError::Usage)?;
                KeySource::Value(key.trim().into())
            }
        };
        Ok(Self { url, pin, key })
    }

    /// The command line that starts a node, for a shell.
    pub fn command(&self) -> String {
        let pin = self.pin.map(|pin| format!(" --join-pin {pin}")).unwrap_or_default();
        let url = quoted(&self.url);
        let serve = format!("flotilla-agent serve MODEL --join {url}{pin}");
        match &self.key {
            KeySource::File(file) => format!("{serve} --join-key-file {}", quoted(file)),
            KeySource::Value(key) => format!("FLOTILLA_JOIN_KEY={} {serve}", quoted(key)),
        }
    }

    /// The same as environment variables, one on each line.
    pub fn environment(&self) -> String {
        let url = format!("FLOTILLA_JOIN={}", quoted(&self.url));
        let pin = self.pin.map(|pin| format!("FLOTILLA_JOIN_PIN={pin}"));
        let key = match &self.key {
            KeySource::File(file) => format!("FLOTILLA_JOIN_KEY_FILE={}", quoted(file)),
            KeySource::Value(key) => format!("FLOTILLA_JOIN_KEY={}", quoted(key)),
        };
        [Some(url), pin, Some(key)].into_iter().flatten().collect::<Vec<_>>().join("\n")
    }
}

const NO_JOIN_KEY: &str = "nodes cannot join: the configuration sets no nodes.join_key_file";

/// URL of the first domain of the automatic certificate, if there is one.
fn domain_url(config: &Config) -> Option<String> {
    let acme = config.acme.as_ref()?;
    Some(acme.url(acme.domains.first()?, config.listen))
}

/// URL of the gateway, on its own machine unless its certificate is for a domain only.
pub fn local_url(config: &Config) -> String {
    if let Some(url) = domain_url(config) {
        return url;
    }
    let listen = config.listen;
    let host = if listen.ip().is_unspecified() { "localhost".into() } else { host(listen) };
    url_of(&host, listen.port(), config.tls.is_some())
}

/// An address as the host of a URL.
fn host(address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }
}

/// A URL of the gateway.
pub fn url_of(host: &str, port: u16, has_tls: bool) -> String {
    format!("http{}://{host}:{port}", if has_tls { "s" } else { "" })
}

/// The pin of the gateway's certificate, if nodes would not trust that anyway.
fn pin(config: &Config, url: &str) -> Result<Option<Pin>, CommandError> {
    let wrong = |_| CommandError::Usage(format!("--url {url}: expected https://host:port"));
    let parsed: Uri = url.parse().map_err(wrong)?;
    let host = parsed.host().unwrap_or_default().trim_matches(['[', ']']);
    match &config.tls {
        Some(tls) if parsed.scheme_str() == Some("https") => {
            tls.pin_for(host).map_err(CommandError::Usage)
        }
        _ => Ok(None),
    }
}

fn own_url(listen: SocketAddr, has_tls: bool) -> Result<String, CommandError> {
    if listen.ip().is_unspecified() {
        return Err(CommandError::Usage(format!(
            "the gateway listens on all addresses ({listen}): set --url to the one that nodes use, \
             such as {}",
            url_of("gateway.example.com", listen.port(), has_tls)
        )));
    }
    Ok(url_of(&host(listen), listen.port(), has_tls))
}

fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()).display().to_string()
}

/// Quotes a word for a shell, if it needs that.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell_only_where_they_must_be() {
        assert_eq!(quoted("/var/lib/flotilla/join.key"), "/var/lib/flotilla/join.key");
        assert_eq!(quoted("/my state/join.key"), "'/my state/join.key'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn an_address_that_nobody_can_dial_needs_a_url() {
        let at = |listen: &str, tls| own_url(listen.parse().unwrap(), tls);
        assert_eq!(at("127.0.0.1:8080", false).unwrap(), "http://127.0.0.1:8080");
        assert_eq!(at("[::1]:8443", true).unwrap(), "https://[::1]:8443");
        let error = at("0.0.0.0:8080", true).unwrap_err().to_string();
        assert!(error.contains("--url") && error.contains("https://"), "{error}");
    }
}
