//! PURE. The facts that the doctor checks: from the kernel's files, and from tests run by others.

use std::collections::BTreeSet;

use inference_core::hardware::files::Files;
use inference_core::hardware::report::Machine;
use inference_core::model_file::gguf::Header;
use inference_core::model_file::memory_plan::RequestedSettings;

use crate::engine::sandbox::Sandbox;

/// Facts about the machine. See the module.
#[derive(Debug)]
pub(crate) struct Facts {
    pub machine: Machine,
    /// All CPU frequency governors in use.
    pub governors: BTreeSet<String>,
    /// Fraction of CPU time since boot that other machines on the same host took (steal).
    pub steal: Option<f64>,
    /// Maximum number of open files of a process.
    pub open_files: Option<u64>,
    /// The service that synchronizes the clock; `None` if none is known to run.
    pub clock: Option<&'static str>,
    /// The kernels that run here, or why none do; `None` if not tested.
    pub kernel: Option<Result<String, String>>,
    /// The sandbox of an engine here, or why it could not be determined; `None` if not tested.
    pub sandbox: Option<Result<Sandbox, String>>,
    /// The folder that stores models.
    pub disk: Disk,
    pub model: Option<Model>,
    /// Each gateway to join, and its response.
    pub gateways: Vec<(String, JoinCheck)>,
}

/// A folder and its free space.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Disk {
    pub folder: String,
    /// Free bytes; `None` if unknown.
    pub free: Option<u64>,
}

/// A model and its settings.
#[derive(Debug)]
pub(crate) struct Model {
    pub file: String,
    pub bytes: u64,
    /// Header of the file, or why it cannot be read.
    pub header: Result<Header, String>,
    /// Settings to run it with.
    pub wanted: RequestedSettings,
}

/// Result of asking a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum JoinCheck {
    Accepted,
    Refused(String),
    /// No gateway is reachable there.
    Unreachable(String),
}

impl Facts {
    /// Reads the facts that are in the kernel's files.
    pub(crate) fn read(files: &impl Files, architecture: &str) -> Self {
        Self {
            machine: Machine::read(files, architecture),
            governors: governors(files),
            steal: steal(&files.text("/proc/stat").unwrap_or_default()),
            open_files: open_files(&files.text("/proc/self/limits").unwrap_or_default()),
            clock: clock(files),
            kernel: None,
            sandbox: None,
            disk: Disk::default(),
            model: None,
            gateways: Vec::new(),
        }
    }
}

fn governors(files: &impl Files) -> BTreeSet<String> {
    let folder = "/sys/devices/system/cpu/cpufreq";
    let policies = files.names(folder).into_iter().filter(|name| name.starts_with("policy"));
    policies.filter_map(|name| files.word(&format!("{folder}/{name}/scaling_governor"))).collect()
}

/// The eighth number of the first line of /proc/stat, divided by the sum of the first eight: later
/// ones are included in others.
fn steal(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|n| n.parse().ok()).take(8).collect();
    let total: u64 = ticks.iter().sum();
    Some(*ticks.get(7)? as f64 / total.max(1) as f64)
}

/// The soft limit; `None` for `unlimited`.
fn open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Detects time services by files that exist while they run.
fn clock(files: &impl Files) -> Option<&'static str> {
    const SERVICES: [(&str, &str); 5] = [
        ("/run/systemd/timesync/synchronized", "systemd-timesyncd"),
        ("/run/chrony/chronyd.pid", "chrony"),
        ("/run/chronyd.pid", "chrony"),
        ("/run/ntpd.pid", "ntpd"),
        ("/run/openntpd.pid", "openntpd"),
    ];
    SERVICES.iter().find(|(path, _)| files.text(path).is_some()).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all_time() {
        let stat = "cpu  50 0 10 30 0 0 0 10 7 0\ncpu0 1 2 3\n";
        assert_eq!(steal(stat), Some(0.1));
        assert_eq!(steal("cpu  0 0 0 0 0 0 0 0\n"), Some(0.0));
        assert_eq!(steal("cpu  1 2 3 4\n"), None, "an old kernel");
        assert_eq!(steal(""), None);
    }

    #[test]
    fn the_soft_limit_of_open_files_counts() {
        let text = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 \
                    524288               files\n";
        assert_eq!(open_files(text), Some(1024));
        assert_eq!(open_files("Max open files   unlimited  unlimited files"), None);
    }
}
