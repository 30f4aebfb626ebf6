//! TLS for dialing a gateway. The only file that uses rustls.

use std::path::Path;
use std::sync::Arc;

use inference_protocol::pin::Pin;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Which gateways are trusted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Trust<'a> {
    /// Those with a certificate from an authority of the operating system.
    System,
    /// Those with a certificate from an authority in this file.
    Authorities(&'a Path),
    /// Those with one of these public keys, whatever else their certificate says.
    Pins(&'a [Pin]),
}

/// The TLS settings of a client that presents the certificate of `own`, a chain and its key.
pub(crate) fn client_config(
    trust: Trust,
    own: Option<(&Path, &Path)>,
) -> Result<ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|e| format!("TLS cannot be set up: {e}"))?;
    let builder = match trust {
        Trust::System => builder.with_root_certificates(roots_of_system()?),
        Trust::Authorities(file) => builder.with_root_certificates(roots_from(file)?),
        Trust::Pins(pins) => {
            let verifier = PinVerifier { pins: pins.to_vec(), provider };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    let mut config = match own {
        Some((certificate, key)) => builder
            .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
            .map_err(|e| format!("the client certificate and its key do not match: {e}"))?,
        None => builder.with_no_client_auth(),
    };
    // A link starts as an HTTP/1.1 upgrade.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Accepts a certificate if its public key has one of the pins. Checks neither name, dates nor
/// issuer: only the gateway has the private key.
#[derive(Debug)]
struct PinVerifier {
    pins: Vec<Pin>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let key = ParsedCertificate::try_from(end_entity)?.subject_public_key_info();
        let pin = Pin(Sha256::digest(&key).into());
        if self.pins.contains(&pin) {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::General(format!(
            "the gateway's certificate has the pin {pin}, not that of --join-pin"
        )))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// TLS client with fixed roots or pins.
#[derive(Clone)]
pub(crate) struct Dialer(TlsConnector);

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Dialer")
    }
}

impl Dialer {
    /// Presents the certificate of `own`, a chain and its key, to gateways that ask for one.
    pub(crate) fn new(trust: Trust, own: Option<(&Path, &Path)>) -> Result<Self, String> {
        Ok(Self(TlsConnector::from(Arc::new(client_config(trust, own)?))))
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
