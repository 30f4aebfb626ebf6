//! The speeds that tuning measured, for planning.

use std::path::Path;

use inference_core::hardware::Kernel;
use inference_core::hardware::report::Machine;

use crate::commands::plan::capacity::Speed;
use crate::engine::flags::tuned::Fixed;
use crate::engine::tuning::cache::{CacheKey, Entry};
use crate::engine::tuning::store::Store;

/// `tune --json` prints a few kilobytes.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// From a file with the output of `tune --json`; the error is one line for the operator.
pub(crate) fn of_file(path: &Path) -> Result<Speed, String> {
    use std::io::Read;
    let fail = |e: &dyn std::fmt::Display| format!("speeds file {}: {e}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| fail(&e))?;
    file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|e| fail(&e))?;
    let entry: Entry = serde_json::from_str(&text).map_err(|e| fail(&e))?;
    speed(&entry).ok_or_else(|| fail(&"holds no measurement of what was chosen"))
}

/// The speeds measured on this machine, and the path where they are stored.
pub(crate) fn here(machine: &Machine, kernel: Kernel, digest: &str) -> Option<(Speed, String)> {
    let (store, key) = (Store::of_user(), CacheKey::new(machine, kernel, digest));
    let kept = store.read(&key)?;
    let speed = speed(kept.best(&Fixed::default())?)?;
    let path = store.path(&key)?;
    Some((speed, format!("tuned here, in {}", path.display())))
}

/// Speeds of the chosen candidate: a long prompt, and four sequences together.
fn speed(entry: &Entry) -> Option<Speed> {
    let chosen =
        |trial: &&inference_core::tools::tune::Trial| trial.candidate == entry.tuned.candidate;
    let measured = entry.found.trials.iter().find(chosen)?.measured?;
    let speed = Speed { prefill: measured.prefill, decode: measured.decode_many };
    (speed.prefill > 0.0 && speed.decode > 0.0).then_some(speed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_measurements_is_refused_with_its_name() {
        let missing = of_file(Path::new("/nonexistent/speeds.json")).unwrap_err();
        assert!(missing.starts_with("speeds file /nonexistent/speeds.json: "), "{missing}");
        let wrong = of_file(Path::new("/proc/self/status")).unwrap_err();
        assert!(wrong.contains("expected"), "{wrong}");
    }
}
