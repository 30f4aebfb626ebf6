//! A store of tests.

use super::{Place, StorageLimits, Store};

/// Runs a test with a store of its own.
pub(super) async fn with_store(test: impl AsyncFnOnce(&Store)) {
    let folder = tempfile::tempdir().unwrap();
    let place = Place { folder: folder.path().into(), bucket: None, postgres: None };
    let limits = StorageLimits { bytes_max: 1 << 30, tenant_bytes_max: 1 << 30 };
    let store = Store::new(place, "me", limits);
    test(&store).await;
    store.close().await;
}
