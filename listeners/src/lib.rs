//! What stands between the network and both programs, so that no client can take more than its
//! share before anything is known of it.
//!
//! [`door`] says how many connections one address may have. [`pulse`] (pure) says how long a
//! connection may keep us waiting, [`stall`] and [`streams`] cut clients that do not read what we
//! have for them, by what they owe ([`debt`], pure). [`hangup`] notices clients that leave.
//! [`connection`] puts that around one connection, and [`body`] around one response.

pub mod body;
pub mod connection;
pub mod debt;
pub mod door;
pub mod hangup;
pub mod pulse;
pub mod socket;
pub mod stall;
pub mod streams;

use std::fmt::Debug;
use std::sync::Arc;

/// Why a connection was refused or cut: the closed set of a metric's labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// Its address has as many as it may have.
    AddressLimit,
    /// Its TLS handshake failed, or took too long.
    Handshake,
    /// The head of a request did not arrive in time.
    SlowHead,
    /// It asked nothing for a while.
    Idle,
    /// It sent a lot and asked nothing.
    Noise,
    /// It did not read what we had for it.
    Stalled,
}

impl Closed {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::AddressLimit,
        Self::Handshake,
        Self::SlowHead,
        Self::Idle,
        Self::Noise,
        Self::Stalled,
    ];

    /// Its label.
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

/// Counts connections that are refused or cut.
pub trait CountClosed: Debug + Send + Sync {
    /// One more.
    fn connection_closed(&self, why: Closed);
}

/// Who counts them, shared by all connections.
pub type Closings = Arc<dyn CountClosed>;
