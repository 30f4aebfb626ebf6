//! Static nodes: the gateway dials the nodes listed in the configuration.

use std::time::Duration;

use flotilla_listeners::socket::tune;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::link::{self, ExpectedNode};
use super::link_end::LinkEnd;
use crate::config::StaticNode;
use crate::context::Gateway;

const REDIAL_MIN: Duration = Duration::from_millis(200);
const REDIAL_MAX: Duration = Duration::from_secs(5);
/// After a link that lasted this long, the redial delay starts over.
const GOOD_AFTER: Duration = Duration::from_secs(10);

/// Keeps a node linked until it is removed from the configuration or the gateway stops.
pub(crate) async fn maintain(gateway: Gateway, node: StaticNode, retired: CancellationToken) {
    let mut wait = REDIAL_MIN;
    let mut last_why = String::new();
    while !retired.is_cancelled() {
        let begun = Instant::now();
        let end = tokio::select! {
            end = link_once(&gateway, &node, &retired) => end,
            () = wait_until_overdue(&gateway, &retired) => LinkEnd::Retired,
            () = gateway.links.cancelled() => return,
        };
        if begun.elapsed() >= GOOD_AFTER {
            wait = REDIAL_MIN;
        }
        // Log a reason only when it changes.
        let why = end.to_string();
        if why != last_why {
            tracing::warn!(url = %node.url, why, "node not linked");
            last_why = why;
        }
        tokio::select! {
            () = tokio::time::sleep(jittered(wait)) => {}
            () = retired.cancelled() => return,
            () = gateway.links.cancelled() => return,
        }
        wait = (wait * 2).min(REDIAL_MAX);
    }
}

/// Completes when a removed node has had the shutdown timeout to finish its requests.
async fn wait_until_overdue(gateway: &Gateway, retired: &CancellationToken) {
    retired.cancelled().await;
    tokio::time::sleep(gateway.settings.now().config.timeouts.shutdown).await;
}

/// Returns a random delay between half of `wait` and `wait`.
fn jittered(wait: Duration) -> Duration {
    let share = (crate::types::random::random() as u32) as f64 / f64::from(u32::MAX);
    wait.mul_f64(0.5 + 0.5 * share)
}

async fn link_once(gateway: &Gateway, node: &StaticNode, retired: &CancellationToken) -> LinkEnd {
    let connect_timeout = gateway.settings.now().config.timeouts.connect;
    let connect = TcpStream::connect((node.host.as_str(), node.port));
    let stream = match timeout(connect_timeout, connect).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return LinkEnd::Connect(error),
        Err(_) => return LinkEnd::ConnectTimeout,
    };
    tune(&stream);
    let expect = ExpectedNode {
        identity: None,
        authorization: node.authorization.clone(),
        retired: retired.clone(),
    };
    let gateway = gateway.clone();
    match &node.tls {
        None => link::run(stream, expect, gateway).await,
        Some(tls) => match timeout(connect_timeout, tls.connect(&node.host, stream)).await {
            Ok(Ok(stream)) => link::run(stream, expect, gateway).await,
            Ok(Err(error)) => LinkEnd::Tls(error),
            Err(_) => LinkEnd::TlsTimeout,
        },
    }
}
