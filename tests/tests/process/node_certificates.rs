//! Who may join: certificates of nodes, beside their key.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fleet_tests::process::{Agent, Fleet, Folder, Server, metric, run};
use fleet_tests::{chat, demo_model, streamed};
use inference_protocol::fleet::JOIN_PATH;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

const HANDSHAKES_FAILED: &str = "gateway_connections_closed_total{reason=\"handshake\"}";

/// Signs certificates, and keeps the files of all of them.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    file: PathBuf,
    folder: Folder,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = Folder::new();
        let file = folder.write("ca.pem", issuer.pem());
        Self { issuer, file, folder }
    }

    /// A certificate for 127.0.0.1, and its key.
    fn signs(&self, purpose: ExtendedKeyUsagePurpose) -> Own {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["127.0.0.1".to_string()]).unwrap();
        let name = format!("{purpose:?}");
        params.extended_key_usages = vec![purpose];
        let made = params.signed_by(&key, &self.issuer).unwrap();
        Own {
            certificate: self.folder.write(&format!("{name}.pem"), made.pem()),
            key: self.folder.write(&format!("{name}.key"), key.serialize_pem()),
        }
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        Arc::new(roots)
    }
}

struct Own {
    certificate: PathBuf,
    key: PathBuf,
}

impl Own {
    fn load(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let certificate = CertificateDer::from_pem_file(&self.certificate).unwrap();
        (vec![certificate], PrivateKeyDer::from_pem_file(&self.key).unwrap())
    }

