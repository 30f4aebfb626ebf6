//! The per-address limit on connections: no single client can take all of them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

/// Open connections by address.
#[derive(Debug, Default)]
pub struct Door {
    inside: Mutex<HashMap<IpAddr, usize>>,
}

impl Door {
    /// Returns a permit if the address has fewer than `max` connections.
    pub fn enter(self: &Arc<Self>, address: IpAddr, max: usize) -> Option<Guest> {
        let network = network(address);
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let here = inside.get(&network).copied().unwrap_or(0);
        if here >= max {
            return None;
        }
        inside.insert(network, here + 1);
        Some(Guest { door: self.clone(), network })
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
pub struct Guest {
    door: Arc<Door>,
    network: IpAddr,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.door.leave(self.network);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(door: &Arc<Door>, address: &str, max: usize) -> Option<Guest> {
        door.enter(address.parse().unwrap(), max)
    }

    #[test]
    fn an_address_has_its_limit_and_others_have_theirs() {
        let door = Arc::new(Door::default());
        let first = enter(&door, "192.0.2.1", 2).unwrap();
        let _second = enter(&door, "::ffff:192.0.2.1", 2).unwrap();
        assert!(enter(&door, "192.0.2.1", 2).is_none());
        assert!(enter(&door, "192.0.2.2", 2).is_some());
        drop(first);
        assert!(enter(&door, "192.0.2.1", 2).is_some());
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together() {
        let door = Arc::new(Door::default());
        let _first = enter(&door, "2001:db8::1", 1).unwrap();
        assert!(enter(&door, "2001:db8::ffff:1", 1).is_none());
        assert!(enter(&door, "2001:db8:0:1::1", 1).is_some());
    }

    #[test]
    fn who_has_left_is_forgotten() {
        let door = Arc::new(Door::default());
        let guests: Vec<_> = (0..5).map(|i| enter(&door, &format!("192.0.2.{i}"), 9)).collect();
        assert_eq!(door.inside.lock().unwrap().len(), 5);
        drop(guests);
        assert_eq!(door.inside.lock().unwrap().len(), 0);
    }
}
