//! The protocol between gateway and node. serde (and memchr) only: no I/O, no async, no clock.
//!
//! * [`openai`]: the request fields that we use, and the response formats.
//! * [`fleet`]: joining and status, the two things a node reports about itself.
//! * [`resume`]: responses that resume on another node.
//! * [`sse`]: server-sent events, incremental in both directions.
//! * [`ids`]: request, node and epoch ids.
//! * [`time`]: seconds since 1970.

pub mod fleet;
pub mod ids;
pub mod openai;
pub mod resume;
pub mod sse;
pub mod time;
