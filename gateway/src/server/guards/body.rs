//! A response body as its connection sees it.

/// See [`flotilla_listeners::response_body`].
pub(crate) type TrackedBody =
    flotilla_listeners::response_body::TrackedBody<crate::types::response::Body>;
