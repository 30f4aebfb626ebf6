//! Runs one link to a node from its first status to its end.

use bytes::Bytes;
use hyper::header::HeaderValue;
use hyper::{Request, StatusCode};
use inference_protocol::fleet::{
    HAND_OVER_HEADER, NodeState, NodeStatus, STATUS_LINE_BYTES_MAX, STATUS_PATH, VERSION,
    VERSION_HEADER,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::hand_over::HandOver;
use super::link_end::{LinkEnd, StatusEnd};
use super::status;
use crate::context::Gateway;
use crate::dispatcher::Dispatcher;
use crate::scheduler::fleet::{EndpointId, STATUS_DEADLINE};
use crate::types::error::Error;
use crate::upstream::{self, NodeBody, Upstream};

/// What a node's status must match.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExpectedNode {
    /// Name and epoch sent with the join request. `None` for a static node, which must keep those
    /// of its first status.
    pub identity: Option<(String, u64)>,
    /// `Authorization` header that a static node requires.
    pub authorization: Option<HeaderValue>,
    /// Canceled when the node is removed from the configuration.
    pub retired: CancellationToken,
}

/// Runs a link over a connected stream until it ends.
pub(crate) async fn run<T>(io: T, mut expect: ExpectedNode, gateway: Gateway) -> LinkEnd
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let connecting = upstream::connect(io, expect.authorization.clone());
    let (upstream, driver) = match timeout(STATUS_DEADLINE, connecting).await {
        Ok(Ok(connected)) => connected,
        Ok(Err(error)) => return LinkEnd::Http2(error),
        Err(_) => return LinkEnd::Http2Timeout,
    };
    let upstream = if expect.identity.is_none() { upstream.configured() } else { upstream };
    let mut endpoint = Registration { gateway, id: None };
    let end = tokio::select! {
        end = follow_status(&upstream, &mut expect, &mut endpoint) => end,
        end = driver.drive() => LinkEnd::Connection(end),
        () = upstream.lost() => LinkEnd::Replaced,
    };
    upstream.close();
    end
}

/// The link's entry in the fleet; dropping it removes the entry.
struct Registration {
    gateway: Gateway,
    id: Option<EndpointId>,
}

impl Registration {
    fn dispatcher(&self) -> &Dispatcher {
        &self.gateway.dispatcher
    }

    /// Records a status of the node.
    fn record(&mut self, upstream: &Upstream, status: NodeStatus) -> Result<(), LinkEnd> {
        let (node, state) = (status.node.clone(), status.state);
        match self.id {
            Some(id) => match self.dispatcher().update_status(id, status) {
                Some(true) => tracing::info!(node, ?state, "node state changed"),
                Some(false) => {}
                None => return Err(LinkEnd::Replaced),
            },
            None => {
                self.id = self.dispatcher().add(upstream.clone(), status);
                if self.id.is_none() {
                    let error = Error::NodeNameTaken(node);
                    self.gateway.metrics.record_join_refused(&error);
                    return Err(LinkEnd::NameTaken(error));
                }
                tracing::info!(node, ?state, "node linked");
            }
        }
        Ok(())
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.dispatcher().remove(id);
        }
    }
}

async fn follow_status(
    upstream: &Upstream,
    expect: &mut ExpectedNode,
    endpoint: &mut Registration,
) -> LinkEnd {
    let hands_over = endpoint.gateway.settings.now().config.hand_over;
    let mut handing = HandOver::default();
    let mut lines = match open_status(upstream, hands_over).await {
        Ok(body) => StatusLines { body, buffer: Vec::new() },
        Err(end) => return end.into(),
    };
    let mut is_retired = false;
    loop {
        if is_retired && endpoint.id.is_none_or(|id| endpoint.dispatcher().is_idle(id)) {
            return LinkEnd::Retired;
        }
        let next = tokio::select! {
            next = timeout(STATUS_DEADLINE, lines.next()) => next,
            () = expect.retired.cancelled(), if !is_retired => {
                is_retired = true;
                endpoint.id.into_iter().for_each(|id| endpoint.dispatcher().retire(id));
                continue;
            }
            () = handing.run() => continue,
        };
        let line = match next {
            Ok(Ok(line)) => line,
            Ok(Err(end)) => return end.into(),
            Err(_) => return StatusEnd::Overdue.into(),
        };
        let status = match check(&line, expect) {
            Ok(status) => status,
            Err(end) => return end.into(),
        };
        // From now on the identity must not change.
        expect.identity.get_or_insert_with(|| (status.node.clone(), status.epoch));
        let prefixes = status.prefixes.clone().filter(|_| hands_over);
        let is_stopping = status.state == NodeState::Draining;
        if let Err(end) = endpoint.record(upstream, status) {
            return end;
        }
        if let (Some(id), Some(prefixes)) = (endpoint.id, prefixes) {
            if is_stopping || endpoint.dispatcher().is_drained(id) {
                handing.follow(&endpoint.gateway, (id, upstream), &prefixes);
            } else if !endpoint.dispatcher().is_cordoned(id) {
                handing = HandOver::default();
            }
        }
    }
}

async fn open_status(upstream: &Upstream, hands_over: bool) -> Result<NodeBody, StatusEnd> {
    let request = Request::get(format!("http://node{STATUS_PATH}")).header(VERSION_HEADER, VERSION);
    let request = if hands_over { request.header(HAND_OVER_HEADER, "1") } else { request };
    let request = request.body(Bytes::new()).map_err(|_| StatusEnd::NotSent)?;
    let sent = timeout(STATUS_DEADLINE, upstream.send(request)).await;
    let response = match sent {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => return Err(StatusEnd::NotSent),
        Err(_) => return Err(StatusEnd::Timeout),
    };
    match response.status() {
        StatusCode::OK => Ok(response.into_body()),
        StatusCode::UNAUTHORIZED => Err(StatusEnd::KeyRejected),
        status => Err(StatusEnd::Refused(status)),
    }
}

/// Checks that the status is plausible and from the same node as before.
fn check(line: &[u8], expect: &ExpectedNode) -> Result<NodeStatus, StatusEnd> {
    let status = serde_json::from_slice(line).map_err(StatusEnd::Malformed)?;
    let status = status::check(status).map_err(StatusEnd::Rejected)?;
    if let Some((name, epoch)) = &expect.identity
        && (status.node != *name || status.epoch != *epoch)
    {
        return Err(StatusEnd::OtherNode);
    }
    Ok(status)
}

/// Reads a body as lines of bounded length.
struct StatusLines {
    body: NodeBody,
    buffer: Vec<u8>,
}

impl StatusLines {
    /// The next line. Cancel-safe.
    async fn next(&mut self) -> Result<Vec<u8>, StatusEnd> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let rest = self.buffer.split_off(end + 1);
                return Ok(std::mem::replace(&mut self.buffer, rest));
            }
            if self.buffer.len() > STATUS_LINE_BYTES_MAX {
                return Err(StatusEnd::TooLong);
            }
            match self.body.data().await {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(_)) => return Err(StatusEnd::Broken),
                None => return Err(StatusEnd::Closed),
            }
        }
    }
}
