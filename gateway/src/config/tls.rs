//! TLS for the listeners and for dialing static nodes. Only this module uses rustls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inference_protocol::pin::Pin;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WantsServerCert, WebPkiClientVerifier};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore, ServerConfig};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor, TlsConnector, client, server};

pub(crate) mod live;

use live::LiveCertificate;

/// TLS server.
#[derive(Clone)]
pub struct Acceptor {
    config: Arc<ServerConfig>,
    certificate: CertificateSource,
    /// CA for client certificates, if they are requested.
    authority: Option<Authority>,
}

/// Where the certificate of a server comes from.
#[derive(Clone)]
enum CertificateSource {
    File(PathBuf),
    /// From an ACME server; replaced while the listener serves.
    Acme(Arc<LiveCertificate>),
}

/// A CA that verifies client certificates.
#[derive(Clone)]
pub struct Authority {
    verifier: Arc<dyn ClientCertVerifier>,
    certificates: Vec<CertificateDer<'static>>,
}

/// Equal if the certificates are the same.
impl PartialEq for Authority {
    fn eq(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }
}

impl Eq for Authority {}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    /// Reads the CA's certificates (PEM).
    pub fn new(file: &Path) -> Result<Self, String> {
        let certificates = certificates(file)?;
        let roots = Arc::new(roots_of(&certificates)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
        // Ordinary clients have no certificate and need none.
        let verifier = verifier.allow_unauthenticated().build().map_err(|e| e.to_string())?;
        Ok(Self { verifier, certificates })
    }
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Acceptor")
    }
}

/// TLS client with fixed roots.
#[derive(Clone)]
pub struct Dialer {
    connector: TlsConnector,
    /// Trusted certificates; empty for those of the operating system.
    trusted: Vec<CertificateDer<'static>>,
    /// Certificate chain that it presents; empty for none. A chain has only one key, so comparing
    /// chains is enough.
    shown: Vec<CertificateDer<'static>>,
}

/// Equal if roots and presented chain are the same.
impl PartialEq for Dialer {
    fn eq(&self, other: &Self) -> bool {
        (&self.trusted, &self.shown) == (&other.trusted, &other.shown)
    }
}

impl Eq for Dialer {}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dialer")
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

impl Acceptor {
    /// Reads a certificate chain and its key, both PEM. With an authority, it requests a client
    /// certificate: clients without one are accepted, clients with one from another CA are not.
    pub fn new(
        certificate: &Path,
        key: &Path,
        authority: Option<Authority>,
    ) -> Result<Self, String> {
        let (chain, key) = (certificates(certificate)?, private_key(key)?);
        let builder = server_builder(authority.as_ref())?;
        let config = builder.with_single_cert(chain, key).map_err(mismatch)?;
        let certificate = CertificateSource::File(certificate.to_path_buf());
        Ok(Self { config: with_http(config), certificate, authority })
    }

    /// Serves the certificate that an ACME server has issued last, and answers its challenges.
    /// Handshakes fail while there is no certificate.
    pub(crate) fn with_live_certificate(
        certificate: Arc<LiveCertificate>,
        authority: Option<Authority>,
    ) -> Result<Self, String> {
        let config = server_builder(authority.as_ref())?.with_cert_resolver(certificate.clone());
        let certificate = CertificateSource::Acme(certificate);
        Ok(Self { config: with_http(config), certificate, authority })
    }

    /// Serves this certificate instead of its own, if its own is from an ACME server.
    pub(crate) fn share_live_certificate(&mut self, certificate: &Arc<LiveCertificate>) {
        if let CertificateSource::Acme(own) = &mut self.certificate {
            let mut config = (*self.config).clone();
            config.cert_resolver = certificate.clone();
            self.config = Arc::new(config);
            *own = certificate.clone();
        }
    }

