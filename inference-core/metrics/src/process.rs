//! The process metrics of every Prometheus client: CPU time, memory, open files, start time.

use std::path::Path;

use prometheus::Result;

use crate::MetricsBuilder;

/// Clock ticks per second in `/proc/PID/stat`: the kernel's USER_HZ, 100 wherever we run.
const TICKS: f64 = 100.0;
/// Counting open files stops at this number.
const FILES_MAX: usize = 1 << 20;

/// A snapshot of a process by the kernel; missing values are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Process {
    /// User and system time in seconds.
    pub cpu_seconds: f64,
    /// Resident memory in bytes, including mapped files.
    pub resident_bytes: u64,
    /// Number of open files.
    pub open_files: u64,
    /// Maximum number of open files.
    pub open_files_max: u64,
    /// Start time, Unix seconds.
    pub started: f64,
    /// Number of threads.
    pub threads: u64,
}

impl Process {
    /// A snapshot of this process.
    pub fn this() -> Self {
        Self::at(Path::new("/proc/self"))
    }

    /// A snapshot of another process on this machine.
    pub fn of(pid: u32) -> Self {
        Self::at(Path::new(&format!("/proc/{pid}")))
    }

    fn at(folder: &Path) -> Self {
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let boot = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        Self {
            open_files: open_files(&folder.join("fd")),
            ..Self::read(&text("stat"), &text("status"), &text("limits"), &boot)
        }
    }

    fn read(stat: &str, status: &str, limits: &str, boot: &str) -> Self {
        // The process name before the other fields may contain any character.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
        let field = |number: usize| -> f64 {
            fields.get(number - 3).and_then(|text| text.parse().ok()).unwrap_or(0.0)
        };
        let value = |text: &str, name: &str, place: usize| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().nth(place)?.parse().ok()).unwrap_or(0)
        };
        Self {
            cpu_seconds: (field(14) + field(15)) / TICKS,
            resident_bytes: value(status, "VmRSS:", 0) * 1024,
            open_files: 0,
            open_files_max: value(limits, "Max open files", 0),
            started: value(boot, "btime ", 0) as f64 + field(22) / TICKS,
            threads: value(status, "Threads:", 0),
        }
    }

    /// Adds the process families.
    ///
    /// # Errors
    /// Other families have their names.
    pub fn register(&self, builder: &mut MetricsBuilder) -> Result<()> {
        let cpu = "User and system CPU time, in seconds.";
        builder.float_counter("process_cpu_seconds_total", cpu)?.inc_by(self.cpu_seconds);
        let resident = "Memory that is resident, mapped files included, in bytes.";
        let resident = builder.gauge("process_resident_memory_bytes", resident)?;
        resident.set(self.resident_bytes as i64);
        builder.gauge("process_open_fds", "Open files.")?.set(self.open_files as i64);
        builder.gauge("process_max_fds", "Most open files.")?.set(self.open_files_max as i64);
        let started = "When the process was started, in seconds since 1970.";
        builder.float_gauge("process_start_time_seconds", started)?.set(self.started);
        builder.gauge("process_threads", "Threads of the process.")?.set(self.threads as i64);
        Ok(())
    }
}

/// Number of open files of a process. Newer kernels (6.2) report it as the folder's size; counting
/// tens of thousands of connections takes a while.
fn open_files(folder: &Path) -> u64 {
    match std::fs::metadata(folder).map_or(0, |folder| folder.len()) {
        0 => {
            let files = std::fs::read_dir(folder).map_or(0, |files| files.take(FILES_MAX).count());
            // The folder itself is open while it is read.
            (files as u64).saturating_sub(1)
        }
        size => size,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_say_how_a_process_is() {
        let stat = "42 (a b) c) S 1 42 42 0 -1 4194560 1 2 3 4 70 30 0 0 20 0 1 0 5000 6 7";
        let status = "Name:\tx\nVmRSS:\t   2048 kB\nThreads:\t7\n";
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n";
        let process = Process::read(stat, status, limits, "cpu 1\nbtime 1000\n");
        let expected = Process {
            cpu_seconds: 1.0,
            resident_bytes: 2 << 20,
            open_files: 0,
            open_files_max: 1024,
            started: 1050.0,
            threads: 7,
        };
        assert_eq!(process, expected);
        assert_eq!(Process::read("", "", "", ""), Process::default());
    }

    #[test]
    fn this_process_is_seen() {
        let Process { resident_bytes, open_files, started, threads, .. } = Process::this();
        assert!(resident_bytes > 100_000 && open_files >= 3 && threads >= 1);
        assert!(started > 1.5e9, "{started}");
        assert_eq!(Process::of(std::process::id()).started, started);
    }
}
