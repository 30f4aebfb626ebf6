//! Dials a gateway and serves it over the connection that was dialled.
//!
//! `POST /fleet/v1/join` with an upgrade; after the 101 the roles flip: we are the HTTP/2
//! server. So a node behind NAT needs no open port. A lost link is dialled again for ever,
//! with jitter, so that a restarted gateway is not met by all nodes at once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use inference_protocol::fleet::{
    EPOCH_HEADER, JOIN_PATH, JOIN_UPGRADE, NODE_HEADER, VERSION, VERSION_HEADER,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::api::{Link, Node};
use crate::backoff::Backoff;
use crate::server;
use crate::tls::Dialler;

const REDIAL_MIN: Duration = Duration::from_millis(200);
const REDIAL_MAX: Duration = Duration::from_secs(5);
/// A link that held this long was good: the next dial is quick.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// Connecting, the handshake and the gateway's answer, each.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of a refusal that are read.
const REFUSAL_BYTES_MAX: usize = 4096;

/// Where and how to join.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// `http://host:port` or `https://host:port`.
    pub url: Uri,
    /// The join key, ready for its header.
    pub authorization: HeaderValue,
    /// Set for https.
    pub tls: Option<Dialler>,
}

/// Why a dial did not become a link.
#[derive(Debug)]
pub enum JoinError {
    /// It may work later.
    Unreachable(String),
    /// The gateway will not have us: a wrong key, another version.
    Refused(String),
}

/// Keeps a link to `gateway` until `stop`. Returns early only when the very first answer
/// of the gateway is a refusal: the operator is still watching then.
pub async fn keep_joined(
    gateway: Gateway,
    node: Arc<Node>,
    stop: CancellationToken,
    seed: u64,
) -> Result<(), String> {
    let mut backoff = Backoff::new(REDIAL_MIN, REDIAL_MAX, seed);
    let mut answered = false;
    let url = gateway.url.to_string();
    loop {
        let begun = Instant::now();
        let end = tokio::select! {
            end = link_once(&gateway, &node, &stop) => end,
            () = stop.cancelled() => return Ok(()),
        };
        match end {
            Ok(()) => {
                answered = true;
                tracing::warn!(gateway = url, "link lost");
            }
            Err(JoinError::Refused(why)) if !answered => return Err(why),
            Err(JoinError::Refused(why)) => tracing::error!(gateway = url, why, "join refused"),
            Err(JoinError::Unreachable(why)) => tracing::warn!(gateway = url, why, "not joined"),
        }
        if begun.elapsed() >= GOOD_AFTER {
            backoff.reset();
        }
        let wait = backoff.next_wait();
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// One link, from the dial to its end.
async fn link_once(
    gateway: &Gateway,
    node: &Arc<Node>,
    stop: &CancellationToken,
) -> Result<(), JoinError> {
    let host = gateway.url.host().unwrap_or_default();
    let port = gateway.url.port_u16().unwrap_or(if gateway.tls.is_some() { 443 } else { 80 });
    let connect = TcpStream::connect((host.trim_matches(['[', ']']), port));
    let stream = within("connecting", connect).await?;
    server::tune(&stream);
    match &gateway.tls {
        None => upgrade(gateway, node, stop, stream).await,
        Some(tls) => {
            let stream = within("the TLS handshake", tls.connect(host, stream)).await?;
            upgrade(gateway, node, stop, stream).await
        }
    }
}

async fn within<T, E: std::error::Error + 'static>(
    what: &str,
    attempt: impl Future<Output = Result<T, E>>,
) -> Result<T, JoinError> {
    match timeout(DIAL_TIMEOUT, attempt).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(JoinError::Unreachable(format!("{what} failed: {}", with_causes(&e)))),
        Err(_) => Err(JoinError::Unreachable(format!("{what} took too long"))),
    }
}

/// An error and what led to it: a gateway that does not believe our certificate says so below
/// whatever failed first.
fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

async fn upgrade(
    gateway: &Gateway,
    node: &Arc<Node>,
    stop: &CancellationToken,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<(), JoinError> {
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = within("the HTTP handshake", handshake).await?;
    let request = join_request(gateway, node)?;
    let exchange = async {
        // The connection is driven here, so that no task outlives the dial.
        let mut connection = std::pin::pin!(connection.with_upgrades());
        let mut response = std::pin::pin!(sender.send_request(request));
        tokio::select! {
            response = &mut response => response,
            ended = &mut connection => match ended {
                Err(e) => Err(e),
                Ok(()) => response.await,
            },
        }
    };
    let response = within("joining", exchange).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(refusal(response).await);
    }
    let upgraded = within("the upgrade", hyper::upgrade::on(response)).await?;
    tracing::info!(gateway = %gateway.url, "joined");
    serve_link(upgraded, node, stop).await;
    Ok(())
}

fn join_request(gateway: &Gateway, node: &Node) -> Result<Request<Empty<Bytes>>, JoinError> {
    let host = gateway.url.authority().map_or("", |a| a.as_str());
    Request::post(JOIN_PATH)
        .header(header::HOST, host)
        .header(header::CONNECTION, "upgrade")
        .header(header::UPGRADE, JOIN_UPGRADE)
        .header(header::AUTHORIZATION, &gateway.authorization)
        .header(NODE_HEADER, &node.name)
        .header(EPOCH_HEADER, node.epoch)
        .header(VERSION_HEADER, VERSION)
        .body(Empty::new())
        .map_err(|e| JoinError::Refused(format!("the join request cannot be made: {e}")))
}

/// What the gateway said instead of 101. Only what will not change by itself is final.
async fn refusal(response: Response<Incoming>) -> JoinError {
    let status = response.status();
    #[expect(clippy::disallowed_methods, reason = "the body is limited")]
    let read = Limited::new(response.into_body(), REFUSAL_BYTES_MAX).collect();
    let body = match timeout(DIAL_TIMEOUT, read).await {
        Ok(Ok(body)) => body.to_bytes(),
        _ => Bytes::new(),
    };
    let said = serde_json::from_slice::<serde_json::Value>(&body).ok();
    let message = said.as_ref().and_then(|v| v.pointer("/error/message")?.as_str());
    let why = format!("the gateway answered {status}: {}", message.unwrap_or("no reason given"));
    match status.as_u16() {
        400 | 401 | 403 | 404 | 405 | 426 => JoinError::Refused(why),
        _ => JoinError::Unreachable(why),
    }
}

/// We are the HTTP/2 server now. Ends with the link; at `stop`, what is in flight
/// finishes first.
async fn serve_link(
    upgraded: hyper::upgrade::Upgraded,
    node: &Arc<Node>,
    stop: &CancellationToken,
) {
    let link = Link { id: server::next_link(), trusted: true };
    let http = server::http().http2_only();
    let connection = http.serve_connection(upgraded, server::service(node.clone(), link));
    let mut connection = std::pin::pin!(connection);
    let mut stopping = false;
    loop {
        tokio::select! {
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "link ended");
                }
                return;
            }
            () = stop.cancelled(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
