//! A response body as its connection sees it.

/// See [`flotilla_listeners::body`].
pub(crate) type TrackedBody = flotilla_listeners::body::TrackedBody<crate::types::response::Body>;