    /// Performs the handshake. Returns the CA that issued the client's certificate, too, if it has
    /// one. `None` if the ACME server has validated a domain: there is nothing more to serve.
    pub(crate) async fn accept<S>(
        &self,
        stream: S,
    ) -> std::io::Result<Option<(server::TlsStream<S>, Option<Authority>)>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let stream = match &self.certificate {
            CertificateSource::File(_) => {
                TlsAcceptor::from(self.config.clone()).accept(stream).await?
            }
            CertificateSource::Acme(certificate) => {
                let acceptor = rustls::server::Acceptor::default();
                let start = LazyConfigAcceptor::new(acceptor, stream).await?;
                if let Some(config) = certificate.challenge_config(&start.client_hello()) {
                    // The ACME server may hang up first: it has seen the certificate.
                    let _ = start.into_stream(config).await?.shutdown().await;
                    return Ok(None);
                }
                start.into_stream(self.config.clone()).await?
            }
        };
        // Certificates present here have been verified.
        let has_shown = stream.get_ref().1.peer_certificates().is_some_and(|all| !all.is_empty());
        let authority = self.authority.clone().filter(|_| has_shown);
        Ok(Some((stream, authority)))
    }

    /// The pin of its certificate, if nodes that trust the authorities of their operating system
    /// would refuse it for `host`. A certificate from an ACME server has none: its key changes with
    /// every renewal.
    ///
    /// # Errors
    /// The certificate has become unreadable.
    pub(crate) fn pin_for(&self, host: &str) -> Result<Option<Pin>, String> {
        let CertificateSource::File(file) = &self.certificate else { return Ok(None) };
        let chain = certificates(file)?;
        let [own, intermediates @ ..] = &chain[..] else { return Ok(None) };
        if is_trusted(own, intermediates, host) {
            return Ok(None);
        }
        let parsed = ParsedCertificate::try_from(own).map_err(|e| e.to_string())?;
        Ok(Some(Pin(Sha256::digest(parsed.subject_public_key_info()).into())))
    }

    /// File of its certificate, unless that is from an ACME server.
    pub(crate) fn certificate(&self) -> Option<&Path> {
        match &self.certificate {
            CertificateSource::File(file) => Some(file),
            CertificateSource::Acme(_) => None,
        }
    }
}

fn server_builder(
    authority: Option<&Authority>,
) -> Result<ConfigBuilder<ServerConfig, WantsServerCert>, String> {
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    Ok(match authority {
        Some(authority) => builder.with_client_cert_verifier(authority.verifier.clone()),
        None => builder.with_no_client_auth(),
    })
}

fn with_http(mut config: ServerConfig) -> Arc<ServerConfig> {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

impl Dialer {
    /// Trusts the certificates in `ca_file`, or else those of the operating system. Presents the
    /// chain in `own` (chain file, key file) to servers that request one.
    pub fn new(ca_file: Option<&Path>, own: Option<(&Path, &Path)>) -> Result<Self, String> {
        let trusted = ca_file.map(certificates).transpose()?.unwrap_or_default();
        let roots = match ca_file {
            Some(_) => roots_of(&trusted)?,
            None => roots_of_system()?,
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_root_certificates(roots);
        let (mut config, shown) = match own {
            Some((certificate, key)) => {
                let (chain, key) = (certificates(certificate)?, private_key(key)?);
                (builder.with_client_auth_cert(chain.clone(), key).map_err(mismatch)?, chain)
            }
            None => (builder.with_no_client_auth(), Vec::new()),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), trusted, shown })
    }

    /// Performs the handshake on a connected stream.
    pub async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> std::io::Result<client::TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_string()).map_err(std::io::Error::other)?;
        self.connector.connect(name, stream).await
    }
}

/// True if the operating system trusts this certificate for `host`.
fn is_trusted(own: &CertificateDer, intermediates: &[CertificateDer], host: &str) -> bool {
    let (Ok(roots), Ok(name)) = (roots_of_system(), ServerName::try_from(host)) else {
        return false;
    };
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    verifier.is_ok_and(|verifier| {
        verifier.verify_server_cert(own, intermediates, &name, &[], UnixTime::now()).is_ok()
    })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let fail = |e: &dyn std::fmt::Display| {
        format!("cannot read certificates from {}: {e}", path.display())
    };
    let all = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| fail(&e))?;
    if all.is_empty() { Err(fail(&"the file contains no certificates")) } else { Ok(all) }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path)
        .map_err(|e| format!("cannot read a private key from {}: {e}", path.display()))
}

fn mismatch(error: rustls::Error) -> String {
    format!("certificate and private key do not match: {error}")
}

fn roots_of(certificates: &[CertificateDer<'static>]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates.iter().cloned() {
        roots.add(certificate).map_err(|e| e.to_string())?;
    }
    Ok(roots)
}

/// Settings of a client that trusts these certificates, as PEM, or those of the system.
pub(super) fn client(roots: Option<&str>) -> Result<ClientConfig, String> {
    let roots = match roots {
        Some(pem) => {
            let read =
                CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
            roots_of(&read.map_err(|e| e.to_string())?)?
        }
        // Without any, connections fail that need them.
        None => roots_of_system().unwrap_or_else(|_| RootCertStore::empty()),
    };
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().map_err(|e| e.to_string())?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn roots_of_system() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match roots.is_empty() {
        true => Err("no trusted certificates: install ca-certificates or set ca_file".into()),
        false => Ok(roots),
    }
}
