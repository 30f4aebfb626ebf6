//! `flotilla-gateway nodes`, `cordon`, `drain`, and `uncordon`: a client of a running gateway's
//! admin API.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use inference_protocol::ids::is_plain_id;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use crate::control::admin::{NODES_PATH, NodeList};
use crate::control::overview::{OVERVIEW_PATH, Overview};
use crate::dispatcher::views::{NodeAction, NodeView};
use crate::types::external::PREFIX;
use crate::upstream::external::innermost;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Time between two checks of a draining node.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Client of a gateway's admin API.
#[derive(Debug)]
pub struct AdminClient {
    client: reqwest::Client,
    base: String,
    key: String,
}

impl AdminClient {
    /// Connects to the gateway at `base`, such as `http://127.0.0.1:8081`. `roots` are CA
    /// certificates (PEM) to trust besides the system's.
    ///
    /// # Errors
    /// The certificates are invalid.
    pub fn new(base: &str, key: String, roots: Option<&[u8]>) -> Result<Self, String> {
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(REQUEST_TIMEOUT)
            .no_proxy();
        if let Some(pem) = roots {
            let roots = reqwest::Certificate::from_pem_bundle(pem).map_err(|e| e.to_string())?;
            builder = roots.into_iter().fold(builder, reqwest::ClientBuilder::add_root_certificate);
        }
        let client = builder.build().map_err(|e| e.to_string())?;
        Ok(Self { client, base: base.trim_end_matches('/').into(), key })
    }

    /// All nodes.
    ///
    /// # Errors
    /// The gateway does not respond, or refuses.
    pub async fn nodes(&self) -> Result<Vec<NodeView>, String> {
        self.get(NODES_PATH).await.map(|list: NodeList| list.nodes)
    }

    /// The gateway and its fleet.
    ///
    /// # Errors
    /// The gateway does not respond, or refuses.
    pub async fn overview(&self) -> Result<Overview, String> {
        self.get(OVERVIEW_PATH).await
    }

    /// Applies an action to a node and returns all nodes.
    ///
    /// # Errors
    /// The gateway does not respond, or refuses.
    pub async fn apply_action(
        &self,
        node: &str,
        action: NodeAction,
    ) -> Result<Vec<NodeView>, String> {
        // Other characters would change the path.
        if !is_plain_id(node.strip_prefix(PREFIX).unwrap_or(node)) {
            return Err(format!("invalid node name '{node}'"));
        }
        let path = format!("{NODES_PATH}/{node}/{}", action.name());
        self.post(&path).await.map(|list: NodeList| list.nodes)
    }

    /// Drains a node and waits until this gateway has no requests on it.
    ///
    /// # Errors
    /// The gateway does not respond or refuses, or requests are left after `within`.
    pub async fn drain(&self, node: &str, within: Duration) -> Result<(), String> {
        let begun = Instant::now();
        let mut nodes = self.apply_action(node, NodeAction::Drain).await?;
        loop {
            // A node that is gone has no requests left.
            let left = nodes.iter().find(|n| n.name == node).map_or(0, |n| n.leased);
            if left == 0 {
                return Ok(());
            }
            if begun.elapsed() >= within {
                return Err(format!(
                    "timeout: '{node}' still runs {left} requests; it stays cordoned"
                ));
            }
            sleep(POLL_INTERVAL).await;
            nodes = self.nodes().await?;
        }
    }

    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        self.send(self.client.get(format!("{}{path}", self.base))).await
    }

    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str) -> Result<T, String> {
        self.send(self.client.post(format!("{}{path}", self.base))).await
    }

    /// Sends a text.
    pub(super) async fn send_text<T: DeserializeOwned>(
        &self,
        method: reqwest::Method,
        path: &str,
        text: String,
    ) -> Result<T, String> {
        self.send(self.client.request(method, format!("{}{path}", self.base)).body(text)).await
    }

    /// The text at a path.
    pub(super) async fn text(&self, path: &str) -> Result<String, String> {
        let body = self.body(self.client.get(format!("{}{path}", self.base))).await?;
        String::from_utf8(body).map_err(|_| "unexpected response: no UTF-8".into())
    }

    async fn send<T: DeserializeOwned>(
        &self,
        request: reqwest::RequestBuilder,
    ) -> Result<T, String> {
        let body = self.body(request).await?;
        serde_json::from_slice(&body).map_err(|e| format!("unexpected response: {e}"))
    }

    async fn body(&self, request: reqwest::RequestBuilder) -> Result<Vec<u8>, String> {
        let response = request.bearer_auth(&self.key).send().await;
        let response = response
            .map_err(|e| format!("cannot reach the gateway at {}: {}", self.base, innermost(&e)))?;
        let status = response.status();
        let body = response.bytes().await.map_err(|e| innermost(&e))?;
        if status.is_success() {
            return Ok(body.into());
        }
        let error: Option<inference_protocol::openai::ErrorBody> =
            serde_json::from_slice(&body).ok();
        Err(error.map_or_else(
            || format!("the gateway returned status {status}"),
            |body| body.error.message,
        ))
    }
}

