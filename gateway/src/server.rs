//! The listeners, from a socket to a handler: accepting, TLS, guards against clients that take too
//! much, and the routes.

use std::net::IpAddr;

use crate::config::ADMIN_CONNECTIONS_MAX;
use crate::config::tls::Acceptor;
use crate::context::settings::{Live, Settings, Socket};

pub mod connection;
pub mod file_limit;
pub mod guards;
pub mod listener;
pub mod routes;

/// What is served on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// The public API.
    Public,
    /// What operators look at and change.
    Admin,
}

impl Service {
    fn socket(self, settings: &Live) -> &Socket {
        match self {
            Self::Public => settings.public(),
            Self::Admin => settings.admin(),
        }
    }

    fn tls(self, settings: &Settings) -> Option<Acceptor> {
        match self {
            Self::Public => settings.config.tls.clone(),
            Self::Admin => settings.config.admin.as_ref()?.tls.clone(),
        }
    }

    fn connections_max(self, settings: &Settings) -> usize {
        match self {
            Self::Public => settings.config.limits.connections_max,
            Self::Admin => ADMIN_CONNECTIONS_MAX,
        }
    }

    /// Connections that one address may have; of a proxy of ours, which has many clients, any
    /// number. Operators' addresses are always counted: a proxy that clients come through is none
    /// of theirs.
    fn connections_per_ip_max(self, settings: &Settings, peer: IpAddr) -> Option<usize> {
        let config = &settings.config;
        match self {
            Self::Public if config.trusted_proxies.trusts(peer) => None,
            Self::Public => Some(config.limits.connections_per_ip_max),
            Self::Admin => config.admin.as_ref().map(|admin| admin.connections_per_ip_max),
        }
    }
}
