//! The public and the admin listener: which limits apply, and how the gateway drains. The accept
//! loop is [`flotilla_listeners::accept`].

use std::net::IpAddr;
use std::sync::Arc;

use flotilla_listeners::accept::{Listener, accept_until};
use flotilla_listeners::connection::HttpServer;
use flotilla_listeners::socket::limit_unsent;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Service;
use crate::context::Gateway;
use crate::context::settings::Settings;
use crate::server::connection::Connection;
use crate::server::file_limit;
use crate::server::guards::ConnectionSettings;

/// Unsent bytes that the kernel buffers: enough to keep a network link busy, few enough to notice
/// soon that a client has stopped reading.
const UNSENT_BYTES_MAX: u32 = 256 * 1024;

/// Serves until `stop`, then waits up to the shutdown timeout for requests in flight. Requests of
/// closed connections no longer count.
pub(crate) async fn serve(service: Service, gateway: Gateway, stop: CancellationToken) {
    let mut listener = ServiceListener::new(service, gateway.clone(), stop.clone());
    file_limit::allow(listener.connections_max());
    let open = accept_until(&stop, &mut listener, &gateway.tasks).await;
    // From here on, new connections are refused.
    service.socket(&gateway.settings).close();
    let shutdown = gateway.settings.now().config.timeouts.shutdown;
    if timeout(shutdown, open.wait()).await.is_err() {
        tracing::warn!("shutdown timeout reached: requests in flight canceled");
    }
}

/// A listener with the settings in force.
struct ServiceListener {
    service: Service,
    gateway: Gateway,
    stop: CancellationToken,
    sockets: watch::Receiver<Option<Arc<TcpListener>>>,
    changes: watch::Receiver<Arc<Settings>>,
    settings: Arc<Settings>,
    shared: Arc<ConnectionSettings>,
}

impl ServiceListener {
    fn new(service: Service, gateway: Gateway, stop: CancellationToken) -> Self {
        let sockets = service.socket(&gateway.settings).changes();
        let mut changes = gateway.settings.changes();
        let settings = changes.borrow_and_update().clone();
        let shared = ConnectionSettings::new(&settings.config, &gateway.metrics, stop.clone());
        let shared = Arc::new(shared);
        Self { service, gateway, stop, sockets, changes, settings, shared }
    }

    fn apply_settings(&mut self) {
        let Self { gateway, stop, .. } = self;
        let settings = self.changes.borrow_and_update().clone();
        let shared = ConnectionSettings::new(&settings.config, &gateway.metrics, stop.clone());
        (self.settings, self.shared) = (settings, Arc::new(shared));
    }
}

impl Listener for ServiceListener {
    fn socket(&mut self) -> Option<Arc<TcpListener>> {
        self.sockets.borrow_and_update().clone()
    }

    async fn wait_for_change(&mut self) {
        tokio::select! {
            _ = self.changes.changed() => self.apply_settings(),
            _ = self.sockets.changed() => {}
        }
    }

    fn connections_max(&self) -> usize {
        self.service.connections_max(&self.settings)
    }

    fn connections_per_address_max(&self, address: IpAddr) -> Option<usize> {
        self.service.connections_per_ip_max(&self.settings, address)
    }

    fn server(&self) -> &HttpServer {
        &self.shared.server
    }

    fn serve(&self, stream: TcpStream, peer: IpAddr) -> impl Future<Output = ()> + Send + 'static {
        limit_unsent(&stream, UNSENT_BYTES_MAX);
        let Self { service, gateway, settings, shared, .. } = self;
        let connection = Connection::new(*service, gateway.clone(), shared.clone(), peer);
        let (tls, counted) = (service.tls(settings), gateway.metrics.open_connection());
        async move {
            connection.serve(stream, tls).await;
            drop(counted);
        }
    }
}
