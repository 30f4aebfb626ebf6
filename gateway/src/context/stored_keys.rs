//! The API keys of the store, for all gateways that use it. Each gateway has them in memory, and a
//! copy beside its store for a start while the database is gone.

use std::path::{Path, PathBuf};

use tokio::task::spawn_blocking;

use super::Gateway;
use super::settings::StoredKeys;
use crate::access::keys::ApiKey;
use crate::config::{api_keys, files};
use crate::store::{SettingName, SharedSetting, Store, StoreError};
use crate::types::atomic_file::replace;

/// Bytes of all keys. A few hundred per key.
pub(crate) const BYTES_MAX: usize = 4 * 1024 * 1024;
/// Names and limits of tenants are confidential.
const MODE: u32 = 0o600;

fn copy(store: &Store) -> PathBuf {
    store.place().folder.join("keys.yaml")
}

impl Gateway {
    /// Learns the keys that an earlier run knew.
    pub(crate) async fn restore_stored_keys(&self) {
        let Some(store) = &self.store else { return };
        let path = copy(store);
        let read = spawn_blocking(move || read_copy(&path)).await;
        if let Ok(Some(keys)) = read {
            self.settings.set_stored_keys(StoredKeys { revision: None, keys }).await;
        }
    }

    /// Learns the keys of the store if they have changed.
    ///
    /// # Errors
    /// The store fails, or its keys cannot be read; then those that were known stay.
    pub(crate) async fn refresh_stored_keys(&self, store: &Store) -> Result<(), StoreError> {
        let _alone = self.sharing.lock().await;
        let known = self.settings.now().stored_keys.clone();
        let revision = known.as_ref().and_then(|keys| keys.revision);
        let read = store.setting(SettingName::Keys, revision).await?;
        let Some(setting) = read else { return Ok(()) };
        // A list that was emptied has a revision. To lock out all clients would be the worse
        // mistake.
        if setting.revision == 0 && known.is_some_and(|known| !known.keys.is_empty()) {
            tracing::error!("the store has never had keys, and this gateway knows some: they stay");
            return Ok(());
        }
        let path = copy(store);
        let read = spawn_blocking(move || read_setting(&setting, &path)).await;
        let stored = read.map_err(|_| StoreError::Unavailable)??;
        tracing::info!(count = stored.keys.len(), "keys of the store loaded");
        self.settings.set_stored_keys(stored).await;
        Ok(())
    }
}

/// The keys of a setting.
///
/// # Errors
/// It is not readable: something other than a gateway has written it.
pub(crate) fn parse(setting: &SharedSetting) -> Result<Vec<ApiKey>, StoreError> {
    if setting.value.is_empty() {
        return Ok(Vec::new());
    }
    api_keys::read_text(&setting.value).map_err(|problems| {
        let why: Vec<String> = problems.iter().map(ToString::to_string).collect();
        tracing::error!(why = why.join("; "), "keys of the store cannot be read");
        StoreError::Unavailable
    })
}

fn read_setting(setting: &SharedSetting, copy: &Path) -> Result<StoredKeys, StoreError> {
    let keys = parse(setting)?;
    let text = if keys.is_empty() { "keys: []\n" } else { &setting.value };
    if let Err(error) = replace(copy, text, MODE) {
        tracing::warn!(path = %copy.display(), %error, "copy of the store's keys not written");
    }
    Ok(StoredKeys { revision: Some(setting.revision), keys })
}

fn read_copy(path: &Path) -> Option<Vec<ApiKey>> {
    if !path.exists() {
        return None;
    }
    let read = files::read(path, BYTES_MAX as u64).and_then(|text| {
        api_keys::read_text(&text).map_err(|problems| {
            problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        })
    });
    read.inspect_err(|why| tracing::error!(why, "copy of the store's keys cannot be read")).ok()
}
