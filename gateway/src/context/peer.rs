//! The client of a request, as its connection knows it.

use std::net::IpAddr;

use crate::config::tls::Authority;

/// Who sends a request, as far as its connection tells.
#[derive(Debug, Clone, Copy)]
pub struct Peer<'a> {
    /// Its address, which a trusted proxy may have told.
    pub address: IpAddr,
    /// Who vouches for it: its certificate was verified.
    pub authority: Option<&'a Authority>,
}
