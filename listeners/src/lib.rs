//! What both programs do with listeners: no client can take more than its share before we know who
//! it is.
//!
//! - [`accept`]: the accept loop, within the limit of the listener and of each address. A program
//!   implements [`accept::Listener`]. Start reading here.
//! - [`connection`]: serves one accepted connection with all guards.
//! - [`timers`] (pure): decides how long a connection may keep us waiting.
//! - `monitor`, `streams`: disconnect clients that do not read, on a connection and on one HTTP/2
//!   stream, by their slow-read budget (`slow_read`, pure).
//! - [`hangup`]: notices clients that disconnect.
//! - [`panics`]: confines a panic to its request.
//! - [`request_head`] (pure): refuses heads that break HTTP's rules or our limits.
//! - [`request_body`]: reads bodies within limits. [`response`]: builds responses.
//! - [`log`]: the log on stderr, whose lines name their connection and request.
//! - [`socket`]: binds ports and sets socket options. [`systemd`]: notifies the service manager.
//!
//! TLS, metrics, and the limits themselves come from the programs.

#![warn(unreachable_pub)]

pub mod accept;
pub mod connection;
mod connection_limit;
pub mod hangup;
pub mod log;
mod monitor;
pub mod panics;
mod per_address;
pub mod request_body;
pub mod request_head;
pub mod response;
mod response_body;
mod slow_read;
pub mod socket;
mod streams;
pub mod systemd;
pub mod timers;

use std::fmt::Debug;
use std::sync::Arc;

/// Why a connection was refused or closed by us. These are the label values of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    /// The address has reached its per-address limit.
    AddressLimit,
    /// The TLS handshake failed or timed out.
    Handshake,
    /// A request head did not arrive in time.
    SlowHead,
    /// No request arrived within the idle timeout.
    Idle,
    /// The client sent many bytes but no request.
    Noise,
    /// The client stopped reading its response.
    Stalled,
}

impl CloseReason {
    /// All variants.
    pub const ALL: [Self; 6] = [
        Self::AddressLimit,
        Self::Handshake,
        Self::SlowHead,
        Self::Idle,
        Self::Noise,
        Self::Stalled,
    ];

    /// The label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::AddressLimit => "address_limit",
            Self::Handshake => "handshake",
            Self::SlowHead => "slow_head",
            Self::Idle => "idle",
            Self::Noise => "noise",
            Self::Stalled => "stalled",
        }
    }
}

/// Counts connections that we refuse or close.
pub trait CloseCounter: Debug + Send + Sync {
    /// Adds one.
    fn record_close(&self, reason: CloseReason);
}

/// The counter that all connections share.
pub type SharedCloseCounter = Arc<dyn CloseCounter>;
