//! The client of a request as its connection identifies it.

use std::net::IpAddr;

use crate::config::tls::Authority;

/// The client of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer<'a> {
    /// Its address, possibly reported by a trusted proxy.
    pub address: IpAddr,
    /// The CA that issued its verified client certificate.
    pub authority: Option<&'a Authority>,
}
