//! The listeners, from socket to handler: accepting, TLS, guards against excessive clients, and
//! routes.

use std::net::IpAddr;

use crate::config::ADMIN_CONNECTIONS_MAX;
use crate::config::tls::Acceptor;
use crate::context::settings::{LiveSettings, Settings, Socket};

pub(crate) mod batch_body;
pub(crate) mod batches;
pub mod connection;
pub(crate) mod file_limit;
pub(crate) mod files;
mod form_source;
pub mod guards;
mod jobs;
pub(crate) mod listener;
mod lists;
pub mod message_batches;
pub(crate) mod models;
pub(crate) mod plain_http;
mod responses;
mod routes;
mod streams;

/// What a listener serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// The public API.
    Public,
    /// The admin API.
    Admin,
    /// Plain HTTP beside TLS: ACME challenges, and redirects to https.
    Http,
}

/// Connections of the listener for plain HTTP, which serves one request on each.
const HTTP_CONNECTIONS_MAX: usize = 256;
/// Of one address: few enough that a few addresses cannot keep the ACME server out.
const HTTP_CONNECTIONS_PER_IP: usize = 16;

impl Service {
    fn socket(self, settings: &LiveSettings) -> &Socket {
        match self {
            Self::Public => settings.public(),
            Self::Admin => settings.admin(),
            Self::Http => settings.http(),
        }
    }

    fn tls(self, settings: &Settings) -> Option<Acceptor> {
        match self {
            Self::Public => settings.config.tls.clone(),
            Self::Admin => settings.config.admin.as_ref()?.tls.clone(),
            Self::Http => None,
        }
    }

    fn connections_max(self, settings: &Settings) -> usize {
        match self {
            Self::Public => settings.config.limits.connections_max,
            Self::Admin => ADMIN_CONNECTIONS_MAX,
            Self::Http => HTTP_CONNECTIONS_MAX,
        }
    }

    /// Most connections per address; `None` for a trusted proxy, which has many clients. On the
    /// admin listener every address counts: trusted proxies are for clients, not for operators.
    fn connections_per_ip_max(self, settings: &Settings, peer: IpAddr) -> Option<usize> {
        let config = &settings.config;
        match self {
            Self::Public if config.trusted_proxies.trusts(peer) => None,
            Self::Public => Some(config.limits.connections_per_ip_max),
            Self::Admin => config.admin.as_ref().map(|admin| admin.connections_per_ip_max),
            Self::Http => Some(HTTP_CONNECTIONS_PER_IP),
        }
    }
}
