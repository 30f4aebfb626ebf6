//! One client connection of the gateway: TLS, request ids, and routing of its requests.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use flotilla_listeners::connection::HttpConnection;
use flotilla_listeners::hangup::{ClientSocket, serve_until_hangup};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::config::tls::{Acceptor, Authority};
use crate::context::Gateway;
use crate::control::admin;
use crate::server::Service;
use crate::server::guards::panics::confine;
use crate::server::guards::{CloseReason, ConnectionSettings};
use crate::server::{plain_http, routes};
use crate::types::request_context::RequestContext;
use crate::types::response::Body;

/// Timeout of the TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A client connection.
pub struct Connection {
    service: Service,
    gateway: Gateway,
    settings: Arc<ConnectionSettings>,
    peer: IpAddr,
    /// The CA that issued the peer's verified certificate, if it has one.
    authority: OnceLock<Authority>,
    http: HttpConnection,
}

impl Connection {
    /// Wraps an accepted connection.
    pub fn new(
        service: Service,
        gateway: Gateway,
        settings: Arc<ConnectionSettings>,
        peer: IpAddr,
    ) -> Arc<Self> {
        let http = settings.server.open_connection();
        Arc::new(Self { service, gateway, settings, peer, authority: OnceLock::new(), http })
    }

    /// Serves the connection, with TLS if configured, until it ends or the client hangs up.
    pub(crate) async fn serve(self: Arc<Self>, stream: TcpStream, tls: Option<Acceptor>) {
        serve_until_hangup(stream, |stream| self.accept_tls(stream, tls)).await;
    }

    /// Boxed, so that a connection uses memory for its current state only, not for the largest
    /// possible one.
    async fn accept_tls(self: Arc<Self>, stream: ClientSocket, tls: Option<Acceptor>) {
        match tls {
            None => Box::pin(self.serve_http(stream)).await,
            Some(tls) => match Box::pin(timeout(HANDSHAKE_TIMEOUT, tls.accept(stream))).await {
                Ok(Ok(Some((stream, authority)))) => {
                    authority.into_iter().for_each(|authority| drop(self.authority.set(authority)));
                    Box::pin(self.serve_http(stream)).await;
                }
                Ok(Ok(None)) => tracing::info!("ACME challenge answered"),
                failed => {
                    self.http.record_close(CloseReason::Handshake);
                    let error = failed.map(Result::err);
                    tracing::debug!(?error, "TLS handshake failed");
                }
            },
        }
    }

    /// Serves HTTP over `stream`, with or without TLS, until it ends.
    pub async fn serve_http<S>(self: Arc<Self>, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let handler = |request: Request<Incoming>| {
            let client = self.client(request.headers());
            let context = RequestContext::open(client, request.headers());
            confine(context.clone(), self.clone().respond(context, request))
        };
        // A broken connection affects only its client.
        if let Err(error) = self.http.serve(stream, handler).await {
            tracing::debug!(%error, "connection ended");
        }
    }

    /// The client that sent these headers, possibly through a trusted proxy.
    fn client(&self, headers: &HeaderMap) -> IpAddr {
        match self.service {
            Service::Admin | Service::Http => self.peer,
            Service::Public => self.settings.proxies.client(self.peer, headers),
        }
    }

    async fn respond(
        self: Arc<Self>,
        context: Arc<RequestContext>,
        request: Request<Incoming>,
    ) -> Response<Body> {
        match self.service {
            Service::Public => {}
            Service::Admin => return admin::serve(&self.gateway, context, request).await,
            Service::Http => {
                let settings = self.gateway.settings.now();
                return plain_http::serve(&settings.config, &request);
            }
        }
        let cors = self.settings.cors.headers_for(&request);
        let mut response = match cors.preflight(&request) {
            Some(response) => response,
            None => {
                let (gateway, authority) = (self.gateway.clone(), self.authority.get());
                routes::serve(gateway, authority, context, request).await
            }
        };
        cors.add_to(response.headers_mut());
        response
    }
}
