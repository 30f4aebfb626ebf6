//! Keeps a link to every gateway of a name, and follows the name's addresses: the replicas of a
//! gateway share one name. A separate task dials each address, forever and with jitter, so that all
//! nodes do not hit a restarted gateway at once.
//!
//! An established link stays open, whatever happens to its address: a gateway that leaves finishes
//! first.

mod addresses;
mod dial;
pub(crate) mod flags;
mod linked;
pub(crate) mod tls;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::serve::node::Node;
use crate::types::backoff::Backoff;
use addresses::LOOKUP_INTERVAL;
pub(crate) use dial::Gateway;
use dial::{DialError, DialedLink, dial};
pub(crate) use linked::LinkedGateways;

const REDIAL_MIN: Duration = Duration::from_millis(200);
const REDIAL_MAX: Duration = Duration::from_secs(5);
/// A link that lasted this long was good: the next dial is quick.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// How long an address counts as one of a gateway that already has a link.
const SAME_FOR: Duration = Duration::from_secs(30);

/// What the links of a node share.
#[derive(Debug, Clone)]
pub(crate) struct JoinContext {
    pub node: Arc<Node>,
    /// The gateways that the node is linked to.
    pub linked: LinkedGateways,
    /// Canceled when the node leaves.
    pub stop: CancellationToken,
}

/// The gateway rejects the node, and why.
#[derive(Debug)]
pub(crate) struct JoinRefused(String);

impl std::fmt::Display for JoinRefused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Keeps links to `gateway` until the node leaves. Returns early only if the first response is a
/// refusal, while the operator is still watching.
pub(crate) async fn maintain_links(
    gateway: Gateway,
    joining: JoinContext,
) -> Result<(), JoinRefused> {
    let host = gateway.host();
    let (url, stop) = (gateway.url.to_string(), joining.stop.clone());
    let mut links = Links::new(gateway, joining);
    let mut last_reason = LastReason::default();
    loop {
        let resolved = tokio::select! {
            resolved = host.look_up() => resolved,
            () = stop.cancelled() => return Ok(()),
        };
        match resolved {
            Ok(found) => {
                last_reason = LastReason::default();
                links.reconcile(&found);
            }
            Err(why) if last_reason.record(&why) => {
                tracing::warn!(gateway = url, why, "gateway address lookup failed");
            }
            Err(_) => {}
        }
        // An IP address needs no further lookups.
        let look = host.is_name() || links.wanted.is_empty();
        tokio::select! {
            () = sleep(LOOKUP_INTERVAL), if look => {}
            Some(why) = links.wait_for_refusal() => return Err(why),
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// The tasks of one gateway's addresses.
struct Links {
    shared: Arc<GatewayState>,
    wanted: BTreeMap<SocketAddr, CancellationToken>,
    tasks: JoinSet<Result<(), JoinRefused>>,
}

impl Links {
    fn new(gateway: Gateway, joining: JoinContext) -> Self {
        let shared = GatewayState { gateway, joining, accepted: AtomicBool::new(false) };
        Self { shared: Arc::new(shared), wanted: BTreeMap::new(), tasks: JoinSet::new() }
    }

    /// Dials new addresses and stops dialing those that are gone.
    fn reconcile(&mut self, found: &BTreeSet<SocketAddr>) {
        self.wanted.retain(|address, retired| {
            let stays = found.contains(address);
            if !stays {
                retired.cancel();
            }
            stays
        });
        for address in found {
            self.wanted.entry(*address).or_insert_with(|| {
                let retired = CancellationToken::new();
                let dialed = Address::new(self.shared.clone(), *address);
                self.tasks.spawn(dialed.maintain_link(retired.clone()));
                retired
            });
        }
    }

    /// Waits for a refusal that ends the join. Cancel-safe.
    async fn wait_for_refusal(&mut self) -> Option<JoinRefused> {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(Err(why))) => return Some(why),
                Some(_) => {}
                None => return std::future::pending().await,
            }
        }
    }
}

