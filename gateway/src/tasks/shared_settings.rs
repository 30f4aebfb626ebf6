//! Learns what operators have set at other gateways of the store: API keys, and which nodes are
//! cordoned. Stores which nodes were cordoned here.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::context::Gateway;
use crate::store::{SettingName, Store, StoreError};

/// How often to look whether anything has changed, here or, by what the database has said, at
/// others.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often to look without a sign of a change.
const REST: Duration = Duration::from_secs(30);

/// Runs until the gateway stops.
pub(crate) async fn run(gateway: Gateway) {
    let Some(store) = gateway.store.clone() else { return };
    let mut changes = store.changes();
    changes.mark_changed();
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut shared = SharedCordons { restored: gateway.dispatcher.cordoned(), known: None };
    let mut looked = Instant::now();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = gateway.stop.cancelled() => return,
        }
        let is_changed = changes.has_changed().unwrap_or(true) || looked.elapsed() > REST;
        if !is_changed && shared.are_those_of(&gateway) {
            continue;
        }
        changes.mark_unchanged();
        looked = Instant::now();
        // The database logs what is wrong.
        if refresh(&gateway, &store, &mut shared).await.is_err() {
            changes.mark_changed();
        }
    }
}

async fn refresh(
    gateway: &Gateway,
    store: &Store,
    shared: &mut SharedCordons,
) -> Result<(), StoreError> {
    let has_keys = gateway.settings.now().config.store.as_ref().is_some_and(|s| s.has_keys);
    // Cordons are shared even if the keys cannot be read.
    let keys = match has_keys {
        true => gateway.refresh_stored_keys(store).await,
        false => Ok(()),
    };
    shared.refresh(gateway, store).await.and(keys)
}

/// The names of cordoned nodes that all gateways were last known to have.
#[derive(Debug)]
struct SharedCordons {
    /// Those of the state file.
    restored: BTreeSet<String>,
    /// `None` until the store was read.
    known: Option<(u64, BTreeSet<String>)>,
}

impl SharedCordons {
    /// True if nobody has cordoned or uncordoned a node at this gateway since.
    fn are_those_of(&self, gateway: &Gateway) -> bool {
        self.known.as_ref().is_some_and(|(_, names)| *names == gateway.dispatcher.cordoned())
    }

    async fn refresh(&mut self, gateway: &Gateway, store: &Store) -> Result<(), StoreError> {
        let revision = self.known.as_ref().map(|(revision, _)| *revision);
        let read = store.setting(SettingName::Cordons, revision).await?;
        let here = gateway.dispatcher.cordoned();
        let (revision, stored) = match (read, &self.known) {
            (Some(setting), _) => (setting.revision, names(&setting.value)),
            (None, Some((revision, names))) => (*revision, names.clone()),
            (None, None) => return Err(StoreError::Unavailable),
        };
        let before = match &self.known {
            Some((_, names)) => names.clone(),
            // Nobody has set them: those of the state file are right.
            None if revision == 0 => BTreeSet::new(),
            None => self.restored.clone(),
        };
        let merged = merge(&before, &here, &stored);
        let mut known = revision;
        if merged != stored {
            let text = serde_json::to_string(&merged).map_err(|_| StoreError::Unavailable)?;
            let replaced = store.replace_setting(SettingName::Cordons, revision, text).await?;
            // Another gateway was faster: next time.
            known = replaced.ok_or(StoreError::Unavailable)?;
        }
        let cordoned: Vec<_> = merged.difference(&here).collect();
        let uncordoned: Vec<_> = here.difference(&merged).collect();
        if !cordoned.is_empty() || !uncordoned.is_empty() {
            tracing::info!(?cordoned, ?uncordoned, "cordons of other gateways applied");
            gateway.dispatcher.set_cordons(&cordoned, &uncordoned);
        }
        self.known = Some((known, merged));
        Ok(())
    }
}

/// What others have set, with what has changed here since it was last known.
fn merge(
    before: &BTreeSet<String>,
    here: &BTreeSet<String>,
    stored: &BTreeSet<String>,
) -> BTreeSet<String> {
    let kept = stored.iter().filter(|name| here.contains(*name) || !before.contains(*name));
    kept.chain(here.difference(before)).cloned().collect()
}

fn names(text: &str) -> BTreeSet<String> {
    if text.is_empty() {
        return BTreeSet::new();
    }
    serde_json::from_str(text).unwrap_or_else(|error| {
        tracing::error!(%error, "cordons of the store cannot be read: they start empty");
        BTreeSet::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &str) -> BTreeSet<String> {
        names.chars().map(String::from).collect()
    }

    #[test]
    fn what_was_changed_here_and_elsewhere_holds() {
        for (before, here, stored, merged) in [
            ("", "", "", ""),
            ("", "", "a", "a"),
            ("", "a", "", "a"),
            ("a", "", "a", ""),
            ("a", "a", "", ""),
            ("a", "ab", "ac", "abc"),
            ("ab", "b", "ac", "c"),
            ("ab", "a", "b", ""),
        ] {
            let found = merge(&set(before), &set(here), &set(stored));
            assert_eq!(found, set(merged), "before {before}, here {here}, stored {stored}");
        }
    }
}
