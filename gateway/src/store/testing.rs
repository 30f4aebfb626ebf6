//! A store of tests.

use std::path::Path;

use serde_json::{Map, Value};

use super::{BackgroundTask, Batch, BatchStatus, Keyring, Place, StorageLimits, Store, Times};

/// Runs a test with a store of its own.
pub(super) async fn with_store(test: impl AsyncFnOnce(&Store)) {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), Keyring::default());
    test(&store).await;
    store.close(true).await;
}

/// A store in a folder.
pub(super) fn store(folder: &Path, keyring: Keyring) -> Store {
    let place = Place { folder: folder.into(), bucket: None, postgres: None, keyring };
    let limits = StorageLimits { bytes_max: 1 << 30, tenant_bytes_max: 1 << 30 };
    Store::new(place, "me", limits)
}

/// Keys that consist of these digits; the first encrypts.
pub(super) fn keyring(digits: &str) -> Keyring {
    let lines = digits.chars().map(|digit| digit.to_string().repeat(64) + "\n");
    Keyring::read(&lines.collect::<String>()).unwrap()
}

/// What records of tests hold of their clients.
pub(super) const SECRET: &str = "a secret of the client";

fn notes() -> Option<Map<String, Value>> {
    Some(Map::from_iter([("note".into(), SECRET.into())]))
}

/// A batch that has not begun.
pub(super) fn batch(id: &str, tenant: &str) -> Batch {
    Batch {
        id: id.into(),
        tenant: tenant.into(),
        endpoint: "/v1/embeddings".into(),
        input_file_id: "file-1".into(),
        completion_window: "24h".into(),
        status: BatchStatus::Validating,
        errors: Vec::new(),
        output_file_id: None,
        error_file_id: None,
        output_age_s: 1,
        times: Times { created_at: 7, expires_at: 8, ..Times::default() },
        total: 0,
        completed: 0,
        failed: 0,
        metadata: notes(),
    }
}

/// A task that has not begun.
pub(super) fn task(id: &str, tenant: &str) -> BackgroundTask {
    BackgroundTask {
        id: id.into(),
        tenant: tenant.into(),
        created_at: 9,
        is_active: true,
        has_begun: false,
        bytes: 0,
        path: "/v1/responses".into(),
        model: "m".into(),
        metadata: notes(),
        user: None,
        headers: vec![("x-user".into(), SECRET.into())],
        is_streamed: false,
        is_bound: false,
        is_canceled: false,
    }
}
