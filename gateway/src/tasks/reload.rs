//! Reloads the configuration: right away on SIGHUP, and within two seconds when one of its files
//! changes. The new configuration is read and checked as a whole. If anything is wrong with it, the
//! old one stays in effect and the log says why.

use std::path::PathBuf;
use std::time::Duration;

use flotilla_listeners::systemd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, interval, timeout};

use crate::config::files::Named;
use crate::config::{Config, load};
use crate::context::Gateway;

/// How often files are checked. A file counts as changed once two checks agree, so a file that is
/// still being written does not.
const LOOK: Duration = Duration::from_secs(1);
/// A refused configuration is tried again after this long: a file that it names may have appeared.
const AGAIN: Duration = Duration::from_secs(10);
/// Timeout for reading a few small files.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The configuration file, and SIGHUP. From here on the signal is handled; without a handler it
/// would end the process.
#[derive(Debug)]
pub struct Source {
    file: PathBuf,
    hangups: Signal,
}

impl Source {
    /// Takes the configuration from `file`.
    ///
    /// # Errors
    /// The signal handler cannot be installed.
    pub fn new(file: PathBuf) -> std::io::Result<Self> {
        Ok(Self { file, hangups: signal(SignalKind::hangup())? })
    }
}

/// Reloads the configuration whenever needed, until the gateway stops.
pub async fn run(gateway: Gateway, source: Source) {
    let Source { file, mut hangups } = source;
    let loaded = gateway.settings.now().config.files.clone();
    let mut reload = Reload { gateway, file, loaded, refused: None };
    loop {
        let asked = tokio::select! {
            asked = reload.is_due(&mut hangups) => asked,
            () = reload.gateway.links.cancelled() => return,
        };
        reload.load(asked).await;
    }
}

/// What triggers a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    BySignal,
    ByFiles,
    /// The previous try was refused.
    Again,
}

struct Reload {
    gateway: Gateway,
    file: PathBuf,
    /// Versions of the files at the last read.
    loaded: Vec<Named>,
    /// The last error, and when it occurred.
    refused: Option<(String, Instant)>,
}

impl Reload {
    async fn is_due(&self, hangups: &mut Signal) -> Asked {
        let mut looks = interval(LOOK);
        let mut last = None;
        loop {
            tokio::select! {
                _ = hangups.recv() => return Asked::BySignal,
                _ = looks.tick() => {}
            }
            let seen = Some(self.files());
            if seen == last && seen.as_ref() != Some(&self.loaded) {
                return Asked::ByFiles;
            }
            if self.refused.as_ref().is_some_and(|(_, when)| when.elapsed() >= AGAIN) {
                return Asked::Again;
            }
            last = seen;
        }
    }

    /// Current versions of the loaded configuration's files.
    fn files(&self) -> Vec<Named> {
        self.loaded.iter().map(|file| Named::now(file.path.clone())).collect()
    }

    async fn load(&mut self, asked: Asked) {
        let seen = self.files();
        // A repeated error is not logged again.
        let is_progress = asked != Asked::Again;
        if is_progress {
            systemd::notify_reloading();
        }
        let read = read(self.file.clone()).await;
        let old = self.gateway.settings.now();
        let applied = match read.and_then(|config| keeps_keys(&old.config, config)) {
            Ok(config) => self.gateway.apply(config).await,
            Err(why) => Err(why),
        };
        let (is_ok, before) = (applied.is_ok(), self.refused.take());
        if is_progress {
            systemd::notify_ready(&told(&applied));
        }
        self.loaded = seen;
        match applied {
            Ok(()) => {
                // The new configuration may name other files.
                self.loaded = self.gateway.settings.now().config.files.clone();
                tracing::info!("configuration loaded");
            }
            Err(why) => {
                if is_progress || before.is_none_or(|(told, _)| told != why) {
                    tracing::error!(why, "configuration refused; the old one stays");
                }
                self.refused = Some((why, Instant::now()));
            }
        }
        self.gateway.metrics.reloaded(is_ok);
    }
}

fn told(applied: &Result<(), String>) -> String {
    match applied {
        Ok(()) => "configuration loaded".into(),
        Err(why) => format!("configuration refused; the old one stays: {why}"),
    }
}

/// Refuses a configuration whose keys file has vanished or whose path is wrong: locking out all
/// clients would be the worse mistake. A file that never existed may still appear.
fn keeps_keys(old: &Config, new: Config) -> Result<Config, String> {
    let never_existed = !old.has_keys_file && new.keys_file == old.keys_file;
    match &new.keys_file {
        Some(path) if !new.has_keys_file && !never_existed => Err(format!(
            "keys_file: {} does not exist; for no keys write 'keys: []' into it",
            path.display()
        )),
        _ => Ok(new),
    }
}

async fn read(file: PathBuf) -> Result<Config, String> {
    let reading = tokio::task::spawn_blocking(move || load::load(&file));
    let read = timeout(READ_TIMEOUT, reading).await.map_err(|_| "it cannot be read in time")?;
    read.map_err(|e| e.to_string())?
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}
