//! Automatic certificates, from a real ACME server.

mod hook;
mod pebble;

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fleet_tests::client::Client;
use fleet_tests::eventually;
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::{Folder, Server, metric, run};
use pebble::{Pebble, free_ports};
use rustix::process::Signal;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const DOMAIN: &str = "gateway.test";
const YEAR_S: u32 = 365 * 24 * 3600;

/// A gateway with automatic certificates, which may run several times.
struct Site {
    folder: Folder,
    tls: SocketAddr,
    http: SocketAddr,
}

impl Site {
    async fn new() -> Self {
        let [tls, http] = free_ports().await;
        Self { folder: Folder::new(), tls, http }
    }

    /// Writes its configuration; `more` are keys of `tls.acme`.
    fn configure(&self, directory: &str, ca_file: &Path, node: SocketAddr, more: &str) -> PathBuf {
        let ca_file = ca_file.display();
        let text = format!(
            "listen: {}\nadmin: {{listen: '127.0.0.1:0'}}\nallow_anonymous: true\n\
             nodes: {{static: [{{url: 'http://{node}'}}]}}\n\
             tls:\n  acme: {{domains: [{DOMAIN}], directory: '{directory}', \
             ca_file: '{ca_file}', {more}}}\n",
            self.tls
        );
        self.folder.write("gateway.yaml", text)
    }

    fn start(config: &Path) -> (Server, Client) {
        let config = config.to_str().unwrap();
        assert_eq!(run("flotilla-gateway", &["check", "--config", config]).stdout, "ok\n");
        let server = Server::start("flotilla-gateway", &["run", "--config", config]);
        let admin = Client::new(server.address(), None);
        server.wait_for_line("\"listening on https");
        (server, admin)
    }

    /// Files that the gateway has written for its ACME server.
    fn files(&self) -> Vec<PathBuf> {
        let folders = std::fs::read_dir(self.folder.path().join("acme")).unwrap();
        let files = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
        files.map(|file| file.unwrap().path()).collect()
    }

    /// Connects as a client that trusts `root`; the connection, and the serial number of the
    /// gateway's certificate.
    async fn dial(&self, root: &str) -> Option<(TlsStream<TcpStream>, String)> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(self.tls).await.ok()?;
        let connector = TlsConnector::from(Arc::new(config));
        let stream = connector.connect(DOMAIN.try_into().unwrap(), stream).await.ok()?;
        let shown = stream.get_ref().1.peer_certificates().unwrap()[0].clone();
        let (_, shown) = x509_parser::parse_x509_certificate(&shown).unwrap();
        let serial = shown.raw_serial_as_string();
        Some((stream, serial))
    }

    async fn serial(&self, root: &str) -> String {
        eventually("a certificate", async || self.dial(root).await).await.1
    }
}

/// Sends a request; the response up to and including `end`.
async fn ask(stream: &mut TlsStream<TcpStream>, request: &str, end: &str) -> String {
    stream.write_all(request.as_bytes()).await.unwrap();
    read_until(stream, end).await
}

async fn read_until(stream: &mut TlsStream<TcpStream>, end: &str) -> String {
    let (mut answer, mut piece) = (String::new(), [0; 4096]);
    while !answer.contains(end) {
        let read = stream.read(&mut piece).await.unwrap();
        assert!(read > 0, "it ends after: {answer}");
        answer.push_str(std::str::from_utf8(&piece[..read]).unwrap());
    }
    answer
}

/// What the plain listener answers.
async fn plain(address: SocketAddr, path: &str) -> (u16, Option<String>) {
    let client = Client::new(address, None).with_header("host", DOMAIN);
    let answer = client.get(path).await;
    (answer.status, answer.header("location").map(String::from))
}

