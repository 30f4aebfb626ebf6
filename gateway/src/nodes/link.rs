//! Runs one link to a node from its first status to its end.

use bytes::Bytes;
use hyper::header::HeaderValue;
use hyper::{Request, StatusCode};
use inference_protocol::fleet::{NodeStatus, STATUS_LINE_BYTES_MAX, STATUS_PATH};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

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

/// Runs a link over a connected stream until it ends. Returns the reason.
pub(crate) async fn run<T>(io: T, mut expect: ExpectedNode, gateway: Gateway) -> String
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let connecting = upstream::connect(io, expect.authorization.clone());
    let (upstream, driver) = match timeout(STATUS_DEADLINE, connecting).await {
        Ok(Ok(connected)) => connected,
        Ok(Err(e)) => return format!("HTTP/2 failed: {e}"),
        Err(_) => return "HTTP/2 was not spoken in time".into(),
    };
    let upstream = if expect.identity.is_none() { upstream.configured() } else { upstream };
    let mut endpoint = Registration { gateway, id: None };
    let end = tokio::select! {
        end = follow_status(&upstream, &mut expect, &mut endpoint) => end,
        ended = driver.drive() => ended,
        () = upstream.lost() => "the node joined again".into(),
    };
    upstream.close();
    end
}

/// Why a link ends whose node was removed from the configuration.
pub(crate) const RETIRED: &str = "it is not in the configuration any more";

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
    fn observe(&mut self, upstream: &Upstream, status: NodeStatus) -> Result<(), String> {
        let (node, state) = (status.node.clone(), status.state);
        match self.id {
            Some(id) => match self.dispatcher().update_status(id, status) {
                Some(true) => tracing::info!(node, ?state, "node state changed"),
                Some(false) => {}
                None => return Err("the node joined again".into()),
            },
            None => {
                self.id = self.dispatcher().add(upstream.clone(), status);
                if self.id.is_none() {
                    let error = Error::NodeNameTaken(node);
                    self.gateway.metrics.record_join_refused(&error);
                    return Err(error.to_string());
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
) -> String {
    let mut lines = match open_status(upstream).await {
        Ok(body) => StatusLines { body, buffer: Vec::new() },
        Err(why) => return why,
    };
    let mut is_retired = false;
    loop {
        if is_retired && endpoint.id.is_none_or(|id| endpoint.dispatcher().is_idle(id)) {
            return RETIRED.into();
        }
        let next = tokio::select! {
            next = timeout(STATUS_DEADLINE, lines.next()) => next,
            () = expect.retired.cancelled(), if !is_retired => {
                is_retired = true;
                endpoint.id.into_iter().for_each(|id| endpoint.dispatcher().retire(id));
                continue;
            }
        };
        let line = match next {
            Ok(Ok(line)) => line,
            Ok(Err(why)) => return why,
            Err(_) => return "its status is overdue".into(),
        };
        let status = match check(&line, expect) {
            Ok(status) => status,
            Err(why) => return why,
        };
        // From now on the identity must not change.
        expect.identity.get_or_insert_with(|| (status.node.clone(), status.epoch));
        if let Err(why) = endpoint.observe(upstream, status) {
            return why;
        }
    }
}

async fn open_status(upstream: &Upstream) -> Result<NodeBody, String> {
    let request = Request::get(format!("http://node{STATUS_PATH}"));
    let request = request.body(Bytes::new()).map_err(|e| e.to_string())?;
    let sent = timeout(STATUS_DEADLINE, upstream.send(request)).await;
    let response = match sent {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => return Err("the connection broke".into()),
        Err(_) => return Err("it did not open its status".into()),
    };
    match response.status() {
        StatusCode::OK => Ok(response.into_body()),
        StatusCode::UNAUTHORIZED => Err("the node wants another key (key_file)".into()),
        status => Err(format!("its status is refused with {status}; is it a flotilla-agent?")),
    }
}

/// Checks that the status is plausible and from the same node as before.
fn check(line: &[u8], expect: &ExpectedNode) -> Result<NodeStatus, String> {
    let status = serde_json::from_slice(line);
    let status = status.map_err(|e| format!("its status cannot be read: {e}"))?;
    let status = status::check(status)?;
    if let Some((name, epoch)) = &expect.identity
        && (status.node != *name || status.epoch != *epoch)
    {
        return Err("its status names another node than before".into());
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
    async fn next(&mut self) -> Result<Vec<u8>, String> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let rest = self.buffer.split_off(end + 1);
                return Ok(std::mem::replace(&mut self.buffer, rest));
            }
            if self.buffer.len() > STATUS_LINE_BYTES_MAX {
                return Err("its status is too long".into());
            }
            match self.body.data().await {
                Some(Ok(bytes)) => self.buffer.extend_from_slice(&bytes),
                Some(Err(_)) => return Err("its status broke off".into()),
                None => return Err("its status ended".into()),
            }
        }
    }
}
