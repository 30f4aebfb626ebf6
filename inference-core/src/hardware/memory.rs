//! PURE. The machine's memory, and the kernel's settings for it.

use serde::Serialize;

use super::cgroup::Cgroup;
use super::files::{Files, parse_list};

/// Memory facts. See the module. Sizes are in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Total memory of the machine.
    pub total: u64,
    /// Memory that the kernel could provide without swapping.
    pub available: u64,
    /// Total swap space.
    pub swap_total: u64,
    /// Free swap space.
    pub(crate) swap_free: u64,
    /// Memory that this process may use: the minimum of the machine, its cgroups and its resource
    /// limits.
    pub available_here: u64,
    /// What imposes that minimum.
    pub bound_by: String,
    /// `vm.overcommit_memory`: 0 heuristic, 1 always, 2 never.
    pub overcommit: Option<u64>,
    /// `vm.swappiness`, 0 to 200.
    pub swappiness: Option<u64>,
    /// Limit for locked memory; `None` is unlimited.
    pub lockable: Option<u64>,
    /// Limit of the address space; `None` is unlimited.
    pub address_space: Option<u64>,
    /// Page size.
    pub page: u64,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
    /// The `defrag` setting: when the kernel compacts memory for huge pages.
    pub(crate) huge_pages_defrag: Option<String>,
    /// The `shmem_enabled` setting, for shared memory.
    pub(crate) huge_pages_shmem: Option<String>,
    /// Reserved huge pages, by size.
    pub(crate) reserved: Vec<Reserved>,
    /// NUMA nodes.
    pub nodes: Vec<NumaNode>,
}

/// Reserved huge pages of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Reserved {
    /// Size of one page in bytes.
    pub(crate) size: u64,
    /// Number of reserved pages.
    pub(crate) count: u64,
    /// Number of free pages.
    pub(crate) free: u64,
}

/// A NUMA node: memory and the CPUs next to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NumaNode {
    /// Node number.
    pub id: u32,
    /// Its CPUs, in the kernel's list format.
    pub cpus: String,
    /// Its memory in bytes.
    pub total: u64,
    /// Its free memory in bytes.
    pub free: u64,
}

impl Memory {
    /// Reads the kernel's files; what cannot be read is 0 or `None`.
    pub fn read(files: &impl Files, cgroup: &Cgroup) -> Self {
        let info = files.text("/proc/meminfo").unwrap_or_default();
        let kib = |name: &str| kibibytes(&info, name);
        let guess = || kib("MemFree").unwrap_or(0).saturating_add(kib("Cached").unwrap_or(0));
        let available = kib("MemAvailable").unwrap_or_else(guess);
        let limits = files.text("/proc/self/limits").unwrap_or_default();
        let address_space = limit(&limits, "Max address space");
        let mut memory = Self {
            total: kib("MemTotal").unwrap_or(0),
            available,
            swap_total: kib("SwapTotal").unwrap_or(0),
            swap_free: kib("SwapFree").unwrap_or(0),
            overcommit: files.number("/proc/sys/vm/overcommit_memory"),
            swappiness: files.number("/proc/sys/vm/swappiness"),
            lockable: limit(&limits, "Max locked memory"),
            address_space,
            page: page(files),
            huge_pages: chosen(files, "enabled"),
            huge_pages_defrag: chosen(files, "defrag"),
            huge_pages_shmem: chosen(files, "shmem_enabled"),
            reserved: reserved(files),
            nodes: nodes(files),
            ..Self::default()
        };
        memory.bound(cgroup);
        memory
    }

    fn bound(&mut self, cgroup: &Cgroup) {
        (self.available_here, self.bound_by) = (self.available, "the machine".into());
        if let Some(left) = cgroup.memory_available.filter(|left| *left < self.available_here) {
            let group = cgroup.memory_limit_of.as_deref().unwrap_or_default();
            (self.available_here, self.bound_by) = (left, format!("the control group {group}"));
        }
        if let Some(space) = self.address_space.filter(|space| *space < self.available_here) {
            (self.available_here, self.bound_by) = (space, "RLIMIT_AS".into());
        }
    }
}

/// Memory that the machine and the cgroups of this process can still provide, in bytes.
pub fn available(files: &impl Files, cgroup: &Cgroup) -> u64 {
    let info = files.text("/proc/meminfo").unwrap_or_default();
    let machine = kibibytes(&info, "MemAvailable").unwrap_or(0);
    cgroup.memory_available.map_or(machine, |left| left.min(machine))
}

