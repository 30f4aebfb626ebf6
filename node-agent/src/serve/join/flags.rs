//! The flags for joining gateways, and for the node's credentials.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::FalseyValueParser;
use hyper::Uri;
use hyper::header::HeaderValue;
use inference_protocol::pin::Pin;

use crate::serve::join::Gateway;
use crate::serve::join::tls::{Dialer, Trust};
use crate::types::key_file::{JOIN_KEY_VARIABLE, SecretKey, read_key};

/// Which gateways are joined.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Gateways to join")]
pub(crate) struct JoinFlags {
    /// Gateway to join, http(s)://host:port; comma-separated, or repeated [default: none]
    #[arg(long, env = "FLOTILLA_JOIN", value_delimiter = ',', value_name = "URL")]
    pub join: Vec<Uri>,
    /// File with the gateway's join key; this or the key itself is required with --join
    /// [default: none]
    #[arg(long, env = "FLOTILLA_JOIN_KEY_FILE", value_name = "FILE")]
    pub join_key_file: Option<PathBuf>,
    /// The gateway's join key; goes before the file. Set the variable instead of the flag: every
    /// user of the machine can read command lines [default: none]
    #[arg(long, env = JOIN_KEY_VARIABLE, hide_env_values = true, value_name = "KEY")]
    pub join_key: Option<SecretKey>,
    /// CA certificates to trust for https gateways, in PEM format [default: the system's]
    #[arg(long, env = "FLOTILLA_JOIN_CA_FILE", value_name = "FILE")]
    pub join_ca_file: Option<PathBuf>,
    /// Public key of https gateways, as 'flotilla-gateway join-command' prints it: trust a
    /// certificate with this key instead of asking an authority; comma-separated, or repeated
    /// [default: none]
    #[arg(
        long,
        env = "FLOTILLA_JOIN_PIN",
        value_name = "sha256:HEX",
        value_delimiter = ',',
        conflicts_with = "join_ca_file"
    )]
    pub join_pin: Vec<Pin>,
    /// Join gateways at public addresses over http://. Everybody on the way can read the join key,
    /// prompts and responses
    #[arg(long, env = "FLOTILLA_INSECURE", value_parser = FalseyValueParser::new())]
    pub insecure: bool,
    /// Client certificate chain for https gateways that require one, in PEM format
    /// [default: none]
    #[arg(
        long,
        env = "FLOTILLA_JOIN_CERT_FILE",
        value_name = "FILE",
        requires = "join_cert_key_file"
    )]
    pub join_cert_file: Option<PathBuf>,
    /// Private key of the client certificate, in PEM format [default: none]
    #[arg(
        long,
        env = "FLOTILLA_JOIN_CERT_KEY_FILE",
        value_name = "FILE",
        requires = "join_cert_file"
    )]
    pub join_cert_key_file: Option<PathBuf>,
}

impl JoinFlags {
    /// The checked gateways; the error is one line for the operator.
    pub(crate) fn gateways(&self) -> Result<Vec<Gateway>, String> {
        if self.join.is_empty() {
            return Ok(Vec::new());
        }
        let key = self.key()?.ok_or("--join requires --join-key-file or FLOTILLA_JOIN_KEY")?;
        let mut authorization = HeaderValue::from_str(&format!("Bearer {key}")).map_err(|_| {
            "the join key contains characters that are not allowed in an HTTP header".to_string()
        })?;
        authorization.set_sensitive(true);
        let gateway = |url: &Uri| {
            let tls = match url.scheme_str() {
                Some("http") => None,
                Some("https") => Some(self.dialer()?),
                _ => {
                    return Err(format!(
                        "--join {url}: expected http://host:port or https://host:port"
                    ));
                }
            };
            let (url, authorization) = (url.clone(), authorization.clone());
            Ok(Gateway { url, authorization, tls, is_insecure_allowed: self.insecure })
        };
        self.join.iter().map(gateway).collect()
    }

    /// The join key, if there is one.
    pub(crate) fn key(&self) -> Result<Option<String>, String> {
        match &self.join_key {
            Some(SecretKey(key)) if !key.is_empty() => Ok(Some(key.clone())),
            _ => self.join_key_file.as_deref().map(read_key).transpose(),
        }
    }

    fn dialer(&self) -> Result<Dialer, String> {
        Dialer::new(self.trust(), self.certificate())
    }

    /// Which gateways are trusted.
    pub(crate) fn trust(&self) -> Trust<'_> {
        match &self.join_ca_file {
            Some(file) => Trust::Authorities(file),
            None if !self.join_pin.is_empty() => Trust::Pins(&self.join_pin),
            None => Trust::System,
        }
    }

    /// The node's certificate chain and its key.
    pub(crate) fn certificate(&self) -> Option<(&Path, &Path)> {
        self.join_cert_file.as_deref().zip(self.join_cert_key_file.as_deref())
    }
}
