//! Reports the fleet's status to systemd and signals its watchdog.

use flotilla_listeners::systemd::{self, Heartbeat};

use crate::context::Gateway;
use crate::scheduler::fleet::Totals;

/// Reports the fleet's status and feeds the watchdog until all requests are done.
pub(crate) async fn run(gateway: Gateway) {
    if !systemd::is_present() {
        return;
    }
    let mut heartbeat = Heartbeat::start();
    let mut reported = String::new();
    loop {
        tokio::select! {
            () = heartbeat.wait() => {}
            () = gateway.links.cancelled() => return,
        }
        // Takes the lock that every request needs: if that hangs, the gateway is dead and the
        // watchdog must fire.
        let status = status(gateway.dispatcher.summary());
        heartbeat.signal_watchdog();
        if status != reported && !gateway.stop.is_cancelled() {
            systemd::notify_status(&status);
            reported = status;
        }
    }
}

fn status((totals, waiting): (Totals, usize)) -> String {
    format!(
        "{} of {} nodes ready, {} of {} slots busy, {} requests wait",
        totals.ready, totals.nodes, totals.busy, totals.slots, waiting
    )
}
