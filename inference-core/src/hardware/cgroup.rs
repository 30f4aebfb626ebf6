//! PURE. Limits that the control groups of this process impose, versions 1 and 2.
//!
//! The limit of any ancestor counts. Files: the kernel's `Documentation/admin-guide/cgroup-v2.rst`
//! and `cgroup-v1/`.

use serde::Serialize;

use super::files::Files;

/// Maximum levels between the root and a group.
const LEVELS_MAX: usize = 64;
/// Version 1 reports "no limit" as a number near this or above.
const UNLIMITED: u64 = 1 << 60;

/// The limits of a group and its ancestors.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Cgroup {
    /// CPUs that the smallest quota allows, such as 1.5. `None` without a quota.
    pub cpu_quota: Option<f64>,
    /// Path of the group with that quota.
    pub cpu_quota_of: Option<String>,
    /// Smallest memory limit, in bytes.
    pub memory_limit: Option<u64>,
    /// Bytes that this process can still allocate under every limit.
    pub(crate) memory_available: Option<u64>,
    /// Path of the group that leaves the least memory.
    pub(crate) memory_limit_of: Option<String>,
}

/// A hierarchy that contains this process: its own group and the groups above.
struct Hierarchy {
    /// Folders from this process's group up to the mount point.
    folders: Vec<String>,
}

impl Cgroup {
    /// Reads the limits; a file that cannot be read imposes none.
    pub fn read(files: &impl Files) -> Self {
        let mut all = Self::default();
        if let Some(unified) = Hierarchy::find(files, None) {
            for folder in &unified.folders {
                all.add_quota(folder, quota_v2(files, folder));
                all.add_memory(folder, memory_v2(files, folder));
            }
        }
        for folder in Hierarchy::find(files, Some("cpu")).iter().flat_map(|h| &h.folders) {
            all.add_quota(folder, quota_v1(files, folder));
        }
        for folder in Hierarchy::find(files, Some("memory")).iter().flat_map(|h| &h.folders) {
            all.add_memory(folder, memory_v1(files, folder));
        }
        all
    }

    /// Threads that the quota can keep busy, rounded down; at least 1.
    pub(crate) fn quota_threads(&self) -> Option<usize> {
        self.cpu_quota.map(|cpus| (cpus.floor() as usize).max(1))
    }

    fn add_quota(&mut self, folder: &str, quota: Option<f64>) {
        let Some(quota) = quota else { return };
        if self.cpu_quota.is_none_or(|least| quota < least) {
            self.cpu_quota = Some(quota);
            self.cpu_quota_of = Some(folder.to_string());
        }
    }

    fn add_memory(&mut self, folder: &str, memory: Option<(u64, u64)>) {
        let Some((limit, available)) = memory else { return };
        self.memory_limit = Some(self.memory_limit.map_or(limit, |least| least.min(limit)));
        if self.memory_available.is_none_or(|least| available < least) {
            self.memory_available = Some(available);
            self.memory_limit_of = Some(folder.to_string());
        }
    }
}

impl Hierarchy {
    /// Finds the hierarchy of a version 1 controller, or the unified one.
    fn find(files: &impl Files, controller: Option<&str>) -> Option<Self> {
        let own = own_path(&files.text("/proc/self/cgroup")?, controller)?;
        let (mounted, point) = mount(&files.text("/proc/self/mountinfo")?, controller)?;
        // Inside a container the mount may show only a part of the tree. A path outside of it means
        // that only the mount's own group is visible.
        let below = match own.strip_prefix(mounted.trim_end_matches('/')) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => rest,
            _ => "",
        };
        if below.split('/').any(|part| part == "..") {
            return Some(Self { folders: vec![point] });
        }
        let mut folders = vec![point.clone()];
        let mut folder = point;
        for part in below.split('/').filter(|part| !part.is_empty()).take(LEVELS_MAX) {
            folder = format!("{}/{part}", folder.trim_end_matches('/'));
            folders.push(folder.clone());
        }
        folders.reverse();
        Some(Self { folders })
    }
}

/// Path of this process's group: lines are `id:controllers:path`.
fn own_path(text: &str, controller: Option<&str>) -> Option<String> {
    text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = match controller {
            None => id == "0" && controllers.is_empty(),
            Some(name) => controllers.split(',').any(|c| c == name),
        };
        ours.then(|| path.to_string())
    })
}

/// Root and mount point of a hierarchy: fields 4 and 5 of a line of mountinfo.
fn mount(text: &str, controller: Option<&str>) -> Option<(String, String)> {
    text.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut kind = right.split(' ');
        let (name, options) = (kind.next()?, kind.nth(1)?);
        let ours = match controller {
            None => name == "cgroup2",
            Some(c) => name == "cgroup" && options.split(',').any(|option| option == c),
        };
        let mut fields = left.split(' ').skip(3);
        let (mounted, point) = (fields.next()?, fields.next()?);
        ours.then(|| (mounted.to_string(), point.to_string()))
    })
}

fn quota_v2(files: &impl Files, folder: &str) -> Option<f64> {
    let text = files.text(&format!("{folder}/cpu.max"))?;
    let mut fields = text.split_whitespace();
    let quota: f64 = fields.next()?.parse().ok()?;
    share(quota, fields.next().and_then(|p| p.parse().ok()).unwrap_or(100_000.0))
}

fn quota_v1(files: &impl Files, folder: &str) -> Option<f64> {
    let read = |name: &str| files.word(&format!("{folder}/{name}"))?.parse::<f64>().ok();
    share(read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
}

fn share(quota: f64, period: f64) -> Option<f64> {
    let cpus = quota / period;
    (quota > 0.0 && period > 0.0 && cpus.is_finite()).then_some(cpus)
}

/// Sum of the `names` entries of a `memory.stat`.
fn stat(text: &str, names: [&str; 2]) -> u64 {
    let value = |line: &str| {
        let (name, value) = line.split_once(' ')?;
        names.contains(&name).then(|| value.trim().parse::<u64>().ok())?
    };
    text.lines().filter_map(value).fold(0, u64::saturating_add)
}

/// The limit, and the bytes left below it. The kernel drops page cache for new memory, so that
/// counts as free.
fn memory_v2(files: &impl Files, folder: &str) -> Option<(u64, u64)> {
    let bound = |name: &str| files.number(&format!("{folder}/{name}"));
    // The kernel throttles a process above memory.high until it is below.
    let limit = match (bound("memory.max"), bound("memory.high")) {
        (Some(max), Some(high)) => max.min(high),
        (one, other) => one.or(other)?,
    };
    let used = bound("memory.current").unwrap_or(0);
    let text = files.text(&format!("{folder}/memory.stat")).unwrap_or_default();
    let cache = stat(&text, ["active_file", "inactive_file"]);
    Some((limit, limit.saturating_sub(used.saturating_sub(cache))))
}

fn memory_v1(files: &impl Files, folder: &str) -> Option<(u64, u64)> {
    let bound = |name: &str| files.number(&format!("{folder}/{name}"));
    let limit = bound("memory.limit_in_bytes").filter(|limit| *limit < UNLIMITED)?;
    let used = bound("memory.usage_in_bytes").unwrap_or(0);
    let text = files.text(&format!("{folder}/memory.stat")).unwrap_or_default();
    let cache = stat(&text, ["total_active_file", "total_inactive_file"]);
    Some((limit, limit.saturating_sub(used.saturating_sub(cache))))
}
