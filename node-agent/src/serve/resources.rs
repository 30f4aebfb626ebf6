//! Memory and pressure of engine and machine, read at most once per second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use inference_core::hardware::cgroup::Cgroup;
use inference_core::hardware::files::{Files, Root};
use inference_core::hardware::memory::available;
use inference_metrics::Process;

/// How long a sample is reused.
const KEPT: Duration = Duration::from_secs(1);

/// Kernel statistics at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct ResourceSample {
    /// The engine's process; `None` before it starts.
    pub engine: Option<Process>,
    /// Resident memory of agent and engine in bytes.
    pub resident_bytes: u64,
    /// Memory that the machine, or our cgroup, could still provide, in bytes.
    pub available_bytes: u64,
    /// Fraction of time in which a task waited, 0 to 1.
    pub pressure: Pressure,
}

/// Pressure stall information, if the kernel measures it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Pressure {
    pub cpu: Option<f32>,
    pub memory: Option<f32>,
    pub io: Option<f32>,
}

impl Pressure {
    pub(crate) fn all(self) -> impl Iterator<Item = (&'static str, f32)> {
        let all = [("cpu", self.cpu), ("memory", self.memory), ("io", self.io)];
        all.into_iter().filter_map(|(resource, share)| Some((resource, share?)))
    }

    fn read(files: &impl Files) -> Self {
        let read = |name| share(&files.text(&format!("/proc/pressure/{name}"))?);
        Self { cpu: read("cpu"), memory: read("memory"), io: read("io") }
    }
}

/// Parses the fraction of the last ten seconds from `some avg10=1.53 avg60=...`.
fn share(text: &str) -> Option<f32> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let percent = line.split(' ').find_map(|field| field.strip_prefix("avg10="))?;
    percent.parse::<f32>().ok().map(|percent| percent / 100.0)
}

/// Reads and caches samples.
#[derive(Debug, Default)]
pub(crate) struct ResourceSampler(Mutex<Option<(Instant, ResourceSample)>>);

impl ResourceSampler {
    /// The current sample, less than a second old.
    pub(crate) fn sample(&self, engine: Option<u32>) -> ResourceSample {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((when, sample)) = *last
            && when.elapsed() < KEPT
        {
            return sample;
        }
        let sample = read(engine);
        *last = Some((Instant::now(), sample));
        sample
    }
}

fn read(engine: Option<u32>) -> ResourceSample {
    let files = Root::machine();
    let engine = engine.map(Process::of);
    let of_engine = engine.map_or(0, |engine| engine.resident_bytes);
    ResourceSample {
        engine,
        resident_bytes: Process::this().resident_bytes.saturating_add(of_engine),
        available_bytes: available(&files, &Cgroup::read(&files)),
        pressure: Pressure::read(&files),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_the_share_of_the_last_ten_seconds() {
        let text = "some avg10=12.50 avg60=7.67 avg300=7.40 total=11772898963\n\
                    full avg10=99.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(share(text), Some(0.125));
        assert_eq!(share("full avg10=1.00\n"), None);
    }

    #[test]
    fn this_machine_says_how_it_is() {
        let sample = ResourceSampler::default().sample(Some(std::process::id()));
        assert!(sample.resident_bytes > 1 << 20 && sample.available_bytes > 1 << 20, "{sample:?}");
        assert!(sample.pressure.all().all(|(_, share)| (0.0..=1.0).contains(&share)));
    }
}
