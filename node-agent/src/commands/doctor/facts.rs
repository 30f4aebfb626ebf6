//! PURE. What the doctor looks at: what stands in the kernel's files, and what others found out.

use std::collections::BTreeSet;

use inference_core::hardware::files::Files;
use inference_core::hardware::report::Machine;
use inference_core::model_file::gguf::Header;
use inference_core::model_file::memory_plan::Wanted;

use crate::engine::sandbox::Sandbox;

/// See the module.
#[derive(Debug)]
pub struct Facts {
    /// CPUs, memory, control groups.
    pub machine: Machine,
    /// How the kernel chooses the cores' speed: each way that is in use.
    pub governors: BTreeSet<String>,
    /// The share of the CPUs' time that other machines on the same host took, since the start.
    pub steal: Option<f64>,
    /// Files that a process may have open.
    pub open_files: Option<u64>,
    /// Who keeps the clock right; none: nobody that we know.
    pub clock: Option<&'static str>,
    /// The kernels that run here, or why none do; none: not tried.
    pub kernel: Option<Result<String, String>>,
    /// What an engine would be confined by here, or why that could not be found out; none: not
    /// tried.
    pub sandbox: Option<Result<Sandbox, String>>,
    /// Where models are kept.
    pub disk: Disk,
    /// The model that is to be served.
    pub model: Option<Model>,
    /// Each gateway that is to be joined, and what it said.
    pub gateways: Vec<(String, Reached)>,
}

/// A folder and its room.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Disk {
    /// The folder.
    pub folder: String,
    /// Bytes that are free there; none: it cannot be looked at.
    pub free: Option<u64>,
}

/// A model and how it is to be run.
#[derive(Debug)]
pub struct Model {
    /// Its file.
    pub file: String,
    /// Bytes of it.
    pub bytes: u64,
    /// What stands in it, or why it cannot be read.
    pub header: Result<Header, String>,
    /// How it is to be run.
    pub wanted: Wanted,
}

/// What became of a visit to a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reached {
    /// It would let us in.
    Welcome,
    /// It would not.
    Refused(String),
    /// There is no gateway, or no way to it.
    Unreachable(String),
}

impl Facts {
    /// What stands in files.
    pub fn read(files: &impl Files, architecture: &str) -> Self {
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

/// The eighth number of the first line of /proc/stat, of the first eight: those after it are parts
/// of others.
fn steal(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|n| n.parse().ok()).take(8).collect();
    let total: u64 = ticks.iter().sum();
    Some(*ticks.get(7)? as f64 / total.max(1) as f64)
}

/// The soft limit; `unlimited` is none.
fn open_files(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Services leave these behind while they run.
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
