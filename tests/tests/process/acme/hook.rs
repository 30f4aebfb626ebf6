//! The hook of examples/systemd, called by a real lego with certificates of a real ACME server.

use std::path::Path;
use std::process::Command;

use fleet_tests::client::Client;
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::Server;
use fleet_tests::tools::{has_in, output};
use fleet_tests::{chat, eventually, root, streamed};
use tokio::io::AsyncWriteExt;

use super::pebble::{self, Pebble, free_ports};
use super::{DOMAIN, Site, YEAR_S, read_until};

/// The path for lego: scripts/examples.sh unpacks it.
fn search_path() -> String {
    let unpacked = root().join("target/examples/usr/bin");
    format!("{}:{}", std::env::var("PATH").unwrap_or_default(), unpacked.display())
}

/// Runs lego, which calls the hook when it has a certificate.
fn lego(site: &Site, pebble: &Pebble, command: &[&str]) {
    let group = output(Command::new("id").arg("-gn"));
    let hook = root().join("examples/systemd/flotilla-certificate");
    let mut lego = Command::new("sh");
    lego.args(["-c", "exec lego \"$@\"", "lego", "--accept-tos", "--email", "ops@gateway.test"]);
    lego.args(["--server", &pebble.directory, "--domains", DOMAIN, "--path"]);
    lego.arg(site.folder.path().join("lego"));
    lego.args(["--http", "--http.port", &site.http.to_string()]).args(command).arg(hook);
    lego.env("PATH", search_path()).env("LEGO_CA_CERTIFICATES", &pebble.ca_file);
    lego.env("FLOTILLA_DOMAIN", DOMAIN).env("FLOTILLA_GROUP", group.trim());
    output(lego.env("FLOTILLA_TLS", site.folder.path().join("tls")));
}

fn hook(site: &Site, variables: &[(&str, &str)]) -> Option<i32> {
    let mut hook = Command::new(root().join("examples/systemd/flotilla-certificate"));
    hook.env("FLOTILLA_TLS", site.folder.path().join("other")).envs(variables.iter().copied());
    hook.output().unwrap().status.code()
}

fn mode(path: &Path) -> String {
    output(Command::new("stat").args(["-c", "%a"]).arg(path)).trim().into()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hook_renews_a_certificate_in_the_middle_of_a_stream() {
    if !pebble::is_installed() || !has_in(&search_path(), "lego", "lego") {
        return;
    }
    let site = Site::new().await;
    let [tls] = free_ports().await;
    let pebble = Pebble::start(site.http, tls, YEAR_S).await;
    lego(&site, &pebble, &["run", "--run-hook"]);
    let folder = site.folder.path().join("tls");
    assert_eq!(mode(&folder), "750");
    assert_eq!(mode(&folder.join("key.pem")), "640");

    let (node, mut node_end) = MockNode::listen(healthy("node", 1)).await;
    let text = format!(
        "listen: {}\nadmin: {{listen: '127.0.0.1:0'}}\nallow_anonymous: true\n\
         nodes: {{static: [{{url: 'http://{node}'}}]}}\n\
         tls: {{cert_file: tls/cert.pem, key_file: tls/key.pem}}\n",
        site.tls
    );
    let config = site.folder.write("gateway.yaml", text);
    let config = config.to_str().unwrap();
    let server = Server::start("flotilla-gateway", &["run", "--config", config]);
    let admin = Client::new(server.address(), None);
    eventually("the node", async || (admin.get("/readyz").await.status == 200).then_some(())).await;
    let authority = pebble.root();
    let (mut stream, first) = site.dial(&authority).await.unwrap();
    let body = streamed(chat("Hi")).to_string();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {DOMAIN}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let answer = node_end.asked().await.stream();
    answer.say("before").await;
    read_until(&mut stream, "before").await;

    // Half of a new pair is not taken.
    let key = std::fs::read(folder.join("key.pem")).unwrap();
    let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
    std::fs::write(folder.join("key.pem"), other).unwrap();
    server.wait_for_line("\"configuration refused; the old one stays\"");
    assert_eq!(site.serial(&authority).await, first);
    std::fs::write(folder.join("key.pem"), key).unwrap();

    lego(&site, &pebble, &["renew", "--days", "9999", "--no-random-sleep", "--renew-hook"]);
    let renewed = async || (site.dial(&authority).await?.1 != first).then_some(());
    eventually("the renewed certificate", renewed).await;
    answer.say("after").await;
    read_until(&mut stream, "after").await;
    answer.done().await;
    read_until(&mut stream, "[DONE]").await;

    // Certificates of others on this machine, and a call by mistake.
    assert_eq!(hook(&site, &[("RENEWED_LINEAGE", "/etc/letsencrypt/live/other.test")]), Some(0));
    assert_eq!(hook(&site, &[]), Some(64));
    assert!(!site.folder.path().join("other").exists());
}
