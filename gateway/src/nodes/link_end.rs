//! Why a link to a node ended, for the log.

use std::fmt::{self, Display, Formatter};

use hyper::StatusCode;

use crate::nodes::status::StatusProblem;
use crate::types::error::Error;
use crate::upstream::ConnectionEnd;

/// Why a link ended, or was not established.
#[derive(Debug)]
pub(crate) enum LinkEnd {
    /// The gateway cannot connect to a static node.
    Connect(std::io::Error),
    /// The TCP connection to a static node timed out.
    ConnectTimeout,
    /// The TLS handshake failed.
    Tls(std::io::Error),
    /// The TLS handshake timed out.
    TlsTimeout,
    /// The HTTP/2 handshake failed.
    Http2(h2::Error),
    /// The HTTP/2 handshake timed out.
    Http2Timeout,
    /// The connection ended.
    Connection(ConnectionEnd),
    /// The status stream ended.
    Status(StatusEnd),
    /// The node joined again: another link replaced this one.
    Replaced,
    /// Another node with the same name has a link.
    NameTaken(Error),
    /// The node was removed from the configuration.
    Retired,
}

/// Why the status stream of a node ended, or was not opened.
#[derive(Debug)]
pub(crate) enum StatusEnd {
    /// The request for the status failed.
    NotSent,
    /// The node did not respond in time.
    Timeout,
    /// The node requires another key.
    KeyRejected,
    /// The node refused the request with this status.
    Refused(StatusCode),
    /// The node closed the stream.
    Closed,
    /// The stream broke.
    Broken,
    /// No status arrived in time.
    Overdue,
    /// A status is too long.
    TooLong,
    /// A status cannot be parsed.
    Malformed(serde_json::Error),
    /// A status is implausible.
    Rejected(StatusProblem),
    /// A status names another node than before.
    OtherNode,
}

impl From<StatusEnd> for LinkEnd {
    fn from(end: StatusEnd) -> Self {
        Self::Status(end)
    }
}

impl Display for LinkEnd {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(error) => write!(f, "cannot connect: {error}"),
            Self::ConnectTimeout => f.write_str("connect timeout"),
            Self::Tls(error) => write!(f, "TLS handshake failed: {error}"),
            Self::TlsTimeout => f.write_str("TLS handshake timeout"),
            Self::Http2(error) => write!(f, "HTTP/2 handshake failed: {error}"),
            Self::Http2Timeout => f.write_str("HTTP/2 handshake timeout"),
            Self::Connection(end) => end.fmt(f),
            Self::Status(end) => end.fmt(f),
            Self::Replaced => f.write_str("the node joined again"),
            Self::NameTaken(error) => error.fmt(f),
            Self::Retired => f.write_str("the node was removed from the configuration"),
        }
    }
}

impl Display for StatusEnd {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent => f.write_str("the connection broke"),
            Self::Timeout => f.write_str("the node did not open its status stream in time"),
            Self::KeyRejected => f.write_str("the node requires another key (key_file)"),
            Self::Refused(status) => {
                write!(f, "the node refuses its status with {status}; is it a flotilla-agent?")
            }
            Self::Closed => f.write_str("the node closed its status stream"),
            Self::Broken => f.write_str("the status stream broke"),
            Self::Overdue => f.write_str("the status of the node is overdue"),
            Self::TooLong => f.write_str("the status of the node is too long"),
            Self::Malformed(error) => write!(f, "invalid status of the node: {error}"),
            Self::Rejected(problem) => problem.fmt(f),
            Self::OtherNode => f.write_str("the status names another node than before"),
        }
    }
}
