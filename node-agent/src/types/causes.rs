//! Errors with their causes.

/// An error and what led to it: the message of a client's or of a TLS error does not hold that.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
