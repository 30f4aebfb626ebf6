//! PURE. Tuning results as stored in a file for each machine and model.

use inference_core::hardware::Kernel;
use inference_core::hardware::report::Machine;
use inference_core::tools::tune::SearchResult;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::engine::flags::tuned::{Fixed, Tuned};

/// Changes when the measurements or the file format do.
const FORMAT: u32 = 1;
/// Maximum entries per file: one for each combination of flags.
const ENTRIES_MAX: usize = 8;

/// What measurements depend on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CacheKey {
    /// Version of the file format.
    pub format: u32,
    /// The agent's version: its kernels may have changed.
    pub agent: String,
    /// The CPU's model name.
    pub cpu: String,
    /// Number of cores that may compute.
    pub cores: u32,
    /// Set of CPU kernels.
    pub kernel: Kernel,
    /// Memory size, rounded: the binary logarithm of its bytes.
    pub memory: u32,
    /// Fingerprint of the model file.
    pub model: String,
}

impl CacheKey {
    /// The key of this machine and a model.
    pub(crate) fn new(machine: &Machine, kernel: Kernel, model: &str) -> Self {
        let limit = machine.cgroup.memory_limit.unwrap_or(u64::MAX);
        Self {
            format: FORMAT,
            agent: env!("CARGO_PKG_VERSION").into(),
            cpu: machine.cpus.model.clone(),
            cores: machine.threads as u32,
            kernel,
            memory: machine.memory.total.min(limit).max(1).ilog2(),
            model: model.into(),
        }
    }

    pub(crate) fn file_name(&self) -> String {
        let digest = Sha256::digest(format!("{self:?}").as_bytes());
        let hex: String = digest.iter().take(16).map(|b| format!("{b:02x}")).collect();
        format!("{hex}.json")
    }
}

/// Result of one tuning run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Settings that flags had fixed.
    pub fixed: Fixed,
    /// Settings that were chosen.
    pub tuned: Tuned,
    pub found: SearchResult,
    /// Tokens per second by batch size, ascending.
    pub curve: Vec<(u32, f64)>,
    /// Time of the measurement, Unix seconds.
    pub measured_at: u64,
}

/// Contents of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CacheFile {
    /// What the results depend on.
    pub key: CacheKey,
    /// Newest first.
    pub entries: Vec<Entry>,
}

impl CacheFile {
    pub(crate) fn new(key: CacheKey) -> Self {
        Self { key, entries: Vec::new() }
    }

    /// Parses a file; the error says why it cannot be used.
    pub(crate) fn parse(text: &str, key: &CacheKey) -> Result<Self, String> {
        let file: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if file.key != *key {
            return Err("it was measured on another machine or with another model".into());
        }
        if !file.entries.iter().all(|entry| entry.tuned.is_possible()) {
            return Err("it contains impossible settings".into());
        }
        Ok(file)
    }

    /// The best result for these flags: the applicable one with the most fixed flags.
    pub(crate) fn best(&self, given: &Fixed) -> Option<&Entry> {
        let holds = self.entries.iter().filter(|entry| entry.fixed.holds_with(given));
        // Of several equal entries, the newest counts.
        holds.rev().max_by_key(|entry| entry.fixed.count())
    }

    /// The result tuned with exactly these flags.
    pub(crate) fn exact(&self, given: &Fixed) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.fixed == *given)
    }

    /// Adds an entry, replacing one with the same flags or the oldest.
    pub(crate) fn put(&mut self, entry: Entry) {
        self.entries.retain(|old| old.fixed != entry.fixed);
        self.entries.insert(0, entry);
        self.entries.truncate(ENTRIES_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inference_core::llama::FlashAttention;
    use inference_core::tools::tune::Candidate;

    fn key() -> CacheKey {
        CacheKey {
            format: FORMAT,
            agent: "1".into(),
            cpu: "Some CPU".into(),
            cores: 4,
            kernel: Kernel::Baseline,
            memory: 34,
            model: "abc".into(),
        }
    }

    fn entry(fixed: Fixed, slots: u32) -> Entry {
        let candidate = Candidate {
            threads: 3,
            flash_attention: FlashAttention::Off,
            batch_rows: 256,
            poll: 0,
        };
        let tuned = Tuned { candidate, slots };
        let found = SearchResult { best: Some(candidate), trials: Vec::new(), cut_short: false };
        Entry { fixed, tuned, found, curve: vec![(1, 40.5)], measured_at: 7 }
    }

    #[test]
    fn a_file_is_read_as_it_was_written_and_only_for_its_own_key() {
        let mut file = CacheFile::new(key());
        file.put(entry(Fixed::default(), 8));
        let text = serde_json::to_string(&file).unwrap();
        assert_eq!(CacheFile::parse(&text, &key()), Ok(file));
        let other = CacheKey { cores: 2, ..key() };
        assert!(CacheFile::parse(&text, &other).unwrap_err().contains("another machine"));
        assert_ne!(key().file_name(), other.file_name());
        assert!(CacheFile::parse(&text[..text.len() / 2], &key()).is_err());
        let odd = text.replace("\"threads\":3", "\"threads\":0");
        assert!(CacheFile::parse(&odd, &key()).unwrap_err().contains("impossible"));
    }

    #[test]
    fn more_flags_than_were_fixed_take_what_was_tuned_and_others_do_not() {
        let mut file = CacheFile::new(key());
        file.put(entry(Fixed { threads: Some(1), ..Fixed::default() }, 2));
        let slots = |file: &CacheFile, given: &Fixed| file.best(given).map(|e| e.tuned.slots);
        let one = Fixed { threads: Some(1), ..Fixed::default() };
        let more = Fixed { slots: Some(9), ..one.clone() };
        assert_eq!(slots(&file, &Fixed::default()), None, "tuned for one thread");
        assert_eq!((slots(&file, &one), slots(&file, &more)), (Some(2), Some(2)));
        file.put(entry(Fixed::default(), 8));
        assert_eq!((slots(&file, &one), slots(&file, &Fixed::default())), (Some(2), Some(8)));
        let elsewhere = Fixed { cpus: Some(vec![0]), ..Fixed::default() };
        assert_eq!(slots(&file, &elsewhere), None);
    }

    #[test]
    fn a_file_does_not_grow_for_ever_and_the_newest_of_equals_counts() {
        let mut file = CacheFile::new(key());
        for n in 1..=20 {
            file.put(entry(Fixed { threads: Some(n), ..Fixed::default() }, 4));
        }
        assert_eq!(file.entries.len(), ENTRIES_MAX);
        file.put(entry(Fixed { threads: Some(20), ..Fixed::default() }, 5));
        assert_eq!(file.entries.len(), ENTRIES_MAX);
        let given = Fixed { threads: Some(20), ..Fixed::default() };
        assert_eq!(file.exact(&given).map(|e| e.tuned.slots), Some(5));
    }
}
