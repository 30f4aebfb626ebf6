//! TLS for dialing a gateway. The only file that uses rustls.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// TLS client with fixed roots.
#[derive(Clone)]
pub(crate) struct Dialer(TlsConnector);

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dialer")
    }
}

impl Dialer {
    /// Trusts the certificates in `ca_file`, or else the operating system's. Presents the
    /// certificate of `own`, a chain and its key, to gateways that ask for one.
    pub(crate) fn new(ca_file: Option<&Path>, own: Option<(&Path, &Path)>) -> Result<Self, String> {
        let roots = match ca_file {
            Some(path) => roots_from(path)?,
            None => roots_of_system()?,
        };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| format!("TLS cannot be set up: {e}"))?
            .with_root_certificates(roots);
        let mut config = match own {
            Some((certificate, key)) => builder
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(|e| format!("the client certificate and its key do not match: {e}"))?,
            None => builder.with_no_client_auth(),
        };
        // A link starts as an HTTP/1.1 upgrade.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Performs the handshake on a connected stream.
    pub(crate) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_string())
            .map_err(std::io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

fn roots_from(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| unreadable(path, &e))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| unreadable(path, &e))?;
    if all.is_empty() { Err(unreadable(path, &"it contains none")) } else { Ok(all) }
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> String {
    format!("cannot read certificates from {}: {why}", path.display())
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path)
        .map_err(|e| format!("cannot read a private key from {}: {e}", path.display()))
}

fn roots_of_system() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err("no trusted certificates on this system: install ca-certificates, or set \
                    --join-ca-file"
            .into());
    }
    Ok(roots)
}
