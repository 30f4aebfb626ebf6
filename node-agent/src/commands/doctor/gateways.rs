//! Asks gateways whether they would accept this node, without joining: the request lacks the
//! upgrade for a link, which a gateway checks only after certificate, key and version.

use std::time::Duration;

use inference_protocol::fleet::{JOIN_PATH, NODE_HEADER, VERSION, VERSION_HEADER};
use reqwest::Client;
use serde_json::Value;

use super::facts::JoinCheck;
use crate::serve::join::Gateway;
use crate::serve::join::flags::JoinFlags;
use crate::serve::join::tls::client_config;
use crate::types::causes::with_causes;

/// Timeout of asking one gateway.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes read of a response.
const BODY_BYTES_MAX: usize = 4096;
/// Error code of a gateway for an invalid join request from a node that may join.
const NOT_AN_UPGRADE: &str = "invalid_join";

/// Asks each gateway. Invalid flags count as a gateway that rejects the node.
pub(crate) async fn check_gateways(flags: &JoinFlags) -> Vec<(String, JoinCheck)> {
    let gateways = match flags.gateways() {
        Ok(gateways) => gateways,
        Err(why) => return vec![("--join".into(), JoinCheck::Refused(why))],
    };
    let mut all = Vec::new();
    for gateway in &gateways {
        let reached = match check_gateway(flags, gateway).await {
            Ok(()) => JoinCheck::Accepted,
            Err(reached) => reached,
        };
        all.push((gateway.url.to_string(), reached));
    }
    all
}

async fn check_gateway(flags: &JoinFlags, gateway: &Gateway) -> Result<(), JoinCheck> {
    for address in gateway.host().look_up().await.map_err(JoinCheck::Unreachable)? {
        gateway.check_secrecy(address.ip()).map_err(JoinCheck::Refused)?;
    }
    let url = gateway.url.to_string();
    let client = client(flags).map_err(JoinCheck::Refused)?;
    let asked = client
        .post(format!("{}{JOIN_PATH}", url.trim_end_matches('/')))
        .bearer_auth(flags.key().map_err(JoinCheck::Refused)?.unwrap_or_default())
        .header(NODE_HEADER, "doctor")
        .header(VERSION_HEADER, VERSION.to_string());
    let unreachable = |e: reqwest::Error| JoinCheck::Unreachable(with_causes(&e));
    let mut answer = asked.send().await.map_err(unreachable)?;
    let (status, mut body) = (answer.status(), Vec::new());
    while body.len() < BODY_BYTES_MAX
        && let Some(more) = answer.chunk().await.map_err(unreachable)?
    {
        body.extend_from_slice(&more);
    }
    let response_body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |part: &str| response_body.pointer(part).and_then(Value::as_str);
    if text("/error/code") == Some(NOT_AN_UPGRADE) {
        return Ok(());
    }
    let message = text("/error/message").unwrap_or("it is not a Flotilla gateway");
    let why = format!("the gateway returned {status}: {message}");
    Err(if status.is_client_error() {
        JoinCheck::Refused(why)
    } else {
        JoinCheck::Unreachable(why)
    })
}

/// An HTTP client with the agent's trust roots and client certificate.
fn client(flags: &JoinFlags) -> Result<Client, String> {
    let mut builder = Client::builder().timeout(TIMEOUT).no_proxy().http1_only();
    if flags.join.iter().any(|url| url.scheme_str() == Some("https")) {
        let tls = client_config(flags.trust(), flags.certificate())?;
        builder = builder.tls_backend_preconfigured(tls);
    }
    builder.build().map_err(|e| with_causes(&e))
}