/// A value of a file such as /proc/meminfo, converted to bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (left, right) = line.split_once(':')?;
        let ours = left.trim().rsplit(' ').next() == Some(name);
        let number: u64 = right.trim().trim_end_matches("kB").trim().parse().ok()?;
        ours.then(|| number.saturating_mul(1024))
    })
}

/// The soft limit in a line of /proc/self/limits; `None` if unlimited.
fn limit(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The page size of this process's first mapping.
fn page(files: &impl Files) -> u64 {
    let text = files.text("/proc/self/smaps").unwrap_or_default();
    kibibytes(&text, "KernelPageSize").unwrap_or(4096)
}

/// The selected word, in brackets: `madvise` in `always [madvise] never`.
fn chosen(files: &impl Files, name: &str) -> Option<String> {
    let text = files.text(&format!("/sys/kernel/mm/transparent_hugepage/{name}"))?;
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word.to_string())
}

fn reserved(files: &impl Files) -> Vec<Reserved> {
    let folder = "/sys/kernel/mm/hugepages";
    let read = |name: String| {
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let number = |file: &str| files.number(&format!("{folder}/{name}/{file}"));
        let count = number("nr_hugepages").filter(|n| *n > 0)?;
        let free = number("free_hugepages").unwrap_or(0);
        Some(Reserved { size: kib.checked_mul(1024)?, count, free })
    };
    files.names(folder).into_iter().filter_map(read).collect()
}

fn nodes(files: &impl Files) -> Vec<NumaNode> {
    let folder = "/sys/devices/system/node";
    let ids = files.text(&format!("{folder}/online")).and_then(|list| parse_list(&list));
    let read = |id: u32| {
        let info = files.text(&format!("{folder}/node{id}/meminfo"))?;
        Some(NumaNode {
            id,
            cpus: files.word(&format!("{folder}/node{id}/cpulist")).unwrap_or_default(),
            total: kibibytes(&info, "MemTotal")?,
            free: kibibytes(&info, "MemFree").unwrap_or(0),
        })
    };
    ids.unwrap_or_default().into_iter().filter_map(read).collect()
}

/// Numbers of the nodes with memory whose CPUs this process may use.
pub(crate) fn nodes_in_use(files: &impl Files) -> Vec<u32> {
    let status = files.text("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let Some(allowed) = allowed.and_then(parse_list) else { return Vec::new() };
    let is_used = |node: &NumaNode| {
        let cpus = parse_list(&node.cpus).unwrap_or_default();
        node.total > 0 && cpus.iter().any(|cpu| allowed.contains(cpu))
    };
    nodes(files).into_iter().filter(is_used).map(|node| node.id).collect()
}

#[cfg(test)]
mod tests {
    use super::super::files::FakeFiles;
    use super::*;

    #[test]
    fn nodes_in_use_have_memory_and_a_cpu_that_the_process_may_use() {
        let node = |files: FakeFiles, id: u32, cpus: &str, kib: u32| {
            let folder = format!("/sys/devices/system/node/node{id}");
            let info = format!("Node {id} MemTotal:  {kib} kB\nNode {id} MemFree:  1 kB\n");
            files.file(&format!("{folder}/meminfo"), &info).file(&format!("{folder}/cpulist"), cpus)
        };
        let machine = |allowed: &str| {
            let files = FakeFiles::default()
                .file("/sys/devices/system/node/online", "0-3\n")
                .file("/proc/self/status", &format!("Name: x\nCpus_allowed_list:\t{allowed}\n"));
            let files = node(files, 0, "0-3,8-11\n", 4_000_000);
            let files = node(files, 1, "4-7\n", 4_000_000);
            // Memory without CPUs, as of an accelerator, and CPUs without memory.
            let files = node(files, 2, "\n", 4_000_000);
            node(files, 3, "12-15\n", 0)
        };
        for (allowed, expected) in [
            ("0-15", vec![0, 1]),
            ("7-8", vec![0, 1]),
            ("0-3", vec![0]),
            ("12", vec![]),
            ("nonsense", vec![]),
        ] {
            assert_eq!(nodes_in_use(&machine(allowed)), expected, "{allowed}");
        }
        assert!(nodes_in_use(&FakeFiles::default()).is_empty());
    }
}
