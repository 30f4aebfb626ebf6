//! PURE. The machine's memory and the kernel's rules for it.

use serde::Serialize;

use super::cgroup::Cgroup;
use super::files::{Files, parse_list};

/// See the module. Sizes are bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All of the machine.
    pub total: u64,
    /// What the kernel could give without swapping.
    pub available: u64,
    /// Swap space.
    pub swap_total: u64,
    /// Free swap space.
    pub swap_free: u64,
    /// What this process may take: the least of the machine, its groups and its limits.
    pub available_here: u64,
    /// What keeps it to that.
    pub bound_by: String,
    /// `vm.overcommit_memory`: 0 guesses, 1 always, 2 never.
    pub overcommit: Option<u64>,
    /// `vm.swappiness`
    pub swappiness: Option<u64>,
    /// Bytes that may be locked; none: no limit.
    pub lockable: Option<u64>,
    /// Bytes of address space; none: no limit.
    pub address_space: Option<u64>,
    /// Bytes of a page.
    pub page: u64,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
    /// When the kernel makes room for them.
    pub huge_pages_defrag: Option<String>,
    /// The same for shared memory.
    pub huge_pages_shmem: Option<String>,
    /// Reserved huge pages.
    pub reserved: Vec<Reserved>,
    /// NUMA nodes.
    pub nodes: Vec<Node>,
}

/// Huge pages of one size that are set aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reserved {
    /// Bytes of one.
    pub size: u64,
    /// How many there are.
    pub count: u64,
    /// How many are free.
    pub free: u64,
}

/// Memory and the CPUs next to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Its CPUs in the kernel's list format.
    pub cpus: String,
    /// Its memory.
    pub total: u64,
    /// What of it is free.
    pub free: u64,
}

impl Memory {
    /// Reads it.
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

/// What this machine, and the groups of this process, could still give.
pub fn available(files: &impl Files, cgroup: &Cgroup) -> u64 {
    let info = files.text("/proc/meminfo").unwrap_or_default();
    let machine = kibibytes(&info, "MemAvailable").unwrap_or(0);
    cgroup.memory_available.map_or(machine, |left| left.min(machine))
}

/// A value of a file like /proc/meminfo, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (left, right) = line.split_once(':')?;
        let ours = left.trim().rsplit(' ').next() == Some(name);
        let number: u64 = right.trim().trim_end_matches("kB").trim().parse().ok()?;
        ours.then(|| number.saturating_mul(1024))
    })
}

/// The soft limit in a line of /proc/self/limits; none: no limit.
fn limit(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The first mapping's pages are those of the machine.
fn page(files: &impl Files) -> u64 {
    let text = files.text("/proc/self/smaps").unwrap_or_default();
    kibibytes(&text, "KernelPageSize").unwrap_or(4096)
}

/// The word in brackets, such as `madvise` in `always [madvise] never`.
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

fn nodes(files: &impl Files) -> Vec<Node> {
    let folder = "/sys/devices/system/node";
    let ids = files.text(&format!("{folder}/online")).and_then(|list| parse_list(&list));
    let read = |id: u32| {
        let info = files.text(&format!("{folder}/node{id}/meminfo"))?;
        Some(Node {
            id,
            cpus: files.word(&format!("{folder}/node{id}/cpulist")).unwrap_or_default(),
            total: kibibytes(&info, "MemTotal")?,
            free: kibibytes(&info, "MemFree").unwrap_or(0),
        })
    };
    ids.unwrap_or_default().into_iter().filter_map(read).collect()
}
