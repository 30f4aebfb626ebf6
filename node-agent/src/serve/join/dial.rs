//! One link: `POST /fleet/v1/join` with an upgrade; after the 101 the roles flip, and the agent is
//! the HTTP/2 server. So a node behind NAT needs no open port.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_listeners::socket::tune;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::upgrade::Upgraded;
use hyper::{Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use inference_protocol::fleet::{
    EPOCH_HEADER, GATEWAY_HEADER, JOIN_PATH, JOIN_UPGRADE, LINKED_HEADER, NODE_HEADER, VERSION,
    VERSION_HEADER,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::addresses::GatewayHost;
use super::linked::{Claim, LinkedGateways};
use crate::serve::join::tls::Dialer;
use crate::serve::listener;
use crate::serve::node::{Link, Node};
use crate::types::causes::with_causes;

/// Timeout for connecting, for the handshake, and for the gateway's response.
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes read of a refusal.
const REFUSAL_BYTES_MAX: usize = 4096;

/// Where and how to join.
#[derive(Debug, Clone)]
pub(crate) struct Gateway {
    /// `http://host:port` or `https://host:port`.
    pub url: Uri,
    /// The join key as a header value.
    pub authorization: HeaderValue,
    /// TLS settings; set for https.
    pub tls: Option<Dialer>,
    /// Public addresses may be dialed without TLS.
    pub is_insecure_allowed: bool,
}

impl Gateway {
    /// Its host, and the port of its URL or the default one.
    pub(crate) fn host(&self) -> GatewayHost {
        GatewayHost::new(&self.url, if self.tls.is_some() { 443 } else { 80 })
    }

    /// Checks that a connection to `address` is encrypted or stays in a private network.
    pub(crate) fn check_secrecy(&self, address: IpAddr) -> Result<(), String> {
        if self.tls.is_some() || self.is_insecure_allowed || is_private(address) {
            return Ok(());
        }
        Err(format!(
            "{address} is a public address, and http:// would send the join key, prompts and \
             responses there unencrypted: join https://, or set --insecure"
        ))
    }
}

/// True for addresses that the internet does not route: those of this machine, of its networks, and
/// of overlay networks.
fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            let is_shared = v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64;
            v4.is_loopback()
                || v4.is_private()
                || v4.is_link_local()
                || v4.is_unspecified()
                || is_shared
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
                || v6.is_unspecified()
        }
    }
}

/// Why a dial did not result in a link.
#[derive(Debug)]
pub(crate) enum DialError {
    /// Temporary failure.
    Unreachable(String),
    /// The gateway rejects the node: wrong key or version.
    Refused(String),
    /// The node already has a link to this gateway, by another address.
    AlreadyLinked,
    /// Another node of this name is linked to the gateway. That may end; the text is the gateway's
    /// advice.
    NameTaken(String),
}

/// An established link.
#[derive(Debug)]
pub(crate) struct DialedLink {
    upgraded: Upgraded,
    /// Keeps other tasks from dialing this gateway meanwhile.
    _claim: Claim,
}

/// Asks the gateway at `address` for a link.
pub(crate) async fn dial(
    gateway: &Gateway,
    address: SocketAddr,
    node: &Node,
    linked: &LinkedGateways,
) -> Result<DialedLink, DialError> {
    gateway.check_secrecy(address.ip()).map_err(DialError::Refused)?;
    let stream = within("connecting", TcpStream::connect(address)).await?;
    tune(&stream);
    let request = JoinRequest { gateway, node, linked };
    match &gateway.tls {
        None => request.upgrade(stream).await,
        Some(tls) => {
            let host = gateway.url.host().unwrap_or_default();
            let stream = within("the TLS handshake", tls.connect(host, stream)).await?;
            request.upgrade(stream).await
        }
    }
}

async fn within<T, E: std::error::Error + 'static>(
    what: &str,
    attempt: impl Future<Output = Result<T, E>>,
) -> Result<T, DialError> {
    match timeout(DIAL_TIMEOUT, attempt).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(e)) => Err(DialError::Unreachable(format!("{what} failed: {}", with_causes(&e)))),
        Err(_) => Err(DialError::Unreachable(format!("{what} timed out"))),
    }
}

