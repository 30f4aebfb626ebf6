//! The limit on open connections of a listener, which can change while they are open.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    permits: Arc<Semaphore>,
    size: usize,
}

impl Default for ConnectionLimit {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(0)), size: 0 }
    }
}

impl ConnectionLimit {
    /// Changes the limit. If more connections are open, it shrinks as they close, with later calls.
    pub(crate) fn resize(&mut self, size: usize) {
        match size.checked_sub(self.size) {
            Some(more) => {
                self.permits.add_permits(more);
                self.size = size;
            }
            None => self.size -= self.permits.forget_permits(self.size - size),
        }
    }

    /// Waits for a free place. Cancel-safe.
    pub(crate) async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn acquire(limit: &ConnectionLimit) -> Option<OwnedSemaphorePermit> {
        limit.acquire().now_or_never().flatten()
    }

    #[test]
    fn a_smaller_limit_holds_once_enough_connections_have_closed() {
        let mut limit = ConnectionLimit::default();
        assert!(acquire(&limit).is_none());
        limit.resize(2);
        let (first, second) = (acquire(&limit).unwrap(), acquire(&limit).unwrap());
        assert!(acquire(&limit).is_none());
        limit.resize(1);
        drop(first);
        limit.resize(1);
        assert!(acquire(&limit).is_none(), "one is still open");
        drop(second);
        assert!(acquire(&limit).is_some());
    }
}
