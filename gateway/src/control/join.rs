//! Joining nodes: `POST /fleet/v1/join` becomes a link.

use std::time::Duration;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::TokioIo;
use inference_protocol::fleet::{
    EPOCH_HEADER, GATEWAY_HEADER, JOIN_UPGRADE, LINKED_HEADER, NODE_HEADER, VERSION,
    VERSION_HEADER, speaks_our_version,
};
use inference_protocol::ids::is_plain_id;
use tokio::time::timeout;

use crate::access::keys::bearer;
use crate::config::tls::Authority;
use crate::context::Gateway;
use crate::nodes::link::{self, ExpectedNode};
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// Timeout of the node's first bytes after our 101.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(5);

/// Admits a node, or counts the refusal. The link runs in its own task until it ends.
pub(crate) fn join(
    gateway: &Gateway,
    verified: Option<&Authority>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let joined = accept_node(gateway, verified, request);
    joined.inspect_err(|error| gateway.metrics.record_join_refused(error))
}

fn accept_node(
    gateway: &Gateway,
    verified: Option<&Authority>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Error> {
    let settings = gateway.settings.now();
    let key = settings.config.join_key.as_ref().ok_or(Error::UnknownPath)?;
    // The CA may have been replaced since the connection was opened.
    let authority = settings.config.node_authority.as_ref();
    if authority.is_some() && verified != authority {
        return Err(Error::JoinCertificate);
    }
    if !bearer(request.headers()).is_some_and(|sent| key.matches(sent)) {
        return Err(Error::JoinKeyWrong);
    }
    let identity = identity(&request)?;
    if is_linked(request.headers(), &gateway.id) {
        return Err(Error::JoinedAlready);
    }
    let (name, epoch) = &identity;
    if gateway.dispatcher.is_name_taken(name, *epoch) {
        tracing::warn!(node = name, "join refused: another node with this name is linked");
        return Err(Error::NodeNameTaken(name.clone()));
    }
    let upgrade = hyper::upgrade::on(&mut request);
    let expect = ExpectedNode { identity: Some(identity.clone()), ..ExpectedNode::default() };
    let (linked, stop) = (gateway.clone(), gateway.links.clone());
    gateway.tasks.spawn(async move {
        let node = identity.0;
        let upgraded = match timeout(UPGRADE_TIMEOUT, upgrade).await {
            Ok(Ok(upgraded)) => upgraded,
            _ => return tracing::warn!(node, "join not completed"),
        };
        tokio::select! {
            end = link::run(TokioIo::new(upgraded), expect, linked) => {
                tracing::warn!(node, why = %end, "node lost");
            }
            () = stop.cancelled() => {}
        }
    });
    let mut response = response::text(StatusCode::SWITCHING_PROTOCOLS, "");
    let headers = response.headers_mut();
    headers.clear();
    headers.insert(GATEWAY_HEADER, gateway.id.clone());
    headers.insert(VERSION_HEADER, HeaderValue::from(VERSION));
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static(JOIN_UPGRADE));
    Ok(response)
}

fn identity(request: &Request<Incoming>) -> Result<(String, u64), Error> {
    let headers = request.headers();
    if !text(headers, VERSION_HEADER).is_some_and(speaks_our_version) {
        return Err(Error::JoinVersion);
    }
    let invalid = |why: &str| Error::JoinInvalid(why.into());
    let asks = text(headers, header::UPGRADE.as_str());
    if request.version() != Version::HTTP_11 || asks != Some(JOIN_UPGRADE) {
        return Err(invalid("expected HTTP/1.1 with 'Upgrade: flotilla-node'"));
    }
    let name = text(headers, NODE_HEADER).filter(|n| is_plain_id(n));
    let name = name.ok_or_else(|| invalid("the node name is missing or invalid"))?;
    let epoch = text(headers, EPOCH_HEADER).and_then(|e| e.parse().ok());
    Ok((name.to_string(), epoch.ok_or_else(|| invalid("the epoch is missing"))?))
}

/// True if the node says that it already has a link to this gateway.
fn is_linked(headers: &HeaderMap, id: &HeaderValue) -> bool {
    let linked = text(headers, LINKED_HEADER).unwrap_or_default();
    linked.split(',').any(|other| other.as_bytes() == id.as_bytes())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}