    /// How an agent joins with it.
    fn flags<'a>(&'a self, ca: &'a Path) -> Vec<&'a str> {
        let (certificate, key) = (text(&self.certificate), text(&self.key));
        let shown = ["--join-cert-file", certificate, "--join-cert-key-file", key];
        ["--join-ca-file", text(ca)].into_iter().chain(shown).collect()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A gateway that wants certificates of nodes, and the folder with the authority that it asks for,
/// `nodes-ca.pem`. Its own certificate is of the same authority.
async fn guarded(authority: &Authority) -> (Fleet, Folder) {
    let folder = Folder::new();
    let nodes = folder.write("nodes-ca.pem", authority.issuer.pem());
    let own = authority.signs(ExtendedKeyUsagePurpose::ServerAuth);
    let tls = format!("cert_file: {}, key_file: {}", text(&own.certificate), text(&own.key));
    let nodes = format!("join_key_file: join.key, client_ca_file: {}", text(&nodes));
    (Fleet::start(&format!("tls: {{{tls}}}\nnodes: {{{nodes}}}\n")).await, folder)
}

/// An agent that may not be let in.
fn dial(fleet: &Fleet, key: &str, more: &[&str]) -> Server {
    let (model, key) = (demo_model(), fleet.folder().path().join(key));
    let mut all = vec!["serve", "--model", text(&model), "--threads", "1", "--name", "other"];
    all.extend(["--join", &fleet.url, "--join-key-file", text(&key)]);
    all.extend(more);
    Server::start("flotilla-agent", &all)
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_show_a_certificate_and_clients_need_none() {
    let (ours, others) = (Authority::new("ours"), Authority::new("others"));
    let good = ours.signs(ExtendedKeyUsagePurpose::ClientAuth);
    let (fleet, _folder) = guarded(&ours).await;
    let _agent = fleet.join("good", &good.flags(&ours.file)).await;

    let body = streamed(chat("Spell cat.")).to_string();
    for version in ["--http1.1", "--http2"] {
        let said = fleet.curl(&ours.file, "/v1/chat/completions", &[version, "-d", &body]);
        assert!(said.contains("data: [DONE]"), "{version}: {said}");
    }
    let refused = fleet.curl(&ours.file, JOIN_PATH, &["-X", "POST", "-w", "%{http_code}"]);
    assert!(refused.contains("join_certificate_missing") && refused.ends_with("401"), "{refused}");

    let mut without = dial(&fleet, "join.key", &["--join-ca-file", text(&ours.file)]);
    without.wait_for_line("nodes must present a client certificate");
    assert_eq!(without.ended().await, Some(77));
    let stranger = others.signs(ExtendedKeyUsagePurpose::ClientAuth);
    // A server's certificate is no node's.
    let server = ours.signs(ExtendedKeyUsagePurpose::ServerAuth);
    for (nth, wrong) in [stranger, server].iter().enumerate() {
        dial(&fleet, "join.key", &wrong.flags(&ours.file)).wait_for_line("not joined");
        let failed = metric(&fleet.admin, HANDSHAKES_FAILED).await;
        assert!(failed > nth as f64, "its handshake was no failure");
    }
    // And the key is wanted all the same.
    fleet.folder().write("wrong.key", "not-the-join-key-at-all");
    dial(&fleet, "wrong.key", &good.flags(&ours.file)).wait_for_line("the join key is wrong");
    assert!(fleet.curl(&ours.file, "/readyz", &[]).starts_with("ready"));
}

/// Half of a certificate, and an authority that nobody could be shown to.
#[tokio::test]
async fn what_cannot_work_is_said_before_it_is_tried() {
    let ours = Authority::new("ours");
    let folder = Folder::new();
    folder.write("join.key", fleet_tests::process::JOIN_KEY);
    let nodes = format!("join_key_file: join.key, client_ca_file: {}", text(&ours.file));
    let config =
        folder.write("gateway.yaml", format!("allow_anonymous: true\nnodes: {{{nodes}}}\n"));
    let checked = run("flotilla-gateway", &["check", "--config", text(&config)]);
    assert_eq!(checked.code, Some(64));
    assert!(
        checked.stderr.contains("nodes.client_ca_file: client certificates need TLS"),
        "{checked:?}"
    );
    let half = ["serve", "--model", "x.gguf", "--join-cert-file", "x.pem"];
    let agent = run("flotilla-agent", &half);
    assert!(agent.stderr.contains("--join-cert-key-file"), "{agent:?}");
}

/// A connection of somebody with a certificate.
async fn connect(fleet: &Fleet, trusted: &Authority, own: &Own) -> TlsStream<TcpStream> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let (chain, key) = own.load();
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(trusted.roots())
        .with_client_auth_cert(chain, key)
        .unwrap();
    let stream = TcpStream::connect(fleet.client.address()).await.unwrap();
    let name = "127.0.0.1".try_into().unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

/// The error that a request without a body gets.
async fn ask(stream: &mut TlsStream<TcpStream>, line: &str) -> String {
    let request = format!("{line} HTTP/1.1\r\nhost: gateway\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut answer, mut piece) = (String::new(), [0; 4096]);
    while !answer.ends_with("}}") {
        let read = stream.read(&mut piece).await.unwrap();
        assert!(read > 0, "it ends after: {answer}");
        answer.push_str(std::str::from_utf8(&piece[..read]).unwrap());
    }
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn another_authority_takes_over_without_a_restart() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let (before, after) = (
        old.signs(ExtendedKeyUsagePurpose::ClientAuth),
        new.signs(ExtendedKeyUsagePurpose::ClientAuth),
    );
    let (fleet, folder) = guarded(&old).await;
    let _first = fleet.join("first", &before.flags(&old.file)).await;
    let mut kept = connect(&fleet, &old, &before).await;
    // It was let in as a node: what is missing is the rest of a join request.
    let wrong_key = ask(&mut kept, &format!("POST {JOIN_PATH}")).await;
    assert!(wrong_key.contains("invalid_join_key"), "{wrong_key}");

    folder.write("nodes-ca.pem", std::fs::read(&new.file).unwrap());
    fleet.server.wait_for_line("configuration loaded");
    let refused = ask(&mut kept, &format!("POST {JOIN_PATH}")).await;
    assert!(refused.contains("join_certificate_missing"), "{refused}");
    let _second = fleet.join("second", &after.flags(&old.file)).await;
    dial(&fleet, "join.key", &before.flags(&old.file)).wait_for_line("not joined");
    assert!(metric(&fleet.admin, HANDSHAKES_FAILED).await > 0.0);
    // The link that stood stays.
    fleet.wait_for_slots("first").await;
}

/// Ends TLS before a node, as a proxy on its machine would, for those with a certificate.
async fn proxy(authority: &Authority, node: std::net::SocketAddr) -> std::net::SocketAddr {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(authority.roots(), provider.clone());
    let (chain, key) = authority.signs(ExtendedKeyUsagePurpose::ServerAuth).load();
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await?;
                let mut node = TcpStream::connect(node).await?;
                tokio::io::copy_bidirectional(&mut stream, &mut node).await
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_dialled_sees_the_gateways_certificate() {
    let ours = Authority::new("ours");
    let own = ours.signs(ExtendedKeyUsagePurpose::ClientAuth);
    let agent = Agent::start(&["--name", "s"]).await;
    let url = format!("https://{}", proxy(&ours, agent.client.address()).await);
    let with = |more: &str| {
        let ca = text(&ours.file);
        format!("nodes: {{static: [{{url: '{url}', ca_file: '{ca}'{more}}}]}}\n")
    };
    let (certificate, key) = (text(&own.certificate), text(&own.key));
    let shown = format!(", cert_file: '{certificate}', client_key_file: '{key}'");
    let fleet = Fleet::start(&with(&shown)).await;
    fleet.wait_for_slots("s").await;
    let stream = fleet.client.stream(&streamed(chat("Spell cat."))).await;
    assert_eq!(stream.finish().await.text, "c-a-t");
    Fleet::start(&with("")).await.server.wait_for_line("node not linked");
}