/// URL of a listener as seen from this machine.
pub fn url(listen: SocketAddr, is_tls: bool) -> String {
    let ip = match listen.ip() {
        ip if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        ip => ip,
    };
    let scheme = if is_tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(ip, listen.port()))
}

/// Formats the nodes as a table.
pub fn table(nodes: &[NodeView]) -> String {
    let rows = nodes.iter().map(|node| {
        vec![
            node.name.clone(),
            state(node),
            format!("{}/{}", node.busy, node.slots),
            node.models.join(","),
            rate(node.prefill_tokens_per_second),
            rate(node.decode_tokens_per_second),
            node.engine_restarts.to_string(),
            span(node.linked_seconds),
        ]
    });
    let head = [
        "NAME",
        "STATE",
        "BUSY/SLOTS",
        "MODELS",
        "PREFILL T/S",
        "DECODE T/S",
        "RESTARTS",
        "LINKED",
    ];
    columns(&head, rows.collect())
}

pub(super) fn state(node: &NodeView) -> String {
    let mut state = node.state.clone();
    state += if node.cordoned { ",cordoned" } else { "" };
    state += if node.ejected { ",ejected" } else { "" };
    state
}

pub(super) fn rate(rate: Option<f32>) -> String {
    rate.map_or("-".into(), |rate| format!("{rate:.1}"))
}

pub(super) fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Formats rows below a head, each column as wide as needed.
pub fn columns(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(ToString::to_string).collect();
    let all: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width = |i: usize| all.iter().filter_map(|row| row.get(i)).map(String::len).max();
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate();
        let cells = cells.map(|(i, cell)| format!("{cell:w$}", w = width(i).unwrap_or(0)));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
    };
    all.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_listed_in_columns() {
        let node = NodeView {
            name: "a-long-name".into(),
            state: "ready".into(),
            cordoned: true,
            ejected: false,
            slots: 4,
            busy: 1,
            leased: 1,
            models: vec!["m".into()],
            engine_restarts: 0,
            prefill_tokens_per_second: Some(120.04),
            decode_tokens_per_second: None,
            linked_seconds: 7300,
            address: "joined".into(),
            vitals: None,
        };
        let table = table(&[node]);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].starts_with("NAME         STATE           BUSY/SLOTS"), "{table}");
        assert!(lines[1].starts_with("a-long-name  ready,cordoned  1/4"), "{table}");
        assert!(lines[1].ends_with("120.0        -           0         2h"), "{table}");
    }

    #[test]
    fn a_listener_on_all_addresses_is_reached_on_this_one() {
        let urls = ["0.0.0.0:1", "[::]:2", "10.0.0.1:3"];
        let urls = urls.map(|address| url(address.parse().unwrap(), false));
        assert_eq!(urls, ["http://127.0.0.1:1", "http://127.0.0.1:2", "http://10.0.0.1:3"]);
    }
}
