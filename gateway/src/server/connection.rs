//! One client connection, from the first byte to the last.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flotilla_listeners::connection::{Terms, speak};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::tls::{Acceptor, Authority};
use crate::context::Gateway;
use crate::context::peer::Peer;
use crate::control::admin;
use crate::server::Service;
use crate::server::guards::body::TrackedBody;
use crate::server::guards::panics::guarded;
use crate::server::guards::{CloseReason, Edge};
use crate::server::routes;
use crate::types::request_id::{REQUEST_ID, RequestId};
use crate::types::response::Body;
use flotilla_listeners::hangup::ClientSocket;
use flotilla_listeners::monitor::ConnectionMonitor;

/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A client connection.
pub struct Connection {
    service: Service,
    gateway: Gateway,
    edge: Arc<Edge>,
    peer: IpAddr,
    /// The CA that issued the peer's verified certificate, if it has one.
    authority: OnceLock<Authority>,
    monitor: Arc<ConnectionMonitor>,
}

impl Connection {
    /// Wraps an accepted connection.
    pub fn new(service: Service, gateway: Gateway, edge: Arc<Edge>, peer: IpAddr) -> Arc<Self> {
        let monitor = Arc::new(ConnectionMonitor::new(edge.counter.clone()));
        Arc::new(Self { service, gateway, edge, peer, authority: OnceLock::new(), monitor })
    }

    /// Serves the connection, with TLS if configured, until it ends or the client hangs up.
    pub async fn serve(self: Arc<Self>, stream: TcpStream, tls: Option<Acceptor>) {
        let stream = ClientSocket::new(stream);
        let watched = stream.clone();
        tokio::select! {
            biased;
            () = self.clone().converse(stream, tls) => {}
            () = watched.wait_for_hangup() => self.ended(None),
        }
    }

    /// Boxed, so that a connection uses memory for its current state only, not for the largest
    /// possible one.
    async fn converse(self: Arc<Self>, stream: ClientSocket, tls: Option<Acceptor>) {
        match tls {
            None => Box::pin(self.speak(stream)).await,
            Some(tls) => match Box::pin(timeout(HANDSHAKE_TIMEOUT, tls.accept(stream))).await {
                Ok(Ok((stream, authority))) => {
                    authority.into_iter().for_each(|authority| drop(self.authority.set(authority)));
                    Box::pin(self.speak(stream)).await;
                }
                failed => {
                    self.monitor.record_close(CloseReason::Handshake);
                    let error = failed.map(Result::err);
                    tracing::debug!(peer = %self.peer, ?error, "TLS handshake failed");
                }
            },
        }
    }

    /// Serves HTTP over `stream`, with or without TLS, until it ends.
    pub async fn speak<S>(self: Arc<Self>, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let answering = self.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let connection = answering.clone();
            let in_flight = connection.monitor.begin_request(request.version() == Version::HTTP_2);
            // Sets the request id first, so that every outcome has it.
            let id = RequestId::of(request.headers());
            request.headers_mut().insert(REQUEST_ID, id.value());
            // hyper reserves space for this future in every connection, idle or not.
            let answer = Box::pin(connection.answer(request));
            async move {
                let response = guarded(&id, answer).await;
                Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, in_flight)))
            }
        });
        let Edge { http, patience, write, stop, .. } = &*self.edge;
        let terms = Terms { http, patience: *patience, write: *write, stop };
        let ended = speak(stream, service, &self.monitor, terms).await;
        self.ended(ended.err());
    }

    /// Logs at debug level: a broken connection affects only its client.
    fn ended(&self, error: Option<Box<dyn std::error::Error + Send + Sync>>) {
        self.monitor.stop_timers();
        if let Some(error) = error {
            tracing::debug!(peer = %self.peer, %error, "connection ended");
        }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        if self.service == Service::Admin {
            return admin::serve(&self.gateway, self.peer, request).await;
        }
        let client = self.edge.proxies.client(self.peer, request.headers());
        let allowed = self.edge.cors.allows(&request);
        let mut response = match allowed.preflight(&request) {
            Some(response) => response,
            None => {
                let peer = Peer { address: client, authority: self.authority.get() };
                routes::serve(self.gateway.clone(), peer, request).await
            }
        };
        allowed.mark(response.headers_mut());
        response
    }
}
