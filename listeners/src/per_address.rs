//! The per-address limit on connections: no single client can take all of them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Open connections by address.
#[derive(Debug, Default)]
pub struct PerAddressLimit {
    inside: Mutex<HashMap<IpAddr, usize>>,
}

impl PerAddressLimit {
    /// Returns a permit if the address has fewer than `max` connections.
    pub fn enter(self: &Arc<Self>, address: IpAddr, max: usize) -> Option<ConnectionPermit> {
        let network = network(address);
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let here = inside.get(&network).copied().unwrap_or(0);
        if here >= max {
            return None;
        }
        inside.insert(network, here + 1);
        Some(ConnectionPermit { limit: self.clone(), network })
    }

    fn leave(&self, network: IpAddr) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        match inside.get_mut(&network) {
            Some(here) if *here > 1 => *here -= 1,
            _ => drop(inside.remove(&network)),
        }
    }
}

/// An IPv6 customer gets at least a /64, so all addresses of a /64 count as one.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into(),
        v4 => v4,
    }
}

/// A permit for one connection. Dropping it frees the place.
#[derive(Debug)]
pub struct ConnectionPermit {
    limit: Arc<PerAddressLimit>,
    network: IpAddr,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limit.leave(self.network);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(limit: &Arc<PerAddressLimit>, address: &str, max: usize) -> Option<ConnectionPermit> {
        limit.enter(address.parse().unwrap(), max)
    }

    #[test]
    fn an_address_has_its_limit_and_others_have_theirs() {
        let limit = Arc::new(PerAddressLimit::default());
        let first = enter(&limit, "192.0.2.1", 2).unwrap();
        let _second = enter(&limit, "::ffff:192.0.2.1", 2).unwrap();
        assert!(enter(&limit, "192.0.2.1", 2).is_none());
        assert!(enter(&limit, "192.0.2.2", 2).is_some());
        drop(first);
        assert!(enter(&limit, "192.0.2.1", 2).is_some());
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together() {
        let limit = Arc::new(PerAddressLimit::default());
        let _first = enter(&limit, "2001:db8::1", 1).unwrap();
        assert!(enter(&limit, "2001:db8::ffff:1", 1).is_none());
        assert!(enter(&limit, "2001:db8:0:1::1", 1).is_some());
    }

    #[test]
    fn who_has_left_is_forgotten() {
        let limit = Arc::new(PerAddressLimit::default());
        let permits: Vec<_> = (0..5).map(|i| enter(&limit, &format!("192.0.2.{i}"), 9)).collect();
        assert_eq!(limit.inside.lock().unwrap().len(), 5);
        drop(permits);
        assert_eq!(limit.inside.lock().unwrap().len(), 0);
    }
}
