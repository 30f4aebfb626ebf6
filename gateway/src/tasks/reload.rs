//! Reloads the configuration: right away on SIGHUP, and within two seconds when one of its files
//! changes. The new configuration is read and checked as a whole. If anything is wrong with it, the
//! old one stays in effect and the log says why.

use std::fmt::{self, Display, Formatter};
use std::path::PathBuf;
use std::time::Duration;

use flotilla_listeners::socket::BindError;
use flotilla_listeners::systemd;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinError;
use tokio::time::{Instant, interval, timeout};

use crate::config::files::Named;
use crate::config::yaml::Problem;
use crate::config::{Config, load};
use crate::context::Gateway;

/// How often files are checked. A file counts as changed once two checks agree, so a file that is
/// still being written does not.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A refused configuration is tried again after this long: a file that it names may have appeared.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
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
        let trigger = tokio::select! {
            trigger = reload.wait_for_trigger(&mut hangups) => trigger,
            () = reload.gateway.links.cancelled() => return,
        };
        reload.load(trigger).await;
    }
}

/// What triggers a reload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReloadTrigger {
    Signal,
    FileChange,
    /// The previous try was refused.
    Retry,
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
    async fn wait_for_trigger(&self, hangups: &mut Signal) -> ReloadTrigger {
        let mut ticks = interval(CHECK_INTERVAL);
        let mut last = None;
        loop {
            tokio::select! {
                _ = hangups.recv() => return ReloadTrigger::Signal,
                _ = ticks.tick() => {}
            }
            let seen = Some(self.files());
            if seen == last && seen.as_ref() != Some(&self.loaded) {
                return ReloadTrigger::FileChange;
            }
            if self.refused.as_ref().is_some_and(|(_, when)| when.elapsed() >= RETRY_INTERVAL) {
                return ReloadTrigger::Retry;
            }
            last = seen;
        }
    }

    /// Current versions of the loaded configuration's files.
    fn files(&self) -> Vec<Named> {
        self.loaded.iter().map(|file| Named::now(file.path.clone())).collect()
    }

    async fn load(&mut self, trigger: ReloadTrigger) {
        let seen = self.files();
        // A repeated error is not logged again.
        let is_new = trigger != ReloadTrigger::Retry;
        if is_new {
            systemd::notify_reloading();
        }
        let read = read(self.file.clone()).await;
        let old = self.gateway.settings.now();
        let applied = match read.and_then(|config| check_keys_file(&old.config, config)) {
            Ok(config) => self.gateway.apply(config).await.map_err(Rejection::Bind),
            Err(rejection) => Err(rejection),
        };
        let (is_ok, before) = (applied.is_ok(), self.refused.take());
        if is_new {
            systemd::notify_ready(&status_text(&applied));
        }
        self.loaded = seen;
        match applied {
            Ok(()) => {
                // The new configuration may name other files.
                self.loaded = self.gateway.settings.now().config.files.clone();
                tracing::info!("configuration loaded");
            }
            Err(rejection) => {
                let why = rejection.to_string();
                if is_new || before.is_none_or(|(last, _)| last != why) {
                    tracing::error!(why, "configuration refused; the old one stays");
                }
                self.refused = Some((why, Instant::now()));
            }
        }
        self.gateway.metrics.record_reload(is_ok);
    }
}

fn status_text(applied: &Result<(), Rejection>) -> String {
    match applied {
        Ok(()) => "configuration loaded".into(),
        Err(why) => format!("configuration refused; the old one stays: {why}"),
    }
}

/// Why a reload was rejected.
#[derive(Debug)]
enum Rejection {
    /// The files could not be read in time.
    Timeout,
    /// The configuration is invalid.
    Invalid(Vec<Problem>),
    /// The keys file has vanished.
    KeysFileMissing(PathBuf),
    /// A listener cannot be bound.
    Bind(BindError),
    /// The task that reads the files failed.
    Task(JoinError),
}

impl Display for Rejection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("reading its files timed out"),
            Self::Invalid(problems) => {
                let problems: Vec<String> = problems.iter().map(Problem::to_string).collect();
                f.write_str(&problems.join("; "))
            }
            Self::KeysFileMissing(path) => write!(
                f,
                "keys_file: {} does not exist; if there are no keys, write 'keys: []' into it",
                path.display()
            ),
            Self::Bind(error) => error.fmt(f),
            Self::Task(error) => error.fmt(f),
        }
    }
}

/// Refuses a configuration whose keys file has vanished or whose path is wrong: locking out all
/// clients would be the worse mistake. A file that never existed may still appear.
fn check_keys_file(old: &Config, new: Config) -> Result<Config, Rejection> {
    let never_existed = !old.has_keys_file && new.keys_file == old.keys_file;
    match &new.keys_file {
        Some(path) if !new.has_keys_file && !never_existed => {
            Err(Rejection::KeysFileMissing(path.clone()))
        }
        _ => Ok(new),
    }
}

async fn read(file: PathBuf) -> Result<Config, Rejection> {
    let reading = tokio::task::spawn_blocking(move || load::load(&file));
    let read = timeout(READ_TIMEOUT, reading).await.map_err(|_| Rejection::Timeout)?;
    read.map_err(Rejection::Task)?.map_err(Rejection::Invalid)
}
