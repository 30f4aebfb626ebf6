//! The flags for joining gateways, and for the node's credentials.

use std::path::PathBuf;

use clap::Args;
use hyper::Uri;
use hyper::header::HeaderValue;

use crate::serve::join::Gateway;
use crate::serve::join::tls::Dialer;
use crate::types::key_file::read_key;

/// Which gateways are joined.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Gateways to join")]
pub(crate) struct JoinFlags {
    /// Gateway to join, http(s)://host:port; comma-separated, or repeated [default: none]
    #[arg(long, env = "FLOTILLA_JOIN", value_delimiter = ',', value_name = "URL")]
    pub join: Vec<Uri>,
    /// File with the gateway's join key; required with --join [default: none]
    #[arg(long, env = "FLOTILLA_JOIN_KEY_FILE", value_name = "FILE")]
    pub join_key_file: Option<PathBuf>,
    /// CA certificates to trust for https gateways, in PEM format [default: the system's]
    #[arg(long, env = "FLOTILLA_JOIN_CA_FILE", value_name = "FILE")]
    pub join_ca_file: Option<PathBuf>,
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
        let key_file = self.join_key_file.as_deref();
        let key = read_key(key_file.ok_or("--join requires --join-key-file")?)?;
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
            Ok(Gateway { url: url.clone(), authorization: authorization.clone(), tls })
        };
        self.join.iter().map(gateway).collect()
    }

    fn dialer(&self) -> Result<Dialer, String> {
        let certificate = self.join_cert_file.as_deref();
        Dialer::new(
            self.join_ca_file.as_deref(),
            certificate.zip(self.join_cert_key_file.as_deref()),
        )
    }
}