/// The parties of a join request.
struct JoinRequest<'a> {
    gateway: &'a Gateway,
    node: &'a Node,
    linked: &'a LinkedGateways,
}

impl JoinRequest<'_> {
    async fn upgrade(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ) -> Result<DialedLink, DialError> {
        let response = exchange(stream, self.request()?).await?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refusal(response).await);
        }
        let claim = self.claim(response.headers()).ok_or(DialError::AlreadyLinked)?;
        let upgraded = within("the upgrade", hyper::upgrade::on(response)).await?;
        Ok(DialedLink { upgraded, _claim: claim })
    }

    /// A gateway that sends no id counts as the only one of its name.
    fn claim(&self, headers: &HeaderMap) -> Option<Claim> {
        let id = headers.get(GATEWAY_HEADER).and_then(|id| id.to_str().ok());
        self.linked.claim(id.unwrap_or(&self.gateway.url.to_string()))
    }

    fn request(&self) -> Result<Request<Empty<Bytes>>, DialError> {
        let Self { gateway, node, linked } = self;
        let host = gateway.url.authority().map_or("", |a| a.as_str());
        Request::post(JOIN_PATH)
            .header(header::HOST, host)
            .header(header::CONNECTION, "upgrade")
            .header(header::UPGRADE, JOIN_UPGRADE)
            .header(header::AUTHORIZATION, &gateway.authorization)
            .header(NODE_HEADER, &node.name)
            .header(EPOCH_HEADER, node.epoch)
            .header(VERSION_HEADER, VERSION)
            .header(LINKED_HEADER, linked.list())
            .body(Empty::new())
            .map_err(|e| DialError::Refused(format!("cannot create the join request: {e}")))
    }
}

/// Sends one request to a gateway and returns the response.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    request: Request<Empty<Bytes>>,
) -> Result<Response<Incoming>, DialError> {
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
    let (mut sender, connection) = within("the HTTP handshake", handshake).await?;
    let exchange = async {
        // Drives the connection here, so that no task outlives the dial.
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
    within("joining", exchange).await
}

/// Interprets a response other than 101. Only permanent errors are final.
async fn refusal(response: Response<Incoming>) -> DialError {
    let status = response.status();
    #[expect(clippy::disallowed_methods, reason = "the body is limited")]
    let read = Limited::new(response.into_body(), REFUSAL_BYTES_MAX).collect();
    let body = match timeout(DIAL_TIMEOUT, read).await {
        Ok(Ok(body)) => body.to_bytes(),
        _ => Bytes::new(),
    };
    let error_body = serde_json::from_slice::<serde_json::Value>(&body).ok();
    let message = error_body.as_ref().and_then(|v| v.pointer("/error/message")?.as_str());
    let why = format!("the gateway returned {status}: {}", message.unwrap_or("no reason given"));
    match status.as_u16() {
        409 => DialError::AlreadyLinked,
        423 => DialError::NameTaken(why),
        400 | 401 | 403 | 404 | 405 | 426 => DialError::Refused(why),
        _ => DialError::Unreachable(why),
    }
}

impl DialedLink {
    /// Serves HTTP/2 on the link until it ends; on `stop`, finishes what is in flight first.
    pub(crate) async fn serve(self, node: &Arc<Node>, stop: &CancellationToken) {
        let link = Link { id: listener::next_link(), trusted: true };
        let http = listener::http().http2_only();
        let connection =
            http.serve_connection(self.upgraded, listener::service(node.clone(), link));
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_internet_does_not_route_is_private() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.31.0.1",
            "192.168.0.1",
            "169.254.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "0.0.0.0",
            "::1",
            "fd00::1",
            "fe80::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in
            ["1.1.1.1", "100.128.0.1", "100.63.0.1", "172.32.0.1", "2001:db8::1", "::ffff:8.8.8.8"]
        {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
    }
}
