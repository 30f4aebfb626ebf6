//! The page for app developers, with the `openai` packages and two real gateways: one with plain
//! HTTP, and one with a self-signed certificate.

use std::process::Command;

use fleet_tests::process::{Agent, Fleet, Folder, run_command};
use fleet_tests::root;
use sha2::{Digest, Sha256};

use crate::blocks::{Do, blocks};
use crate::current;
use crate::pages::Page;

const PAGE: &str = "docs/app-developer.md";

/// What the page stands on.
struct Gateways {
    plain: Fleet,
    tls: Fleet,
    _agent: Agent,
    /// The folder of the certificate.
    made: Folder,
}

impl Gateways {
    /// Both have the page's key, which may send one request at a time.
    async fn start(key: &str) -> Self {
        let made = Folder::new();
        let to = made.path().display();
        let script = format!(
            "flotilla-gateway init --dir {to}/tls --listen 203.0.113.5:8443 \
             --tls-name localhost,127.0.0.1"
        );
        let ran = run_command(Page::new("app-developer.md").bash(&script));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let sha256: String =
            Sha256::digest(key.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        // In the list of the fleet's own key.
        let more = format!(
            "- {{name: app, sha256: {sha256}, concurrent_max: 1, requests_per_minute: 600}}\n\
             nodes: {{join_key_file: join.key}}\n"
        );
        let plain = Fleet::start(&more).await;
        let files =
            format!("tls: {{cert_file: {to}/tls/cert.pem, key_file: {to}/tls/cert-key.pem}}\n");
        let tls = Fleet::start(&(more + &files)).await;
        let ca = format!("{to}/tls/cert.pem");
        let agent = plain.join("a", &["--join", &tls.url, "--join-ca-file", &ca]).await;
        tls.wait_for_slots("a").await;
        Self { plain, tls, _agent: agent, made }
    }

    /// The page, where its variables and its gateway are these.
    fn page(&self, key: &str) -> Page {
        let mut page = Page::new("app-developer.md");
        let port = self.tls.url.rsplit(':').next().unwrap().parse().unwrap();
        page.ports.insert(8443, port);
        let certificate = self.made.path().join("tls/cert.pem");
        std::fs::copy(certificate, page.folder.path().join("cert.pem")).unwrap();
        let path = std::env::var("PATH").unwrap();
        let python = root().join("target/sdk/openai/bin");
        assert!(python.exists(), "{} is missing: 'make test' makes it", python.display());
        page.variables = vec![
            ("OPENAI_BASE_URL", format!("{}/v1", self.plain.url)),
            ("OPENAI_API_KEY", key.into()),
            ("PATH", format!("{}:{path}", python.display())),
        ];
        page
    }
}

/// Whether the `openai` package for Node can be used.
fn has_node() -> bool {
    let found = root().join("target/sdk/node/done").exists()
        && Command::new("node").arg("--version").output().is_ok_and(|done| done.status.success());
    if !found {
        eprintln!("skipped: the openai package for Node needs npm");
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_for_app_developers_is_followed() {
    let key = "sk-flotilla-for-the-page";
    let gateways = Gateways::start(key).await;
    let mut page = gateways.page(key);
    let node = has_node();
    if node {
        let packages = root().join("target/sdk/node/node_modules");
        std::os::unix::fs::symlink(packages, page.folder.path().join("node_modules")).unwrap();
    }
    tokio::task::block_in_place(|| {
        for mut block in blocks(&current::read(PAGE)) {
            if node && block.then == Do::Leave("needs Node.js".into()) {
                block.then = Do::Run(Some("The capital of France is Paris.".into()));
            }
            page.follow(&block);
        }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_know_the_certificate_refuses_it() {
    let key = "sk-flotilla-for-the-page";
    let gateways = Gateways::start(key).await;
    let mut page = gateways.page(key);
    page.variables[0].1 = format!("{}/v1", gateways.tls.url);
    let text = current::read(PAGE);
    for block in blocks(&text).iter().filter(|b| matches!(b.then, Do::Write(_))) {
        page.follow(block);
    }
    let mut programs = vec!["python chat.py", "curl -fsS $OPENAI_BASE_URL/models"];
    if has_node() {
        let packages = root().join("target/sdk/node/node_modules");
        std::os::unix::fs::symlink(packages, page.folder.path().join("node_modules")).unwrap();
        programs.push("node chat.mjs");
    }
    for program in programs {
        let ran = tokio::task::block_in_place(|| run_command(page.bash(program)));
        assert!(ran.code != Some(0), "{program}: {}", ran.stdout);
        let said = ran.stderr.to_lowercase();
        assert!(said.contains("certificate") || said.contains("connection error"), "{said}");
    }
}
