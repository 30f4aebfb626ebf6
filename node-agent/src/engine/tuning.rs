//! Finds the best way to run a model on this machine, and stores it for `serve`.
//!
//! The search is [`inference_core::tools::tune`]; its trials run in a child process ([`trials`]),
//! so a candidate that crashes is only rejected. Tuning never changes settings fixed by flags.

pub(crate) mod cache;
pub(crate) mod store;
pub(crate) mod trials;

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use inference_core::hardware::Kernel;
use inference_core::hardware::files::Root;
use inference_core::hardware::report::Machine;
use inference_core::llama::FlashAttention;
use inference_core::tools::tune::{BUDGET, Candidate, Space, TRIALS, search, slots_worth};
use inference_protocol::time::unix_seconds;

use crate::engine::flags::tuned::{Fixed, Tuned};
use cache::{CacheFile, CacheKey, Entry};
use store::Store;
use trials::{Children, Setup, TrialError};

use crate::engine::flags::{EngineFlags, SettingsError};
use crate::engine::measuring;
use crate::engine::model_files::ModelFiles;
use crate::engine::options::EngineOptions;
use crate::types::progress::Progress;

/// Batch size to try besides the default.
const OTHER_ROWS: u32 = 256;

/// Why a search has no result.
#[derive(Debug)]
pub(crate) enum TuneError {
    /// The flags cannot be used with this model.
    Settings(SettingsError),
    /// The model cannot be measured at all.
    Start(TrialError),
    /// No candidate ran; the log says why each did not.
    NothingRan,
}

impl std::fmt::Display for TuneError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Settings(e) => write!(f, "{e}"),
            Self::Start(e) => write!(f, "{e}"),
            Self::NothingRan => write!(f, "no candidate ran; see the log above"),
        }
    }
}

impl std::error::Error for TuneError {}

/// A candidate on one line.
pub(crate) fn describe(c: &Candidate) -> String {
    let attention = c.flash_attention.name();
    format!(
        "threads {}, flash attention {attention}, batch rows {}, poll {}",
        c.threads, c.batch_rows, c.poll
    )
}

/// A model on this machine, with some flags.
#[derive(Debug)]
pub(crate) struct TuneJob<'a> {
    files: &'a ModelFiles,
    flags: &'a EngineFlags,
    kernel: Kernel,
    cores: u32,
    key: CacheKey,
    fixed: Fixed,
    store: Store,
}

impl<'a> TuneJob<'a> {
    /// Inspects the machine.
    pub(crate) fn new(
        files: &'a ModelFiles,
        kernel: Kernel,
        flags: &'a EngineFlags,
    ) -> Result<Self, SettingsError> {
        let machine = Machine::read(&Root::machine(), std::env::consts::ARCH);
        let key = CacheKey::new(&machine, kernel, &files.digest().to_string());
        let (fixed, store) = (flags.fixed()?, Store::of_user());
        let cores = machine.threads as u32;
        Ok(Self { files, flags, kernel, cores, key, fixed, store })
    }

    /// Settings for `serve`: the stored ones, or with `measure` newly measured ones if none are
    /// stored.
    pub(crate) fn for_serving(&self, measure: bool) -> Option<Tuned> {
        if let Some(file) = self.store.read(&self.key)
            && let Some(entry) = file.best(&self.fixed)
        {
            let path = self.store.path(&self.key).unwrap_or_default();
            tracing::info!(file = %path.display(), "using tuned settings");
            return Some(entry.tuned);
        }
        if !measure {
            let model = self.files.path().display();
            tracing::info!(
                "not tuned: run 'flotilla-agent tune {model}' or serve with --tune once to find \
                 the fastest settings for this machine"
            );
            return None;
        }
        match self.measure(BUDGET) {
            Ok(entry) => Some(entry.tuned),
            Err(why) => {
                tracing::warn!(error = %why, "tuning failed");
                None
            }
        }
    }

