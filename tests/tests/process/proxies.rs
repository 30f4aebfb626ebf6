//! The files of examples/proxies, with the real servers before a gateway: clients and nodes pass
//! through each.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use fleet_tests::process::{Agent, Fleet, Folder, JOIN_KEY};
use fleet_tests::tools::has_in;
use fleet_tests::{chat, eventually, root, streamed};

/// A proxy that ends with its handle.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a proxy needs of its test.
struct Place {
    folder: Folder,
    address: SocketAddr,
    certificate: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = Folder::new();
        let key = rcgen::KeyPair::generate().unwrap();
        let names = ["localhost".to_string(), "127.0.0.1".to_string()];
        let made = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        let certificate = folder.write("cert.pem", made.pem());
        folder.write("key.pem", key.serialize_pem());
        folder.write("cert-and-key.pem", made.pem() + &key.serialize_pem());
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Self { folder, address, certificate }
    }

    /// An example with this test's addresses and certificate, which must all occur in it.
    fn example(&self, name: &str, fleet: &Fleet, listen: (&str, &str)) -> String {
        let text = std::fs::read_to_string(root().join("examples/proxies").join(name)).unwrap();
        let gateway = fleet.client.address().to_string();
        let folder = self.folder.path().to_str().unwrap();
        let changes = [("127.0.0.1:8080", gateway.as_str()), ("/etc/ssl/flotilla", folder), listen];
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        changes.iter().fold(lines.collect::<Vec<_>>().join("\n"), |text, (from, to)| {
            assert!(text.contains(from), "{name} does not contain {from}");
            text.replace(from, to)
        }) + "\n"
    }
}

/// The path for proxies: scripts/proxies.sh unpacks those that are not installed.
fn search_path() -> String {
    let unpacked = root().join("target/proxies/usr");
    let path = std::env::var("PATH").unwrap_or_default();
    let unpacked = unpacked.display();
    format!("{path}:/usr/sbin:{unpacked}/sbin:{unpacked}/bin")
}

/// Starts a proxy by its name.
fn start(program: &str, place: &Place, arguments: &[&str]) -> Proxy {
    let libraries = format!("target/proxies/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let home = place.folder.path();
    let line = format!("exec {program} \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &line, program]).args(arguments);
    command.env("PATH", search_path()).env("LD_LIBRARY_PATH", root().join(libraries));
    command.env("HOME", home).env("XDG_DATA_HOME", home).env("XDG_CONFIG_HOME", home);
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Proxy(command.spawn().unwrap())
}

async fn gateway() -> Fleet {
    Fleet::start("trusted_proxies: [127.0.0.1]\n").await
}

/// A node joins through the proxy, and a client from another address gets its answer, streamed
/// and whole.
async fn passes_clients_and_nodes(fleet: &Fleet, place: &Place) {
    let port = place.address.port();
    let url = format!("https://localhost:{port}");
    let ca = place.certificate.to_str().unwrap();
    let curl = |path: &str, body: Option<String>| {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "60", "--interface", "127.0.0.7", "--cacert", ca]);
        curl.args(["-H", &format!("Authorization: Bearer {}", fleet.key)]);
        if let Some(body) = body {
            curl.args(["-H", "Content-Type: application/json", "-d", &body]);
        }
        let output = curl.arg(format!("{url}{path}")).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr)
    };
    eventually("the proxy to pass a request", async || {
        curl("/livez", None).eq("ok\n").then_some(())
    })
    .await;

    let key = place.folder.write("join.key", JOIN_KEY);
    let flags = ["--name", "behind", "--join", &url, "--join-ca-file", ca, "--join-key-file"];
    let agent = Agent::start(&[&flags[..], &[key.to_str().unwrap()]].concat()).await;
    fleet.wait_for_slots("behind").await;

    let question = chat("What is the capital of France?");
    let whole = curl("/v1/chat/completions", Some(question.to_string()));
    assert!(whole.contains("Paris"), "{whole}");
    let events = curl("/v1/chat/completions", Some(streamed(question).to_string()));
    assert!(events.ends_with("data: [DONE]\n\n"), "{events}");
    let line = fleet.server.wait_for_line("\"api\":\"chat_completions\"");
    assert!(line.contains("\"client\":\"127.0.0.7\""), "the proxy names the client: {line}");
    assert!(line.contains("\"node\":\"behind\""), "{line}");
    // The node leaves in good order through the proxy, too.
    agent.server.signal(rustix::process::Signal::TERM);
    let gone = async || fleet.health().await["slots"]["total"].eq(&0).then_some(());
    eventually("the node to have left", gone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_and_nodes_pass_through_nginx() {
    if !has_in(&search_path(), "nginx", "nginx") {
        return;
    }
    let (fleet, place) = (gateway().await, Place::new());
    let listen = format!("listen {} ssl", place.address);
    let example = place.example("nginx.conf", &fleet, ("listen 443 ssl", &listen));
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary = temporary.map(|kind| format!("{kind}_temp_path {kind};\n")).concat();
    let config = format!(
        "daemon off;\npid nginx.pid;\nerror_log stderr;\nevents {{}}\n\
         http {{\naccess_log off;\n{temporary}{example}}}\n"
    );
    let config = place.folder.write("nginx.conf", config);
    let folder = place.folder.path().to_str().unwrap();
    let flags = ["-e", "stderr", "-p", folder, "-c", config.to_str().unwrap()];
    let _proxy = start("nginx", &place, &flags);
    passes_clients_and_nodes(&fleet, &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_and_nodes_pass_through_haproxy() {
    if !has_in(&search_path(), "haproxy", "haproxy") {
        return;
    }
    let (fleet, place) = (gateway().await, Place::new());
    let bind = format!("bind {} ssl", place.address);
    let example = place.example("haproxy.cfg", &fleet, ("bind :443 ssl", &bind));
    let config = place.folder.write("haproxy.cfg", example);
    let _proxy = start("haproxy", &place, &["-db", "-f", config.to_str().unwrap()]);
    passes_clients_and_nodes(&fleet, &place).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_and_nodes_pass_through_caddy() {
    if !has_in(&search_path(), "caddy", "caddy") {
        return;
    }
    let (fleet, place) = (gateway().await, Place::new());
    let site = format!("https://localhost:{} {{\n\tbind 127.0.0.1", place.address.port());
    let example = place.example("Caddyfile", &fleet, ("llm.example.com {", &site));
    let config = format!("{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{example}");
    let config = place.folder.write("Caddyfile", config);
    let flags = ["run", "--adapter", "caddyfile", "--config", config.to_str().unwrap()];
    let _proxy = start("caddy", &place, &flags);
    passes_clients_and_nodes(&fleet, &place).await;
}
