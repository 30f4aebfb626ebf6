//! Links to nodes: the HTTP/2 connection, the status stream on it, and the nodes that the gateway
//! dials.

pub(crate) mod hand_over;
pub(crate) mod link;
pub(crate) mod link_end;
pub(crate) mod static_nodes;
pub(crate) mod status;
