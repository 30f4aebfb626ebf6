//! The files of examples/monitoring, with a real Prometheus, a gateway whose admin listener has
//! TLS, and an agent.

use std::process::Command;

use fleet_tests::client::Client;
use fleet_tests::eventually;
use fleet_tests::process::{Fleet, Folder, Server};
use serde_json::Value;

use super::prometheus::promtool;
use super::{read, tool};

const GATEWAY: &str = "gateway.internal:8081";
const NODES: [&str; 2] = ["node-1.internal:8080", "node-2.internal:8080"];

/// The folder that the example wants, with other targets.
fn write(folder: &Folder, gateway: &str, node: &str, certificate: &str) -> String {
    for name in ["rules.yml", "alerts.yml"] {
        folder.write(name, read(&format!("configs/prometheus/{name}")));
    }
    let nodes = read("examples/monitoring/nodes.yml");
    let [first, second] = NODES;
    assert!(nodes.contains(first) && nodes.contains(second));
    let second = format!("    - {second}\n");
    folder.write("nodes.yml", nodes.replace(first, node).replace(&second, ""));
    folder.write("gateway-ca.pem", certificate);
    let text = read("examples/monitoring/prometheus.yml");
    assert!(text.contains(GATEWAY) && text.contains("scrape_interval: 15s"));
    let text = text.replace(GATEWAY, gateway).replace(": 15s", ": 1s");
    folder.write("prometheus.yml", text).to_str().unwrap().to_string()
}

async fn up(prometheus: &Client) -> Option<Vec<Value>> {
    let answer = prometheus.get("/api/v1/query?query=up%20%3D%3D%201").await.json();
    let found = answer["data"]["result"].as_array()?.clone();
    (found.len() == 2).then_some(found)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_scrapes_gateways_and_listed_nodes() {
    let Some(program) = tool("prometheus") else { return };
    let own = Folder::new();
    let key = rcgen::KeyPair::generate().unwrap();
    let made = rcgen::CertificateParams::new(["127.0.0.1".to_string()]).unwrap();
    let made = made.self_signed(&key).unwrap().pem();
    let certificate = own.write("admin.pem", &made).display().to_string();
    let key = own.write("admin-key.pem", key.serialize_pem()).display().to_string();
    let fleet = Fleet::start("").await;
    let node = fleet.join("a", &[]).await;
    // The same gateway, with TLS for operators.
    let config = fleet.folder().path().join("gateway.yaml");
    let text = std::fs::read_to_string(config).unwrap();
    let tls = format!("key_file: admin.key, tls: {{cert_file: {certificate}, key_file: {key}}}");
    let text = text.replace("key_file: admin.key", &tls);
    let config = fleet.folder().write("with-tls.yaml", text);
    let config = config.to_str().unwrap();
    let gateway = Server::start("flotilla-gateway", &["run", "--config", config]);
    let admin = gateway.address().to_string();

    let address = node.client.address().to_string();
    let config = write(&own, &admin, &address, &made);
    let (ok, said) = promtool(&["check", "config", &config], "").unwrap();
    assert!(ok, "{said}");
    let mut command = Command::new(program);
    command
        .arg(format!("--config.file={config}"))
        .arg(format!("--storage.tsdb.path={}", own.path().join("data").display()))
        .arg("--web.listen-address=127.0.0.1:0");
    let server = Server::spawn(command);
    let line = server.wait_for_line("msg=\"Listening on\"");
    let listening = line.rsplit_once("address=").unwrap().1.trim().parse().unwrap();
    server.wait_for_line("Server is ready to receive web requests");
    let prometheus = Client::new(listening, None);
    let found = eventually("both to be up", async || up(&prometheus).await).await;
    let job = |name: &str| found.iter().find(|up| up["metric"]["job"] == name).unwrap();
    assert_eq!(job("flotilla-gateway")["metric"]["instance"], Value::String(admin));
    assert_eq!(job("flotilla-agent")["metric"]["site"], "home");
}
