//! PURE. The CPUs of a machine, and those that this process may use.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::files::{Files, parse_list};

/// A core is an efficiency core if its speed is below this percentage of the fastest one's.
const EFFICIENCY_PERCENT: u64 = 75;
const CPUS: &str = "/sys/devices/system/cpu";

/// CPU topology and features. See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Cpus {
    /// Model name by its vendor.
    pub model: String,
    pub(crate) sockets: usize,
    /// Physical cores of the machine.
    pub cores: usize,
    /// Logical CPUs of the machine.
    pub logical: usize,
    /// Physical cores that the affinity mask allows.
    pub cores_allowed: usize,
    /// Logical CPUs that the affinity mask allows.
    pub(crate) logical_allowed: usize,
    /// True if cores run several threads (SMT).
    pub smt: bool,
    /// Performance and efficiency cores, on a hybrid CPU.
    pub hybrid: Option<Hybrid>,
    /// Size of the largest cache that one CPU sees, in bytes; 0 if unknown.
    pub cache_bytes: u64,
    /// True if the CPU reports a hypervisor.
    pub(crate) hypervisor: bool,
    /// Feature flags that the kernel reports.
    #[serde(skip)]
    pub flags: BTreeSet<String>,
}

/// Cores of a hybrid CPU that the affinity mask allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hybrid {
    /// Fast cores.
    pub(crate) performance_cores: usize,
    /// Slow cores.
    pub(crate) efficiency_cores: usize,
    /// The source of the classification.
    pub(crate) told_by: &'static str,
}

/// One logical CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Logical {
    id: u32,
    core: String,
    socket: String,
}

impl Cpus {
    /// Reads them from the kernel's files.
    pub fn read(files: &impl Files) -> Self {
        let info = files.text("/proc/cpuinfo").unwrap_or_default();
        let all = logical(files, &info);
        let allowed = allowed(files, &all);
        let cores = |all: &[Logical]| all.iter().map(|l| &l.core).collect::<BTreeSet<_>>().len();
        let sockets: BTreeSet<&String> = all.iter().map(|l| &l.socket).collect();
        let flags = flags(&info);
        Self {
            model: model(files, &info),
            sockets: sockets.len().max(1),
            cores: cores(&all).max(1),
            logical: all.len().max(1),
            cores_allowed: cores(&allowed).max(1),
            logical_allowed: allowed.len().max(1),
            smt: cores(&all) < all.len(),
            hybrid: hybrid(files, &allowed),
            cache_bytes: cache_bytes(files),
            hypervisor: flags.contains("hypervisor")
                || files.text("/sys/hypervisor/type").is_some(),
            flags,
        }
    }

    /// Number of cores to compute on. A hybrid CPU counts its performance cores only: the slow ones
    /// would hold up the fast ones at every barrier.
    pub(crate) fn compute_cores(&self) -> usize {
        self.hybrid.as_ref().map_or(self.cores_allowed, |h| h.performance_cores).max(1)
    }
}

/// Value of the first line with this key.
fn first<'a>(info: &'a str, key: &str) -> Option<&'a str> {
    info.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim())
    })
}

fn flags(info: &str) -> BTreeSet<String> {
    let list = first(info, "flags").or_else(|| first(info, "Features")).unwrap_or_default();
    list.split_whitespace().map(String::from).collect()
}

fn model(files: &impl Files, info: &str) -> String {
    if let Some(name) = first(info, "model name").filter(|name| !name.is_empty()) {
        return name.to_string();
    }
    let board = files.text("/sys/firmware/devicetree/base/model");
    let board = board.map(|text| text.trim_end_matches('\0').trim().to_string());
    let part = match (first(info, "CPU implementer"), first(info, "CPU part")) {
        (Some("0x41"), Some(part)) => arm_part(part).map(String::from),
        (Some(maker), Some(part)) => Some(format!("CPU {maker}/{part}")),
        _ => None,
    };
    match (board.filter(|b| !b.is_empty()), part) {
        (Some(board), Some(part)) => format!("{board} ({part})"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "unknown".into(),
    }
}

/// Names of ARM's own cores by part number. Source: Arm's product documentation.
fn arm_part(part: &str) -> Option<&'static str> {
    Some(match part {
        "0xd03" => "Cortex-A53",
        "0xd05" => "Cortex-A55",
        "0xd08" => "Cortex-A72",
        "0xd0b" => "Cortex-A76",
        "0xd0c" => "Neoverse N1",
        "0xd40" => "Neoverse V1",
        "0xd41" => "Cortex-A78",
        "0xd49" => "Neoverse N2",
        "0xd4f" => "Neoverse V2",
        "0xd84" => "Neoverse V3",
        "0xd8e" => "Neoverse N3",
        _ => return None,
    })
}

