//! Protects the listeners of both programs: no client can take more than its share before we know
//! who it is.
//!
//! - [`connection`]: serves one accepted connection with all of these guards. Start reading here.
//! - [`socket`]: socket options, such as detection of dead peers.
//! - [`per_address`]: limits connections per address.
//! - [`timers`] (pure): decides how long a connection may keep us waiting.
//! - [`stall`], [`streams`]: disconnect clients that do not read, on a connection and on one stream
//!   of HTTP/2, by their slow-read budget ([`slow_read`], pure).
//! - [`hangup`]: notices clients that disconnect.
//! - [`body`]: applies the guards to one response.

pub mod body;
pub mod connection;
pub mod hangup;
pub mod per_address;
pub mod slow_read;
pub mod socket;
pub mod stall;
pub mod streams;
pub mod timers;

use std::fmt::Debug;
use std::sync::Arc;

/// Why a connection was refused or closed by us. These are the label values of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
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

impl Closed {
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
pub trait CountClosed: Debug + Send + Sync {
    /// Adds one.
    fn connection_closed(&self, why: Closed);
}

/// The counter that all connections share.
pub type Closings = Arc<dyn CountClosed>;
