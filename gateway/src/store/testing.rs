//! A store of tests.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustls::ClientConfig;
use serde_json::{Map, Value};

use super::{
    BackgroundTask, Batch, BatchStatus, Keyring, Place, PostgresSettings, StorageLimits, Store,
    Times,
};

/// Runs a test with a store of its own.
pub(super) async fn with_store(test: impl AsyncFnOnce(&Store)) {
    let folder = tempfile::tempdir().unwrap();
    let store = store(folder.path(), Keyring::default());
    test(&store).await;
    store.close(true).await;
}

/// A store in a folder: with SQLite, or with the server that FLOTILLA_TEST_POSTGRES names.
pub(super) fn store(folder: &Path, keyring: Keyring) -> Store {
    let server = std::env::var("FLOTILLA_TEST_POSTGRES").ok();
    let postgres = server.map(|server| database_of(&server, folder));
    let place = Place { folder: folder.into(), bucket: None, postgres, keyring };
    let limits = StorageLimits { bytes_max: 1 << 30, tenant_bytes_max: 1 << 30 };
    Store::new(place, "me", limits)
}

/// The database that belongs to a folder. It stays until the server is gone.
fn database_of(server: &str, folder: &Path) -> PostgresSettings {
    let path = folder.to_str().unwrap().to_lowercase();
    let letters: String = path.chars().filter(char::is_ascii_alphanumeric).collect();
    let create = format!("CREATE DATABASE {letters}");
    // It may be there already.
    Command::new("psql").args([server, "-c", &create]).output().unwrap();
    let (before, _) = server.rsplit_once('/').unwrap();
    PostgresSettings::new(&format!("{before}/{letters}"), tls()).unwrap()
}

/// Settings for encrypted connections, which trust nobody.
pub(super) fn tls() -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let roots = rustls::RootCertStore::empty();
    Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
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