/// All logical CPUs that are online: from /sys, or else from /proc/cpuinfo.
fn logical(files: &impl Files, info: &str) -> Vec<Logical> {
    let online = files.text(&format!("{CPUS}/online")).and_then(|list| parse_list(&list));
    let read = |id: u32| {
        let topology = format!("{CPUS}/cpu{id}/topology");
        let core = files
            .word(&format!("{topology}/core_cpus_list"))
            .or_else(|| files.word(&format!("{topology}/thread_siblings_list")))?;
        let socket = files.word(&format!("{topology}/physical_package_id"))?;
        Some(Logical { id, core, socket })
    };
    let all = online.and_then(|ids| ids.into_iter().map(read).collect::<Option<Vec<_>>>());
    all.filter(|all| !all.is_empty()).unwrap_or_else(|| logical_of(info))
}

fn logical_of(info: &str) -> Vec<Logical> {
    let mut all = Vec::new();
    for block in info.split("\n\n") {
        let Some(id) = first(block, "processor").and_then(|n| n.parse().ok()) else { continue };
        let socket = first(block, "physical id").unwrap_or("0").to_string();
        let core = match first(block, "core id") {
            Some(core) => format!("{socket}/{core}"),
            None => format!("cpu {id}"),
        };
        all.push(Logical { id, core, socket });
    }
    all
}

fn allowed(files: &impl Files, all: &[Logical]) -> Vec<Logical> {
    let status = files.text("/proc/self/status").unwrap_or_default();
    let list = first(&status, "Cpus_allowed_list").and_then(parse_list);
    let Some(ids) = list else { return all.to_vec() };
    let ids: BTreeSet<u32> = ids.into_iter().collect();
    all.iter().filter(|l| ids.contains(&l.id)).cloned().collect()
}

/// Classifies fast and slow cores by the kernel's core types (x86), by capacity (ARM), or by
/// maximum frequency.
fn hybrid(files: &impl Files, allowed: &[Logical]) -> Option<Hybrid> {
    let small = files.text("/sys/devices/cpu_atom/cpus").and_then(|list| parse_list(&list));
    if let Some(small) = small {
        let small: BTreeSet<u32> = small.into_iter().collect();
        return split(allowed, |cpu| Some(!small.contains(&cpu)), "core types");
    }
    for (file, told_by) in
        [("cpu_capacity", "cpu_capacity"), ("cpufreq/cpuinfo_max_freq", "highest frequency")]
    {
        let speed =
            |l: &Logical| Some((l.id, files.number(&format!("{CPUS}/cpu{}/{file}", l.id))?));
        let speeds: BTreeMap<u32, u64> = allowed.iter().filter_map(speed).collect();
        let fastest = speeds.values().copied().max().unwrap_or(0);
        let fast = |cpu: u32| {
            let speed = speeds.get(&cpu)?;
            Some(speed.saturating_mul(100) >= fastest.saturating_mul(EFFICIENCY_PERCENT))
        };
        if let Some(hybrid) = split(allowed, fast, told_by) {
            return Some(hybrid);
        }
    }
    None
}

fn split(
    allowed: &[Logical],
    fast: impl Fn(u32) -> Option<bool>,
    told_by: &'static str,
) -> Option<Hybrid> {
    let (mut performance, mut efficiency) = (BTreeSet::new(), BTreeSet::new());
    for cpu in allowed {
        let kind = if fast(cpu.id)? { &mut performance } else { &mut efficiency };
        kind.insert(&cpu.core);
    }
    let both = !performance.is_empty() && !efficiency.is_empty();
    both.then_some(Hybrid {
        performance_cores: performance.len(),
        efficiency_cores: efficiency.len(),
        told_by,
    })
}

/// Size of the largest cache of the first CPU, from entries such as `266240K`.
fn cache_bytes(files: &impl Files) -> u64 {
    let folder = format!("{CPUS}/cpu0/cache");
    let size = |name: String| {
        let text = files.word(&format!("{folder}/{name}/size"))?;
        let (digits, factor) = match text.chars().last()? {
            'K' => (text.trim_end_matches('K'), 1 << 10),
            'M' => (text.trim_end_matches('M'), 1 << 20),
            _ => (text.as_str(), 1),
        };
        digits.parse::<u64>().ok()?.checked_mul(factor)
    };
    files.names(&folder).into_iter().filter_map(size).max().unwrap_or(0)
}
