//! The gateways this node is linked to. Several addresses, or several names, may lead to one
//! gateway: it gets one link, by whichever connects first.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The set of linked gateways. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct LinkedGateways(Arc<LinkSet>);

#[derive(Debug)]
struct LinkSet {
    gateways: Mutex<BTreeSet<String>>,
    /// Number of links that have ended.
    ended: watch::Sender<u64>,
}

impl Default for LinkedGateways {
    fn default() -> Self {
        let (ended, _) = watch::channel(0);
        Self(Arc::new(LinkSet { gateways: Mutex::default(), ended }))
    }
}

impl LinkedGateways {
    /// Claims the only link to a gateway; `None` while another claim holds it.
    pub(crate) fn claim(&self, gateway: &str) -> Option<Claim> {
        let is_first = self.gateways().insert(gateway.into());
        is_first.then(|| Claim { linked: self.clone(), gateway: gateway.into() })
    }

    /// All of them, comma-separated.
    pub(crate) fn list(&self) -> String {
        self.gateways().iter().map(String::as_str).collect::<Vec<_>>().join(",")
    }

    /// Subscribes to the end of links.
    pub(crate) fn watch_ends(&self) -> watch::Receiver<u64> {
        self.0.ended.subscribe()
    }

    fn gateways(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // The set is always consistent, even after a panic.
        self.0.gateways.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The claim to the only link to a gateway, released on drop.
#[derive(Debug)]
pub(crate) struct Claim {
    linked: LinkedGateways,
    gateway: String,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.linked.gateways().remove(&self.gateway);
        self.linked.0.ended.send_modify(|ended| *ended += 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_has_one_link_until_that_ends() {
        let linked = LinkedGateways::default();
        let mut ends = linked.watch_ends();
        let first = linked.claim("b").unwrap();
        let _other = linked.claim("a").unwrap();
        assert!(linked.claim("b").is_none());
        assert_eq!(linked.list(), "a,b");
        assert!(!ends.has_changed().unwrap());
        drop(first);
        assert!(ends.has_changed().unwrap());
        ends.mark_unchanged();
        assert_eq!(linked.list(), "a");
        assert!(linked.claim("b").is_some());
    }
}
