//! The per-address limit on connections: no single client can take all of them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Open connections by address.
#[derive(Debug, Default)]
pub(crate) struct PerAddressLimit {
    open: Mutex<HashMap<IpAddr, usize>>,
}

impl PerAddressLimit {
    /// Returns a permit if the address has fewer than `max` connections.
    pub(crate) fn acquire(self: &Arc<Self>, address: IpAddr, max: usize) -> Option<AddressPermit> {
        let network = network(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.get(&network).copied().unwrap_or(0);
        if count >= max {
            return None;
        }
        open.insert(network, count + 1);
        Some(AddressPermit { limit: self.clone(), network })
    }

    fn release(&self, network: IpAddr) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        match open.get_mut(&network) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(open.remove(&network)),
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
pub(crate) struct AddressPermit {
    limit: Arc<PerAddressLimit>,
    network: IpAddr,
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        self.limit.release(self.network);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acquire(limit: &Arc<PerAddressLimit>, address: &str, max: usize) -> Option<AddressPermit> {
        limit.acquire(address.parse().unwrap(), max)
    }

    #[test]
    fn an_address_has_its_limit_and_others_have_theirs() {
        let limit = Arc::new(PerAddressLimit::default());
        let first = acquire(&limit, "192.0.2.1", 2).unwrap();
        let _second = acquire(&limit, "::ffff:192.0.2.1", 2).unwrap();
        assert!(acquire(&limit, "192.0.2.1", 2).is_none());
        assert!(acquire(&limit, "192.0.2.2", 2).is_some());
        drop(first);
        assert!(acquire(&limit, "192.0.2.1", 2).is_some());
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together() {
        let limit = Arc::new(PerAddressLimit::default());
        let _first = acquire(&limit, "2001:db8::1", 1).unwrap();
        assert!(acquire(&limit, "2001:db8::ffff:1", 1).is_none());
        assert!(acquire(&limit, "2001:db8:0:1::1", 1).is_some());
    }

    #[test]
    fn addresses_without_connections_are_removed() {
        let limit = Arc::new(PerAddressLimit::default());
        let permits: Vec<_> = (0..5).map(|i| acquire(&limit, &format!("192.0.2.{i}"), 9)).collect();
        assert_eq!(limit.open.lock().unwrap().len(), 5);
        drop(permits);
        assert_eq!(limit.open.lock().unwrap().len(), 0);
    }
}
