//! What gateway and node agree on. serde (and memchr) only: no I/O, no async, no
//! clock.
//!
//! * [`openai`]: the request fields that we act on and the response shapes we write.
//! * [`fleet`]: joining and status, the two things a node says about itself.
//! * [`resume`]: answers that go on at another node.
//! * [`sse`]: server-sent events, incremental in both directions.
//! * [`ids`]: request, node and epoch ids.
//! * [`time`]: seconds since 1970.

pub mod fleet;
pub mod ids;
pub mod openai;
pub mod resume;
pub mod sse;
pub mod time;
