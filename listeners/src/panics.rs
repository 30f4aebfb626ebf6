//! Confines a panic in a request handler to its request; the connection continues.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

/// Runs `handler`. If it panics, returns the response of `on_panic` instead.
pub fn confine_panic<F: Future>(
    handler: F,
    on_panic: impl FnOnce() -> F::Output,
) -> impl Future<Output = F::Output> {
    let caught = AssertUnwindSafe(handler).catch_unwind();
    caught.map(|outcome| outcome.unwrap_or_else(|_| on_panic()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn respond(panics: bool) -> u16 {
        assert!(!panics, "this is what happens");
        200
    }

    #[tokio::test]
    async fn a_panic_becomes_a_response() {
        assert_eq!(confine_panic(respond(false), || 500).await, 200);
        assert_eq!(confine_panic(respond(true), || 500).await, 500);
    }
}
