//! PURE. The machine as a node sees it: facts, derived values, and warnings.

use std::fmt::{Display, Formatter, Result};

use serde::Serialize;

use super::bandwidth::Bandwidth;
use super::cgroup::Cgroup;
use super::cpus::Cpus;
use super::files::Files;
use super::memory::Memory;
use super::simd::{Level, Simd, claims};
use crate::types::units::{bytes, rate};

/// Swapping out a model costs more than dropping page cache; a swappiness above this makes it
/// likely.
const SWAPPINESS_HIGH: u64 = 10;

/// Hardware report. See the module.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// CPU architecture by its Rust name.
    pub architecture: String,
    /// Kind of container that this process runs in, if detected.
    pub container: Option<String>,
    /// CPU topology and features.
    pub cpus: Cpus,
    /// Limits of the control groups.
    pub cgroup: Cgroup,
    /// Memory facts.
    pub memory: Memory,
    /// Vector instruction levels.
    pub simd: Vec<Simd>,
    /// Number of compute threads.
    pub threads: usize,
    /// Memory bandwidth measured with these threads.
    pub bandwidth: Option<Bandwidth>,
    /// Warnings, in plain words.
    pub warnings: Vec<String>,
}

impl Machine {
    /// Reads everything that the kernel's files tell; measures and tests nothing.
    pub fn read(files: &impl Files, architecture: &str) -> Self {
        let cpus = Cpus::read(files);
        let cgroup = Cgroup::read(files);
        let memory = Memory::read(files, &cgroup);
        let quota = cgroup.quota_threads().unwrap_or(usize::MAX);
        let mut machine = Self {
            kernel: files.word("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into()),
            architecture: architecture.to_string(),
            container: container(files),
            simd: claims(architecture, &cpus.flags),
            threads: cpus.compute_cores().min(quota).max(1),
            cpus,
            cgroup,
            memory,
            bandwidth: None,
            warnings: Vec::new(),
        };
        machine.warnings = machine.warn();
        machine
    }

    /// Adds the result of a test run; `claimed` is CPUID's claim, in addition to the kernel's.
    pub fn add_trial(&mut self, level: Level, claimed: bool, runs: Option<bool>) {
        for simd in self.simd.iter_mut().filter(|s| s.level == level) {
            simd.claimed |= claimed;
            simd.runs = runs;
        }
        self.warnings = self.warn();
    }

    fn warn(&self) -> Vec<String> {
        let mut all = Vec::new();
        self.warn_of_cpus(&mut all);
        self.warn_of_memory(&mut all);
        let dead = |s: &&Simd| s.claimed && s.runs == Some(false);
        for simd in self.simd.iter().filter(dead) {
            let name = simd.level.name();
            all.push(format!("{name} is advertised but kills the process: not used"));
        }
        all
    }

    fn warn_of_cpus(&self, all: &mut Vec<String>) {
        let threads = self.threads;
        let many = if threads == 1 { "thread" } else { "threads" };
        if let Some(quota) = self.cgroup.cpu_quota.filter(|q| *q < self.cpus.cores_allowed as f64) {
            let group = self.cgroup.cpu_quota_of.as_deref().unwrap_or_default();
            all.push(format!("quota of {quota} CPUs ({group}): {threads} {many}"));
        }
        let (allowed, cores) = (self.cpus.cores_allowed, self.cpus.cores);
        if allowed < cores {
            all.push(format!("the affinity mask allows {allowed} of {cores} cores"));
        }
        if let Some(hybrid) = &self.cpus.hybrid {
            let (fast, slow) = (hybrid.performance_cores, hybrid.efficiency_cores);
            all.push(format!(
                "{fast} fast and {slow} slow cores: one thread for each fast one, or the slow \
                 ones would hold them up"
            ));
        }
    }

    fn warn_of_memory(&self, all: &mut Vec<String>) {
        let memory = &self.memory;
        let swappiness = memory.swappiness.unwrap_or(60);
        if memory.swap_total > 0 && swappiness > SWAPPINESS_HIGH {
            all.push(format!(
                "swap is on and vm.swappiness is {swappiness}: an idle model may be swapped out; \
                 set it to {SWAPPINESS_HIGH} or less"
            ));
        }
        if memory.huge_pages.as_deref() == Some("never") {
            all.push(
                "THP is never: weights and cells take small pages, which costs some speed; \
                 set /sys/kernel/mm/transparent_hugepage/enabled to madvise"
                    .into(),
            );
        }
        if memory.overcommit == Some(2) {
            all.push("vm.overcommit_memory is 2: large buffers may be refused".into());
        }
        if let Some(space) = memory.address_space {
            all.push(format!(
                "RLIMIT_AS is {}: mapped model files count too; remove the limit",
                bytes(space)
            ));
        }
        if memory.nodes.iter().filter(|n| n.total > 0).count() > 1 {
            let count = memory.nodes.len();
            all.push(format!(
                "{count} NUMA nodes: run one node of the fleet on each, bound to its CPUs and memory"
            ));
        }
        if memory.total == 0 {
            all.push("/proc/meminfo cannot be read: the memory is unknown".into());
        }
    }
}

/// Detects the kind of container from traces of its runtime.
fn container(files: &impl Files) -> Option<String> {
    let exists = |path: &str| files.text(path).is_some();
    let groups = files.text("/proc/self/cgroup").unwrap_or_default();
    let secrets = "/var/run/secrets/kubernetes.io/serviceaccount";
    if groups.contains("kubepods") || !files.names(secrets).is_empty() {
        return Some("kubernetes".into());
    }
    if exists("/.dockerenv") || groups.contains("/docker") {
        return Some("docker".into());
    }
    if exists("/run/.containerenv") || groups.contains("libpod") {
        return Some("podman".into());
    }
    groups.contains("/lxc").then(|| "lxc".into())
}

fn yes(flag: bool) -> &'static str {
    if flag { "yes" } else { "no" }
}