    /// The file with the stored results; `None` if there is no folder for it.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.store.path(&self.key)
    }

    /// The result measured with exactly these flags.
    pub(crate) fn known_exactly(&self) -> Option<Entry> {
        self.store.read(&self.key)?.exact(&self.fixed).cloned()
    }

    /// Searches, and stores the result if there is a folder for it.
    pub(crate) fn measure(&self, budget: Duration) -> Result<Entry, TuneError> {
        let base = self.flags.resolve(self.files, self.kernel, None);
        let base = base.map_err(TuneError::Settings)?.0;
        let entry = self.search(&base, budget)?;
        let mut file =
            self.store.read(&self.key).unwrap_or_else(|| CacheFile::new(self.key.clone()));
        file.put(entry.clone());
        // The result still applies to this run.
        if let Err(why) = self.store.write(&file) {
            tracing::warn!(error = why, "tuning results not stored");
        }
        Ok(entry)
    }

    fn search(&self, base: &EngineOptions, budget: Duration) -> Result<Entry, TuneError> {
        let EngineOptions { kv_type, load, sandbox, .. } = *base;
        let cpus = base.cpus.clone();
        let setup = Setup { kernel: self.kernel, kv_type, load, cpus, sandbox };
        let command = || measuring::command("tune-trials", self.files.path(), &setup);
        let candidate = Candidate {
            threads: base.threads,
            flash_attention: base.flash_attention,
            batch_rows: base.batch_rows,
            poll: base.poll,
        };
        let bar = Progress::new(None);
        let trial_bar = bar.clone();
        bar.begin("loading the weights");
        let on_trial = move |c: &Candidate| trial_bar.begin(&describe(c));
        let seconds = budget.as_secs_f64() / f64::from(TRIALS);
        let children = Children::start(command, candidate, seconds, Box::new(on_trial));
        let mut children = children.map_err(TuneError::Start)?;
        let can_distinguish_rows = children.effort().can_distinguish_rows(OTHER_ROWS);
        let space = self.space(candidate, kv_type.needs_flash_attention(), can_distinguish_rows);
        let found = search(&space, &mut children, budget);
        let best = found.best.ok_or(TuneError::NothingRan)?;
        let curve = if self.fixed.slots.is_none() { children.curve(best) } else { Vec::new() };
        bar.end();
        let slots = self.slots(base, best, slots_worth(&curve));
        Ok(Entry {
            fixed: self.fixed.clone(),
            tuned: Tuned { candidate: best, slots },
            found,
            curve,
            measured_at: unix_seconds(SystemTime::now()),
        })
    }

    /// Alternatives for settings that no flag fixes.
    fn space(&self, base: Candidate, quantized: bool, tells_rows: bool) -> Space {
        let free_threads = self.fixed.threads.is_none() && self.fixed.cpus.is_none();
        let free_attention = self.fixed.flash_attention.is_none() && !quantized;
        let free_rows = self.fixed.batch_rows.is_none() && tells_rows;
        let only = |free: bool, value: u32| if free { vec![value] } else { Vec::new() };
        Space {
            base,
            threads: if free_threads { Space::threads_beside(self.cores) } else { Vec::new() },
            flash_attention: if free_attention { vec![FlashAttention::Off] } else { Vec::new() },
            batch_rows: only(free_rows, OTHER_ROWS),
            poll: only(self.fixed.poll.is_none(), 0),
        }
    }

    /// The largest number of slots that pays off and fits into memory with no smaller context.
    fn slots(&self, base: &EngineOptions, best: Candidate, worth: u32) -> u32 {
        let fits = |slots: &u32| {
            let tuned = Tuned { candidate: best, slots: *slots };
            let resolved = self.flags.resolve(self.files, self.kernel, Some(&tuned));
            resolved.is_ok_and(|(options, _)| {
                // Fewer slots leave room for a longer context.
                let holds = options.context_tokens >= base.context_tokens;
                options.slots == *slots && options.kv_type == base.kv_type && holds
            })
        };
        let halves = std::iter::successors(Some(worth), |n| (*n > 1).then_some(n / 2));
        match self.fixed.slots {
            Some(slots) => slots,
            None => halves.into_iter().find(fits).unwrap_or(1),
        }
    }
}
