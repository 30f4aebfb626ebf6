//! Measures how many products of 8-bit integers this machine's threads add per second at most, with
//! the instructions that a set of kernels has for it. Quantized weights are not multiplied faster.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;
use std::time::Instant;

use crate::hardware::Kernel;

/// Turns of a loop in one measurement: some hundred milliseconds on a slow machine.
const TURNS: u64 = 4_000_000;
/// Measurements; the fastest counts.
const PASSES: usize = 5;

/// Products per second of all `threads` together. The kernels must have been proven to run here.
///
/// # Errors
/// The system grants no tiles, or a thread has failed.
pub fn products_per_second(kernel: Kernel, threads: usize) -> Result<f64, String> {
    let mut best: f64 = 0.0;
    for _ in 0..PASSES {
        let begun = Instant::now();
        let done: Result<Vec<u64>, String> = std::thread::scope(|scope| {
            let all: Vec<_> =
                (0..threads.max(1)).map(|_| scope.spawn(move || products(kernel))).collect();
            all.into_iter()
                .map(|one| one.join().map_err(|_| "a thread has failed".to_string())?)
                .collect()
        });
        let sum: u64 = done?.iter().sum();
        best = best.max(sum as f64 / begun.elapsed().as_secs_f64().max(1e-9));
    }
    Ok(best)
}

/// Runs a loop of independent instructions. `$count` are the products of one turn.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! turns {
    ($turns:expr, $count:expr, $($line:literal),+ ; $($changed:tt),+) => {{
        // SAFETY: the instructions change the registers that are named, the flags, and no memory
        // and no stack. The caller has proven that the machine has them.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!("2:", $($line),+, "dec {turns}", "jnz 2b", "vzeroupper",
                turns = inout(reg) $turns => _, $(out($changed) _),+, options(nomem, nostack));
            #[cfg(target_arch = "aarch64")]
            asm!("2:", $($line),+, "subs {turns}, {turns}, #1", "b.ne 2b",
                turns = inout(reg) $turns => _, $(out($changed) _),+, options(nomem, nostack));
        }
        Ok($turns * $count)
    }};
}

#[cfg(target_arch = "x86_64")]
fn products(kernel: Kernel) -> Result<u64, String> {
    match kernel {
        Kernel::Amx => super::probe::tile_products(TURNS / 16),
        Kernel::Avx512 => turns!(TURNS, 10 * 64,
            "vpdpbusd zmm0, zmm10, zmm11", "vpdpbusd zmm1, zmm10, zmm11",
            "vpdpbusd zmm2, zmm10, zmm11", "vpdpbusd zmm3, zmm10, zmm11",
            "vpdpbusd zmm4, zmm10, zmm11", "vpdpbusd zmm5, zmm10, zmm11",
            "vpdpbusd zmm6, zmm10, zmm11", "vpdpbusd zmm7, zmm10, zmm11",
            "vpdpbusd zmm8, zmm10, zmm11", "vpdpbusd zmm9, zmm10, zmm11";
            "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
            "xmm10", "xmm11"),
        // Pairs of products, which are then added to sums of 16 bits.
        Kernel::Baseline => turns!(TURNS, 5 * 32,
            "vpmaddubsw ymm5, ymm10, ymm11", "vpaddw ymm0, ymm0, ymm5",
            "vpmaddubsw ymm6, ymm10, ymm11", "vpaddw ymm1, ymm1, ymm6",
            "vpmaddubsw ymm7, ymm10, ymm11", "vpaddw ymm2, ymm2, ymm7",
            "vpmaddubsw ymm8, ymm10, ymm11", "vpaddw ymm3, ymm3, ymm8",
            "vpmaddubsw ymm9, ymm10, ymm11", "vpaddw ymm4, ymm4, ymm9";
            "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
            "xmm10", "xmm11"),
    }
}

/// Instructions by their encoding, so that the assembler need not know them: `sdot` and `smmla` of
/// v30 and v31.
#[cfg(target_arch = "aarch64")]
fn products(kernel: Kernel) -> Result<u64, String> {
    match kernel {
        Kernel::Sve | Kernel::I8mm => turns!(TURNS, 8 * 32,
            ".inst 0x4e9fa7c0", ".inst 0x4e9fa7c1", ".inst 0x4e9fa7c2", ".inst 0x4e9fa7c3",
            ".inst 0x4e9fa7c4", ".inst 0x4e9fa7c5", ".inst 0x4e9fa7c6", ".inst 0x4e9fa7c7";
            "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7"),
        Kernel::Dotprod => turns!(TURNS, 8 * 16,
            ".inst 0x4e9f97c0", ".inst 0x4e9f97c1", ".inst 0x4e9f97c2", ".inst 0x4e9f97c3",
            ".inst 0x4e9f97c4", ".inst 0x4e9f97c5", ".inst 0x4e9f97c6", ".inst 0x4e9f97c7";
            "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7"),
        Kernel::Baseline => turns!(TURNS, 8 * 8,
            "smlal v0.8h, v30.8b, v31.8b", "smlal v1.8h, v30.8b, v31.8b",
            "smlal v2.8h, v30.8b, v31.8b", "smlal v3.8h, v30.8b, v31.8b",
            "smlal v4.8h, v30.8b, v31.8b", "smlal v5.8h, v30.8b, v31.8b",
            "smlal v6.8h, v30.8b, v31.8b", "smlal v7.8h, v30.8b, v31.8b";
            "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7"),
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn products(_: Kernel) -> Result<u64, String> {
    Err("no instructions are known for this architecture".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_a_peak() {
        let peak = products_per_second(Kernel::Baseline, 2).unwrap();
        assert!(peak > 1e8 && peak < 1e15, "{peak}");
    }
}