#[derive(Debug)]
struct GatewayState {
    gateway: Gateway,
    joining: JoinContext,
    /// True once a gateway has accepted the node.
    accepted: AtomicBool,
}

/// One address of a gateway.
#[derive(Debug)]
struct Address {
    shared: Arc<GatewayState>,
    address: SocketAddr,
    backoff: Backoff,
    last_reason: LastReason,
    link_ends: watch::Receiver<u64>,
}

impl Address {
    fn new(shared: Arc<GatewayState>, address: SocketAddr) -> Self {
        let backoff = Backoff::new(REDIAL_MIN, REDIAL_MAX, crate::types::random::random() as u64);
        let link_ends = shared.joining.linked.watch_ends();
        Self { shared, address, backoff, last_reason: LastReason::default(), link_ends }
    }

    /// Dials it until the node leaves, or until it is `retired` and has no link.
    async fn maintain_link(mut self, retired: CancellationToken) -> Result<(), JoinRefused> {
        let stop = self.shared.joining.stop.clone();
        loop {
            let GatewayState { gateway, joining, .. } = &*self.shared;
            self.link_ends.mark_unchanged();
            let dialed = tokio::select! {
                dialed = dial(gateway, self.address, &joining.node, &joining.linked) => dialed,
                () = retired.cancelled() => return Ok(()),
                () = stop.cancelled() => return Ok(()),
            };
            let is_same = matches!(dialed, Err(DialError::AlreadyLinked));
            match dialed {
                Ok(link) => tokio::select! {
                    () = self.serve(link) => {}
                    () = stop.cancelled() => return Ok(()),
                },
                Err(why) => self.log_failure(why)?,
            }
            tokio::select! {
                () = self.pause(is_same) => {}
                () = retired.cancelled() => return Ok(()),
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    /// Serves one link until it ends.
    async fn serve(&mut self, link: DialedLink) {
        let GatewayState { gateway, joining, accepted } = &*self.shared;
        accepted.store(true, Ordering::Relaxed);
        self.last_reason = LastReason::default();
        tracing::info!(gateway = %gateway.url, address = %self.address, "joined");
        let begun = Instant::now();
        link.serve(&joining.node, &joining.stop).await;
        tracing::warn!(gateway = %gateway.url, address = %self.address, "link lost");
        if begun.elapsed() >= GOOD_AFTER {
            self.backoff.reset();
        }
    }

    /// Logs why there is no link, unless the reason is the same as before.
    fn log_failure(&mut self, why: DialError) -> Result<(), JoinRefused> {
        let GatewayState { gateway, accepted, .. } = &*self.shared;
        let (gateway, address) = (&gateway.url, self.address);
        match why {
            DialError::Refused(why) if !accepted.load(Ordering::Relaxed) => {
                return Err(JoinRefused(why));
            }
            DialError::Refused(why) | DialError::NameTaken(why)
                if self.last_reason.record(&why) =>
            {
                tracing::error!(%gateway, %address, why, "join refused");
            }
            DialError::Unreachable(why) if self.last_reason.record(&why) => {
                tracing::warn!(%gateway, %address, why, "not joined");
            }
            DialError::AlreadyLinked => {
                tracing::debug!(%gateway, %address, "address skipped: gateway already linked");
            }
            DialError::Refused(why) | DialError::NameTaken(why) | DialError::Unreachable(why) => {
                tracing::debug!(%gateway, %address, why, "not joined");
            }
        }
        Ok(())
    }

    /// Waits until the next dial. An address of an already linked gateway is dialed again when a
    /// link ends.
    async fn pause(&mut self, is_same: bool) {
        if is_same {
            let _ = timeout(SAME_FOR, self.link_ends.changed()).await;
            self.backoff.reset();
        }
        sleep(self.backoff.next_wait()).await;
    }
}

/// The last logged reason.
#[derive(Debug, Default)]
struct LastReason(Option<String>);

impl LastReason {
    /// Returns false if it is the same as the last one.
    fn record(&mut self, reason: &str) -> bool {
        let is_new = self.0.as_deref() != Some(reason);
        self.0 = Some(reason.into());
        is_new
    }
}