#[test]
fn a_domain_is_all_that_init_needs() {
    let folder = Folder::new();
    let dir = folder.path().join("new");
    let dir = dir.to_str().unwrap();
    let email = ["--acme-email", "ops@example.com"];
    let init = ["init", "--dir", dir, "--domain", "llm.example.com,www.example.com"];
    let ran = run("flotilla-gateway", &[&init[..], &email].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("API key") && !ran.stdout.contains("Certificate"), "{ran:?}");
    let config = format!("{dir}/gateway.yaml");
    let text = std::fs::read_to_string(&config).unwrap();
    for line in ["listen: '0.0.0.0:443'", "    domains: [llm.example.com, www.example.com]"] {
        assert!(text.lines().any(|l| l == line), "no '{line}' in {text}");
    }
    assert_eq!(run("flotilla-gateway", &["check", "--config", &config]).stdout, "ok\n");
    let join = run("flotilla-gateway", &["join-command", "--config", &config]).stdout;
    assert!(join.contains(" --join https://llm.example.com\n"), "{join}");
    let wrong =
        run("flotilla-gateway", &[&init[..2], &["/nonexistent", "--domain", "*.b.c"]].concat());
    assert_eq!(wrong.code, Some(64));
    assert!(wrong.stderr.contains("--domain *.b.c: is a wildcard"), "{wrong:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_challenge_gets_a_certificate_that_survives_a_restart() {
    if !pebble::is_installed() {
        return;
    }
    for challenge in ["tls-alpn-01", "http-01"] {
        let site = Site::new().await;
        let mut pebble = Pebble::start(site.http, site.tls, YEAR_S).await;
        let (node, _node) = MockNode::listen(healthy("node", 1)).await;
        let more = format!(
            "challenge: {challenge}, http_listen: '{}', email: ops@gateway.test",
            site.http
        );
        let config = site.configure(&pebble.directory, &pebble.ca_file, node, &more);
        let (server, admin) = Site::start(&config);
        server.wait_for_line("\"certificate issued\"");
        let root = pebble.root();
        let (mut stream, serial) = site.dial(&root).await.unwrap();
        let request = "GET /livez HTTP/1.1\r\nhost: gateway.test\r\n\r\n";
        let answer = ask(&mut stream, request, "ok\n").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let ok = "gateway_certificate_orders_total{outcome=\"ok\"}";
        assert_eq!(metric(&admin, ok).await, 1.0);
        let expiry = format!("gateway_certificate_expiry_timestamp_seconds{{domain=\"{DOMAIN}\"}}");
        let issued = expiry.replace("expiry", "issued");
        let lifetime = metric(&admin, &expiry).await - metric(&admin, &issued).await;
        assert!((lifetime - f64::from(YEAR_S)).abs() < 10.0, "{lifetime}");

        let files = site.files();
        assert_eq!(files.len(), 3, "{files:?}");
        for file in &files {
            let mode = std::fs::metadata(file).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file:?}");
        }
        let unknown = "/.well-known/acme-challenge/unknown";
        assert_eq!(plain(site.http, unknown).await.0, 404);
        let (status, location) = plain(site.http, "/v1/models").await;
        let port = if challenge == "http-01" { format!(":{}", site.tls.port()) } else { "".into() };
        let https = format!("https://{DOMAIN}{port}/v1/models");
        assert_eq!((status, location), (308, Some(https)));

        // Neither the ACME server nor the network is needed for a restart.
        drop(server);
        pebble.stop();
        let (server, _) = Site::start(&config);
        server.wait_for_line("\"certificate loaded\"");
        assert_eq!(site.dial(&root).await.unwrap().1, serial);
        assert!(!server.log().contains("certificate not issued"), "{}", server.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_in_the_middle_of_a_stream_and_after_a_reload() {
    if !pebble::is_installed() {
        return;
    }
    let site = Site::new().await;
    let pebble = Pebble::start(site.http, site.tls, 9).await;
    let (node, mut node_end) = MockNode::listen(healthy("node", 1)).await;
    let config = site.configure(&pebble.directory, &pebble.ca_file, node, "");
    let (server, admin) = Site::start(&config);
    let root = pebble.root();
    server.wait_for_line("\"certificate issued\"");
    eventually("the node", async || (admin.get("/readyz").await.status == 200).then_some(())).await;
    let (mut stream, first) = site.dial(&root).await.unwrap();
    let body =
        r#"{"model":"flotilla-demo","messages":[{"role":"user","content":"Hi"}],"stream":true}"#;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway.test\r\n";
    let length = body.len();
    let request =
        format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = node_end.asked().await.stream();
    answer.say("before").await;
    read_until(&mut stream, "before").await;

    // The configuration is read again, and the certificate of before stays in use.
    server.signal(Signal::HUP);
    server.wait_for_line("\"configuration loaded\"");
    let renewed = async |old: &str| {
        eventually("another certificate", async || {
            let (_, serial) = site.dial(&root).await?;
            (serial != old).then_some(serial)
        })
        .await
    };
    let second = renewed(&first).await;
    let third = renewed(&second).await;
    assert_ne!(third, first);
    answer.say("after").await;
    read_until(&mut stream, "after").await;
    answer.done().await;
    read_until(&mut stream, "[DONE]").await;
    let failed = "gateway_certificate_orders_total{outcome=\"failed\"}";
    assert_eq!(metric(&admin, failed).await, 0.0, "{}", server.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_whose_domain_is_not_validated_runs_and_says_why() {
    if !pebble::is_installed() {
        return;
    }
    let site = Site::new().await;
    let [nowhere] = free_ports().await;
    // Pebble asks where nobody listens, as if a firewall were closed.
    let pebble = Pebble::start(site.http, nowhere, YEAR_S).await;
    let (node, _node) = MockNode::listen(healthy("node", 1)).await;
    let config = site.configure(&pebble.directory, &pebble.ca_file, node, "");
    let (server, admin) = Site::start(&config);
    server.wait_for_line("\"no certificate yet");
    let line = server.wait_for_line("\"certificate not issued\"");
    assert!(line.contains("domains not validated: gateway.test: "), "{line}");
    assert!(line.contains("\"failures\":1") && line.contains("\"retry_in_s\":"), "{line}");
    let root = pebble.root();
    assert!(site.dial(&root).await.is_none(), "there is no certificate");
    assert_eq!(admin.get("/livez").await.status, 200);
    let failed = "gateway_certificate_orders_total{outcome=\"failed\"}";
    assert_eq!(metric(&admin, failed).await, 1.0);

    // A change of the settings is tried at once.
    let more = format!("challenge: http-01, http_listen: '{}'", site.http);
    site.configure(&pebble.directory, &pebble.ca_file, node, &more);
    server.signal(Signal::HUP);
    server.wait_for_line("\"certificate issued\"");
    let serial = site.serial(&root).await;

    // Another ACME server, which does not know the account, gets a new one. Until it has issued a
    // certificate, that of the first one stays.
    let other = Pebble::start(site.http, nowhere, YEAR_S).await;
    let address = |pebble: &Pebble| {
        pebble.directory.trim_start_matches("https://").trim_end_matches("/dir").to_string()
    };
    let old = site.files().into_iter().find(|file| file.ends_with("account.json")).unwrap();
    let account = std::fs::read_to_string(&old).unwrap();
    let folder = site.folder.path().join("acme").join(address(&other).replace(':', "_"));
    std::fs::create_dir(&folder).unwrap();
    let account = account.replace(&address(&pebble), &address(&other));
    std::fs::write(folder.join("account.json"), account).unwrap();
    drop(pebble);
    site.configure(&other.directory, &other.ca_file, node, &more);
    server.signal(Signal::HUP);
    server.wait_for_line("\"configuration loaded\"");
    server.wait_for_line("does not know the account any more");
    server.wait_for_line("\"certificate issued\"");
    assert_ne!(site.serial(&other.root()).await, serial);
    let not_yet = server.log().matches("no certificate yet").count();
    assert_eq!(not_yet, 2, "only before the first one: {}", server.log());
}
