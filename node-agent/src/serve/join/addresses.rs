//! Resolves the addresses of a gateway's name.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hyper::Uri;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// Interval of lookups: a new address is dialed within this time.
pub(crate) const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of a lookup: the system asks several servers, for some seconds each.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum addresses of one name, each of which gets a link.
const ADDRESSES_MAX: usize = 64;

/// Host and port of a gateway.
#[derive(Debug, Clone)]
pub(crate) struct GatewayHost {
    host: String,
    port: u16,
}

impl GatewayHost {
    /// Host and port of a URL; `port` if it has none.
    pub(crate) fn new(url: &Uri, port: u16) -> Self {
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
        Self { host: host.into(), port: url.port_u16().unwrap_or(port) }
    }

    /// True if the host is a name, whose addresses may change.
    pub(crate) fn is_name(&self) -> bool {
        self.host.parse::<IpAddr>().is_err()
    }

    /// All current addresses; at least one.
    ///
    /// # Errors
    /// The name cannot be resolved, or has no addresses.
    pub(crate) async fn look_up(&self) -> Result<BTreeSet<SocketAddr>, String> {
        let resolved = timeout(LOOKUP_TIMEOUT, lookup_host((self.host.as_str(), self.port))).await;
        let found = resolved
            .map_err(|_| format!("resolving '{}' timed out", self.host))?
            .map_err(|e| format!("cannot resolve '{}': {e}", self.host))?;
        let found: BTreeSet<SocketAddr> = found.take(ADDRESSES_MAX).collect();
        match found.is_empty() {
            true => Err(format!("'{}' has no address", self.host)),
            false => Ok(found),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_are_what_they_are_and_names_are_looked_up() {
        let host = |url: &'static str| GatewayHost::new(&Uri::from_static(url), 80);
        let (four, six) = (host("http://127.0.0.1:8080"), host("http://[::1]"));
        assert!(!four.is_name() && !six.is_name() && host("http://localhost").is_name());
        assert_eq!(four.look_up().await.unwrap().len(), 1);
        let found = six.look_up().await.unwrap();
        assert_eq!(found.first().unwrap().to_string(), "[::1]:80");
        let unknown = host("http://no-such-name.invalid").look_up().await.unwrap_err();
        assert!(unknown.contains("no-such-name.invalid"), "{unknown}");
    }
}
