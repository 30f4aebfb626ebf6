//! A real Prometheus, and promtool.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use fleet_tests::client::Client;
use fleet_tests::process::{Folder, Server};
use serde_json::Value;

use super::{read, tool};

/// A Prometheus with the repository's rules, that scrapes and evaluates every second.
pub struct Prometheus {
    client: Client,
    _server: Server,
    _folder: Folder,
}

impl Prometheus {
    /// Starts it with the repository's configuration; only its intervals and its targets are
    /// others. `None`: there is none here.
    pub fn start(gateway: SocketAddr, agents: &[SocketAddr]) -> Option<Self> {
        let program = tool("prometheus")?;
        let folder = Folder::new();
        for name in ["rules.yml", "alerts.yml"] {
            folder.write(name, read(&format!("configs/prometheus/{name}")));
        }
        let list: Vec<String> = agents.iter().map(|agent| format!("'{agent}'")).collect();
        let config = read("configs/prometheus/prometheus.yml")
            .replace("15s", "1s")
            .replace("'127.0.0.1:8081'", &format!("'{gateway}'"))
            .replace("'127.0.0.1:8080'", &list.join(", "));
        let config = folder.write("prometheus.yml", config);
        let mut command = Command::new(program);
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0");
        let server = Server::spawn(command);
        let line = server.wait_for_line("msg=\"Listening on\"");
        let address = line.rsplit_once("address=").unwrap().1.trim().parse().unwrap();
        server.wait_for_line("Server is ready to receive web requests");
        Some(Self { client: Client::new(address, None), _server: server, _folder: folder })
    }

    /// Numbers that an expression has now.
    pub async fn ask(&self, expression: &str) -> Result<Vec<f64>, String> {
        let path = format!("/api/v1/query?query={}", escaped(expression));
        let answer = self.client.get(&path).await.json();
        if answer["status"] != "success" {
            return Err(answer["error"].to_string());
        }
        let result = &answer["data"]["result"];
        let value = |sample: &Value| sample["value"][1].as_str().unwrap().parse().unwrap();
        Ok(match answer["data"]["resultType"].as_str() {
            Some("vector") => result.as_array().unwrap().iter().map(value).collect(),
            _ => vec![result[1].as_str().unwrap().parse().unwrap()],
        })
    }

    /// Rules that could not be evaluated.
    pub async fn broken_rules(&self) -> Vec<String> {
        let answer = self.client.get("/api/v1/rules").await.json();
        let groups = answer["data"]["groups"].as_array().unwrap().clone();
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
        let broken = rules.filter(|rule| rule["health"] == "err");
        broken.map(|rule| format!("{}: {}", rule["name"], rule["lastError"])).collect()
    }
}

fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// What promtool says of a text; `None`: there is none here.
pub fn promtool(arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let mut command = Command::new(tool("promtool")?);
    command.args(arguments).current_dir(fleet_tests::root());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8(said).unwrap()))
}

/// Metrics are as promtool wants them.
pub fn is_clean(metrics: &str) {
    let Some((ok, said)) = promtool(&["check", "metrics"], metrics) else { return };
    assert!(ok && said.is_empty(), "{said}");
}
