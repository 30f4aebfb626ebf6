//! Determines the client address of a request. `X-Forwarded-For` is trusted only as far as our own
//! proxies wrote it.

use std::net::{IpAddr, SocketAddr};

use hyper::header::HeaderMap;
use ipnet::IpNet;

const FORWARDED_FOR: &str = "x-forwarded-for";

/// Networks of the trusted proxies.
#[derive(Debug, Clone, Default)]
pub struct Proxies(Vec<IpNet>);

impl Proxies {
    /// Trusts these networks.
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self(networks)
    }

    /// True if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the address is in a trusted network. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// The client address of a request from `peer`: the rightmost address that is not a trusted
    /// proxy, because anyone could have written the addresses left of it.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer.to_canonical();
        let hops = headers.get_all(FORWARDED_FOR).into_iter().rev();
        let mut hops = hops.flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b','));
        while self.trusts(client) {
            // Stop at anything that is not an address.
            let Some(hop) = hops.next().and_then(parse) else { break };
            client = hop;
        }
        client
    }
}

/// Parses an address as proxies write it: some with a port, some in brackets.
fn parse(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?.trim().trim_matches('"');
    let with_port = || text.parse().ok().map(|address: SocketAddr| address.ip());
    let address = text.trim_matches(['[', ']']).parse().ok().or_else(with_port)?;
    Some(address.to_canonical())
}

/// Parses a network or a single address.
pub(crate) fn network(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: &str, forwarded: &[&str]) -> String {
        let networks = ["10.0.0.0/8", "::1", "2001:db8:5::/48"].map(|n| network(n).unwrap());
        let mut headers = HeaderMap::new();
        for line in forwarded {
            headers.append(FORWARDED_FOR, line.parse().unwrap());
        }
        let proxies = Proxies::new(networks.to_vec());
        proxies.client(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn only_a_trusted_proxy_is_believed() {
        assert_eq!(client("192.0.2.1", &["203.0.113.9"]), "192.0.2.1");
        assert_eq!(client("10.1.2.3", &["203.0.113.9"]), "203.0.113.9");
        assert_eq!(client("::ffff:10.1.2.3", &["203.0.113.9"]), "203.0.113.9");
        assert_eq!(client("::1", &[]), "::1");
    }

    #[test]
    fn the_rightmost_address_that_is_not_trusted_counts() {
        assert_eq!(client("10.0.0.1", &["1.1.1.1, 203.0.113.9 ,10.0.0.2"]), "203.0.113.9");
        assert_eq!(client("10.0.0.1", &["1.1.1.1", "203.0.113.9, 10.0.0.2"]), "203.0.113.9");
        assert_eq!(client("10.0.0.1", &["10.0.0.3, 10.0.0.2"]), "10.0.0.3");
        assert_eq!(client("10.0.0.1", &["[2001:db8:5::7]:443", "[::1]"]), "2001:db8:5::7");
        assert_eq!(client("10.0.0.1", &["203.0.113.9:5555"]), "203.0.113.9");
    }

    #[test]
    fn what_is_no_address_ends_what_is_believed() {
        for noise in ["unknown", "", "1.2.3", "'; drop table", ", ,", "\u{e9}"] {
            assert_eq!(client("10.0.0.1", &[&format!("1.1.1.1, {noise}")]), "10.0.0.1");
        }
        assert_eq!(client("10.0.0.1", &["junk, 10.0.0.2"]), "10.0.0.2");
    }
}
