//! Machine facts for the memory plan.

use inference_core::hardware::report::Machine;
use inference_core::hardware::simd::Level;
use inference_core::model_file::memory_plan::MachineFacts;
use inference_core::model_file::memory_plan::weights::Repacking;

/// Machine facts for the memory plan. Trusts the instruction levels that CPUID and the kernel
/// claim: planning for repacked weights that are not made does no harm.
pub(crate) fn facts(machine: &Machine) -> MachineFacts {
    let claimed = |level| machine.simd.iter().any(|s| s.level == level && s.claimed);
    let repacking = if claimed(Level::Avx512f) {
        Repacking::Avx512
    } else if claimed(Level::Avx2) {
        Repacking::Avx2
    } else if claimed(Level::Dotprod) {
        Repacking::Dotprod
    } else if claimed(Level::Neon) {
        Repacking::Neon
    } else {
        Repacking::Off
    };
    MachineFacts {
        available_bytes: machine.memory.available_here,
        lockable_bytes: machine.memory.lockable,
        threads: machine.threads as u64,
        repacking,
        bandwidth: None,
        prefill_rate: None,
    }
}
