//! Builds the parts of a gateway, starts its tasks, and stops them. Only `main` and the tests
//! import this.

use std::time::Duration;

use flotilla_listeners::systemd::notify_ready;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::context::Gateway;
use crate::context::settings::LiveSettings;
use crate::nodes::static_nodes;
use crate::observability::metrics::Metrics;
use crate::observability::traces::Spans;
use crate::server::Service;
use crate::server::listener::{self};
use crate::tasks::reconcile::reconcile;
use crate::tasks::{
    acme, background, batches, deletions, external_endpoints, hourly_cost, maintenance, presence,
    probes, reload, shared_settings, state_file, systemd, trace_export, usage, webhooks,
};

/// How long tasks may take to end after all requests are done or cut off.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves until `stop`, finishes the requests in flight, and joins all tasks. Reloads the
/// configuration from `source` whenever it changes. Boxed, so that all that it calls is compiled
/// once, in this crate, and not again in each one that awaits it.
///
/// # Errors
/// Two metrics have the same name.
pub fn run(
    settings: LiveSettings,
    source: reload::Source,
    stop: CancellationToken,
) -> BoxFuture<'static, prometheus::Result<()>> {
    Box::pin(serve(settings, source, stop))
}

async fn serve(
    settings: LiveSettings,
    source: reload::Source,
    stop: CancellationToken,
) -> prometheus::Result<()> {
    let metrics = Metrics::new()?;
    let (spans, queue) = Spans::new(metrics.clone());
    let gateway = Gateway::new(settings, metrics, spans, stop);
    state_file::restore(&gateway);
    gateway.restore_stored_keys().await;
    let usage_before = usage::restore(&gateway).await;
    gateway.tasks.spawn(state_file::run(gateway.clone()));
    let nodes = reconcile(gateway.clone(), |c| &c.static_nodes, static_nodes::maintain);
    gateway.tasks.spawn(nodes);
    gateway.tasks.spawn(reconcile(gateway.clone(), |c| &c.externals, external_endpoints::maintain));
    gateway.tasks.spawn(reconcile(gateway.clone(), |c| c.acme.as_slice(), acme::maintain));
    gateway.tasks.spawn(hourly_cost::run(gateway.clone()));
    gateway.tasks.spawn(maintenance::run(gateway.clone()));
    gateway.tasks.spawn(presence::run(gateway.clone()));
    gateway.tasks.spawn(probes::run(gateway.clone()));
    gateway.tasks.spawn(shared_settings::run(gateway.clone()));
    gateway.tasks.spawn(batches::run(gateway.clone()));
    gateway.tasks.spawn(background::run(gateway.clone()));
    gateway.tasks.spawn(usage::run(gateway.clone(), usage_before));
    gateway.tasks.spawn(webhooks::run(gateway.clone()));
    gateway.tasks.spawn(deletions::run(gateway.clone()));
    gateway.tasks.spawn(trace_export::run(gateway.clone(), queue));
    gateway.tasks.spawn(listener::serve(Service::Admin, gateway.clone(), gateway.links.clone()));
    gateway.tasks.spawn(listener::serve(Service::Http, gateway.clone(), gateway.stop.clone()));
    gateway.tasks.spawn(reload::run(gateway.clone(), source));
    gateway.tasks.spawn(systemd::run(gateway.clone()));
    // The listeners are bound already, so clients that connect from now on are served.
    notify_ready("serving");
    listener::serve(Service::Public, gateway.clone(), gateway.stop.clone()).await;
    gateway.links.cancel();
    gateway.tasks.close();
    // Only connections that were cut off are left; they end with the runtime.
    let _ = tokio::time::timeout(JOIN_TIMEOUT, gateway.tasks.wait()).await;
    if let Some(store) = &gateway.store {
        let is_settled = gateway.usage.is_empty() && gateway.dispatcher.has_no_reservations();
        store.close(is_settled).await;
    }
    Ok(())
}