impl Display for Machine {
    /// Writes a multi-line table without a trailing newline.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let (cpus, memory) = (&self.cpus, &self.memory);
        writeln!(f, "cpu             {}", cpus.model)?;
        writeln!(
            f,
            "cores           {}, sockets {}, logical CPUs {}; allowed: {} cores, {} logical CPUs",
            cpus.cores, cpus.sockets, cpus.logical, cpus.cores_allowed, cpus.logical_allowed
        )?;
        if let Some(hybrid) = &cpus.hybrid {
            let (fast, slow) = (hybrid.performance_cores, hybrid.efficiency_cores);
            writeln!(f, "kinds           {fast} fast, {slow} slow (by {})", hybrid.told_by)?;
        }
        if let Some(quota) = self.cgroup.cpu_quota {
            writeln!(f, "quota           {quota} CPUs")?;
        }
        writeln!(f, "threads         {}", self.threads)?;
        writeln!(f, "largest cache   {}", bytes(cpus.cache_bytes))?;
        writeln!(
            f,
            "kernel          {} ({}), virtual machine: {}, container: {}",
            self.kernel,
            self.architecture,
            yes(cpus.hypervisor),
            self.container.as_deref().unwrap_or("no")
        )?;
        writeln!(
            f,
            "memory          {}, available {}",
            bytes(memory.total),
            bytes(memory.available)
        )?;
        if let Some(limit) = self.cgroup.memory_limit {
            writeln!(f, "memory limit    {}", bytes(limit))?;
        }
        let by = &memory.bound_by;
        writeln!(f, "for the model   {} (bound by {by})", bytes(memory.available_here))?;
        self.pages(f)?;
        self.vectors(f)?;
        if let Some(speed) = &self.bandwidth {
            let (best, median) = (rate(speed.best), rate(speed.median));
            write!(
                f,
                "\nmemory speed    {best} best, {median} median of reads with {} threads over {}",
                speed.threads,
                bytes(speed.buffer)
            )?;
        }
        self.warnings.iter().try_for_each(|warning| write!(f, "\nwarning: {warning}"))
    }
}

impl Machine {
    fn pages(&self, f: &mut Formatter<'_>) -> Result {
        let memory = &self.memory;
        let word = |word: &Option<String>| word.clone().unwrap_or_else(|| "unknown".into());
        let limit = |limit: Option<u64>| limit.map_or_else(|| "no limit".into(), bytes);
        writeln!(
            f,
            "swap            {}, free {}",
            bytes(memory.swap_total),
            bytes(memory.swap_free)
        )?;
        writeln!(
            f,
            "pages           {}; THP {}, defrag {}, shmem {}; lockable: {}",
            bytes(memory.page),
            word(&memory.huge_pages),
            word(&memory.huge_pages_defrag),
            word(&memory.huge_pages_shmem),
            limit(memory.lockable)
        )?;
        for pages in &memory.reserved {
            let size = bytes(pages.size);
            writeln!(f, "reserved        {} pages of {size}, {} free", pages.count, pages.free)?;
        }
        for node in &memory.nodes {
            let (total, free) = (bytes(node.total), bytes(node.free));
            writeln!(f, "numa node {:<5} CPUs {}, {total}, {free} free", node.id, node.cpus)?;
        }
        Ok(())
    }

    fn vectors(&self, f: &mut Formatter<'_>) -> Result {
        let names = |wanted: &dyn Fn(&Simd) -> bool| {
            let all: Vec<&str> =
                self.simd.iter().filter(|s| wanted(s)).map(|s| s.level.name()).collect();
            if all.is_empty() { "none".to_string() } else { all.join(" ") }
        };
        write!(f, "claims          {}", names(&|s| s.claimed))?;
        if self.simd.iter().any(|s| s.runs.is_some()) {
            write!(f, "\nruns            {}", names(&|s| s.runs == Some(true)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
