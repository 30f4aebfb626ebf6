//! Reads the machine's hardware from the kernel's files, and tests what it can run.
//!
//! CPU feature flags are not trusted: the system may not permit what the CPU has, and a compiler
//! may break what uses it. A set of kernels is used only after it has run in a child process, and
//! only if no other is faster there.

pub mod bandwidth;
pub mod cgroup;
pub(crate) mod cpus;
pub mod files;
pub mod memory;
pub mod report;
pub mod simd;

use crate::types::unknown_name::UnknownName;
use cgroup::Cgroup;
use cpus::Cpus;
use files::Root;
use serde::{Deserialize, Serialize};

/// A set of CPU kernels in this binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// AMX tiles in addition to AVX-512: Sapphire Rapids and later.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// AVX-512 with VNNI and VBMI: Ice Lake, Sapphire Rapids, Zen 4 and later.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Scalable vectors in addition to i8mm: Graviton 3 and 4, Neoverse V1 and N2 and later.
    #[cfg(target_arch = "aarch64")]
    Sve,
    /// 8-bit integer matrix multiplication: Ampere One and later.
    #[cfg(target_arch = "aarch64")]
    I8mm,
    /// 8-bit integer dot products: Raspberry Pi 5, Graviton 2, Ampere Altra and later.
    #[cfg(target_arch = "aarch64")]
    Dotprod,
    /// Every supported CPU: on x86-64 AVX2, FMA, F16C and BMI2; on aarch64 ARMv8.
    Baseline,
}

impl Kernel {
    /// All kernels of this architecture, fastest first on most machines.
    pub const ALL: &[Self] = &[
        #[cfg(target_arch = "x86_64")]
        Self::Amx,
        #[cfg(target_arch = "x86_64")]
        Self::Avx512,
        #[cfg(target_arch = "aarch64")]
        Self::Sve,
        #[cfg(target_arch = "aarch64")]
        Self::I8mm,
        #[cfg(target_arch = "aarch64")]
        Self::Dotprod,
        Self::Baseline,
    ];

    /// The name on the command line, in logs and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx => "amx",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Self::Sve => "sve",
            #[cfg(target_arch = "aarch64")]
            Self::I8mm => "i8mm",
            #[cfg(target_arch = "aarch64")]
            Self::Dotprod => "dotprod",
            Self::Baseline => "baseline",
        }
    }
}

impl std::str::FromStr for Kernel {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let names: Vec<_> = Self::ALL.iter().map(|k| k.name()).collect();
        let found = Self::ALL.iter().find(|k| k.name() == name).copied();
        found.ok_or_else(|| UnknownName::new("kernel", name, &names))
    }
}

/// What a set of kernels did in its trial: its speed, in any unit, or why it cannot be used.
pub type KernelTrial = (Kernel, Result<f64, String>);

/// A set of kernels gives way to one that is this many times as fast. A trial takes milliseconds:
/// on a busy machine, less is chance, and nodes and restarts would differ in their choice.
const FASTER: f64 = 1.5;

/// Returns the fastest set of kernels whose trial succeeded: the first one in the order of
/// [`Kernel::ALL`], unless a later one is clearly faster on this machine.
pub fn choose_kernel(trials: &[KernelTrial]) -> Option<Kernel> {
    let mut best: Option<(Kernel, f64)> = None;
    for (kernel, result) in trials {
        let Ok(speed) = result else { continue };
        if best.is_none_or(|(_, fastest)| *speed > fastest * FASTER) {
            best = Some((*kernel, *speed));
        }
    }
    best.map(|(kernel, _)| kernel)
}

/// Number of compute threads: the physical cores in the affinity mask, only the performance cores
/// of a hybrid CPU, and at most the cgroup quotas.
pub fn compute_threads() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    let files = Root::machine();
    let quota = Cgroup::read(&files).quota_threads().unwrap_or(usize::MAX);
    Cpus::read(&files).compute_cores().min(quota).clamp(1, allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trials of all sets, in order, with the last speed for those beyond `speeds`.
    fn trials(speeds: &[Option<f64>]) -> Vec<KernelTrial> {
        let speed = |i: usize| speeds.get(i).or(speeds.last()).copied().flatten();
        let result = |i| speed(i).ok_or_else(|| "signal 4".to_string());
        Kernel::ALL.iter().enumerate().map(|(i, kernel)| (*kernel, result(i))).collect()
    }

    #[test]
    fn the_first_set_of_kernels_that_runs_is_taken() {
        assert_eq!(choose_kernel(&trials(&[Some(1.0)])), Some(Kernel::ALL[0]));
        assert_eq!(choose_kernel(&trials(&[None, Some(1.0)])), Some(Kernel::ALL[1]));
        assert_eq!(choose_kernel(&trials(&[None])), None);
    }

    #[test]
    fn a_set_of_kernels_that_is_slower_than_a_later_one_is_not_taken() {
        assert_eq!(choose_kernel(&trials(&[Some(1.0), Some(1.4)])), Some(Kernel::ALL[0]));
        assert_eq!(choose_kernel(&trials(&[Some(1.0), Some(1.6)])), Some(Kernel::ALL[1]));
        assert_eq!(choose_kernel(&trials(&[Some(2.0), Some(1.3)])), Some(Kernel::ALL[0]));
    }

    #[test]
    fn there_is_always_a_thread() {
        assert!(compute_threads() >= 1);
    }
}
