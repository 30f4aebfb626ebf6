//! Saves state across restarts (`state_file`): usage and spend for daily and monthly budgets, and
//! cordoned nodes.
//!
//! Written every few seconds if something has changed, and at shutdown. A gateway that is killed
//! loses the last few seconds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::config::files;
use crate::context::Gateway;
use crate::dispatcher::saved_state::SavedState;
use crate::types::atomic_file::replace;
use crate::types::usage::Date;

const INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// A few hundred bytes per tenant, user, endpoint, and cordoned node.
const BYTES_MAX: u64 = 64 * 1024 * 1024;
const VERSION: u32 = 1;
/// Usage of tenants is confidential.
const MODE: u32 = 0o600;

/// Contents of the file.
#[derive(Debug, Serialize, Deserialize)]
struct StateFile {
    version: u32,
    #[serde(flatten)]
    state: SavedState,
}

/// Loads the saved state. An unreadable file is moved aside, and the state starts empty.
pub(crate) fn load(path: &Path) -> SavedState {
    if !path.exists() {
        return SavedState::default();
    }
    let why = match files::read(path, BYTES_MAX).and_then(|text| read(&text)) {
        Ok(state) => return state,
        Err(why) => why,
    };
    let aside = path.with_extension("unreadable");
    let moved = std::fs::rename(path, &aside).err();
    tracing::error!(path = %path.display(), why, ?moved, "state file unreadable and moved aside: budgets and cordons start empty");
    SavedState::default()
}

fn read(text: &str) -> Result<SavedState, String> {
    let state: StateFile = serde_json::from_str(text).map_err(|e| e.to_string())?;
    match state.version {
        VERSION => Ok(state.state),
        version => Err(format!("it is of version {version}, this gateway knows {VERSION}")),
    }
}

/// Saves the state until the gateway stops, and once more then.
pub(crate) async fn run(gateway: Gateway) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut writer = Writer::default();
    let mut saved: Option<(PathBuf, SavedState)> = None;
    loop {
        let stops = tokio::select! {
            _ = ticks.tick() => false,
            () = gateway.links.cancelled() => true,
        };
        let path = gateway.settings.now().config.state_file.clone();
        let current = path.map(|path| (path, gateway.dispatcher.saved_state()));
        if let Some((path, state)) = current.clone()
            && current != saved
        {
            let is_saved = writer.save(path, state).await;
            gateway.metrics.record_state_save(is_saved);
            saved = current.filter(|_| is_saved);
        }
        if stops {
            return;
        }
    }
}

/// Writes one file at a time, so that a hanging disk blocks one thread, not one more every few
/// seconds.
#[derive(Debug, Default)]
struct Writer(Option<JoinHandle<Result<(), String>>>);

impl Writer {
    async fn save(&mut self, path: PathBuf, state: SavedState) -> bool {
        let why = match timeout(WRITE_TIMEOUT, self.run(move || write(&path, state))).await {
            Ok(Ok(())) => return true,
            Ok(Err(why)) => why,
            Err(_) => "the disk takes too long".into(),
        };
        tracing::warn!(
            why,
            "state file not written: a restart would lose usage, spend, and cordons"
        );
        false
    }

    /// Runs `write` after any earlier write has finished.
    async fn run(
        &mut self,
        write: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        if let Some(earlier) = &mut self.0 {
            let _ = earlier.await;
        }
        let written = self.0.insert(spawn_blocking(write)).await;
        self.0 = None;
        written.unwrap_or_else(|e| Err(e.to_string()))
    }
}

fn write(path: &Path, state: SavedState) -> Result<(), String> {
    let state = StateFile { version: VERSION, state };
    let text = serde_json::to_string_pretty(&state).map_err(|e| e.to_string())?;
    if text.len() as u64 >= BYTES_MAX {
        return Err(format!("it would have {} bytes; lower users_max of the keys", text.len()));
    }
    replace(path, &(text + "\n"), MODE).map_err(|e| format!("{}: {e}", path.display()))
}

/// Restores the saved state at startup.
pub(crate) fn restore(gateway: &Gateway) {
    let settings = gateway.settings.now();
    let state = settings.config.state_file.as_deref().map(load).unwrap_or_default();
    gateway.dispatcher.restore(state, Date::today());
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn what_hangs_is_waited_for_and_not_started_again() {
        let (go, hangs) = std::sync::mpsc::sync_channel(1);
        let mut writer = Writer::default();
        let write = move || hangs.recv().map_err(|e| e.to_string());
        assert_eq!(writer.run(write).now_or_never(), None);
        assert_eq!(writer.run(|| unreachable!("one at a time")).now_or_never(), None);
        go.send(()).unwrap();
        assert_eq!(writer.run(|| Err("full".into())).await, Err("full".into()));
        assert_eq!(writer.run(|| Ok(())).await, Ok(()));
    }

    #[test]
    fn what_is_no_state_says_why() {
        let right = StateFile { version: VERSION, state: SavedState::default() };
        let right = serde_json::to_string(&right).unwrap();
        assert_eq!(read(&right), Ok(SavedState::default()));
        let older = right.replace(",\"cordoned\":[]", "");
        assert!(older != right && read(&older).is_ok(), "of before there were cordons in it");
        assert!(read(&right.replace(":1", ":2")).unwrap_err().contains("version 2"));
        assert!(read("{}").unwrap_err().contains("version"));
    }
}
