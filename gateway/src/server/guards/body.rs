//! A response body as its connection sees it.

/// See [`flotilla_listeners::body`].
pub(crate) type Tracked = flotilla_listeners::body::Tracked<crate::types::response::Body>;
