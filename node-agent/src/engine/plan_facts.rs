//! What a memory plan has to know of this machine.

use inference_core::hardware::report::Machine;
use inference_core::hardware::simd::Level;
use inference_core::model_file::memory_plan::Facts;
use inference_core::model_file::memory_plan::weights::Repacking;

/// What a plan has to know of the machine. Levels are believed as CPUID and the kernel claim
/// them: copies of weights that do not come cost nothing.
pub fn facts(machine: &Machine) -> Facts {
    let claimed = |level| machine.simd.iter().any(|s| s.level == level && s.claimed);
    let repacking = if claimed(Level::Avx512f) {
        Repacking::Avx512
    } else if claimed(Level::Avx2) {
        Repacking::Avx2
    } else if claimed(Level::I8mm) {
        Repacking::I8mm
    } else if claimed(Level::Dotprod) {
        Repacking::Dotprod
    } else {
        Repacking::Off
    };
    Facts {
        available_bytes: machine.memory.available_here,
        lockable_bytes: machine.memory.lockable,
        threads: machine.threads as u64,
        repacking,
        bandwidth: None,
        prefill_rate: None,
    }
}
