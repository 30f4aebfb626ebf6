//! TLS for the public listener and for dialling static nodes. The only file that names rustls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// Accepts TLS with a fixed certificate.
#[derive(Clone)]
pub struct Acceptor {
    acceptor: TlsAcceptor,
    certificate: PathBuf,
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor")
    }
}

/// Dials TLS with fixed roots.
#[derive(Clone)]
pub struct Dialler {
    connector: TlsConnector,
    /// What it was given to trust; empty: the operating system's.
    trusted: Vec<CertificateDer<'static>>,
}

/// Those that trust the same.
impl PartialEq for Dialler {
    fn eq(&self, other: &Self) -> bool {
        self.trusted == other.trusted
    }
}

impl Eq for Dialler {}

impl std::fmt::Debug for Dialler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dialler")
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

impl Acceptor {
    /// Reads a certificate chain and its key, both PEM.
    pub fn new(certificate: &Path, key: &Path) -> Result<Self, String> {
        let chain = certificates(certificate)?;
        let key = PrivateKeyDer::from_pem_file(key)
            .map_err(|e| format!("cannot read a private key from {}: {e}", key.display()))?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|e| format!("certificate and key do not fit: {e}"))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Ok(Self { acceptor, certificate: certificate.to_path_buf() })
    }

    /// The handshake on an accepted stream.
    pub async fn accept(&self, stream: TcpStream) -> std::io::Result<server::TlsStream<TcpStream>> {
        self.acceptor.accept(stream).await
    }

    /// The file that its certificate is from.
    pub fn certificate(&self) -> &Path {
        &self.certificate
    }
}

impl Dialler {
    /// Trusts the certificates in `ca_file`, or else the operating system's.
    pub fn new(ca_file: Option<&Path>) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        let trusted = ca_file.map(certificates).transpose()?.unwrap_or_default();
        match ca_file {
            Some(_) => {
                for certificate in trusted.iter().cloned() {
                    roots.add(certificate).map_err(|e| e.to_string())?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if roots.is_empty() {
            return Err("no trusted certificates: install ca-certificates or set ca_file".into());
        }
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), trusted })
    }

    /// The handshake on a connected stream.
    pub async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> std::io::Result<client::TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_string()).map_err(std::io::Error::other)?;
        self.connector.connect(name, stream).await
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let fail = |e: &dyn std::fmt::Display| {
        format!("cannot read certificates from {}: {e}", path.display())
    };
    let all = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| fail(&e))?;
    if all.is_empty() { Err(fail(&"there are none")) } else { Ok(all) }
}
