//! The sets of CPU kernels in this binary: registers one, and proves that it runs.

use llama_cpp_sys_2 as sys;

use super::attention::Attention;
use super::device::{Device, registration};
use super::log;
#[cfg(target_arch = "x86_64")]
use super::probe;
use super::product::{self, Product};
use super::trial_error::TrialError;
use crate::hardware::Kernel;

/// Registers `kernel` as the one that computes. Call it once per process, before loading a model;
/// later calls change nothing.
pub fn register(kernel: Kernel) {
    log::install();
    // SAFETY: the registry ignores a second registration; the registration is static.
    unsafe {
        if sys::ggml_backend_reg_count() == 0 {
            sys::ggml_backend_register(registration(kernel));
        }
        sys::llama_backend_init();
    }
}

const TRIAL_THREADS: i32 = 2;

/// Types of the trial's products.
const TRIAL_KINDS: [sys::ggml_type; 7] = [
    sys::GGML_TYPE_F32,
    sys::GGML_TYPE_F16,
    sys::GGML_TYPE_BF16,
    sys::GGML_TYPE_Q8_0,
    sys::GGML_TYPE_Q4_0,
    sys::GGML_TYPE_Q4_K,
    sys::GGML_TYPE_Q6_K,
];
/// Rows of the trial's products: for the kernels for few rows, and for those for many.
const TRIAL_ROWS: [usize; 3] = [1, 8, 40];

/// Runs `kernel` on small matrices of the common types, with few rows and many, in every layout
/// that it offers, and on small attention operations, and checks the sums. The process dies of
/// SIGILL if the machine lacks the kernel's instructions, so run this in a child process.
pub fn trial(kernel: Kernel) -> Result<(), TrialError> {
    #[cfg(target_arch = "x86_64")]
    if kernel == Kernel::Amx {
        try_tiles()?;
    }
    register(kernel);
    let device = Device::open(kernel)?;
    try_products(&device)?;
    try_attention(&device)
}

/// Checks that this process may use AMX tiles, and that they survive switches of threads.
#[cfg(target_arch = "x86_64")]
fn try_tiles() -> Result<(), TrialError> {
    if probe::request_tiles() != 0 {
        return Err(TrialError::NoTilePermission);
    }
    // More threads than most machines give the trial cores, so that they take turns.
    let threads = (1..=2 * TRIAL_THREADS as u8)
        .map(|fill| std::thread::spawn(move || (0..5).all(|_| probe::keeps_tiles(fill))));
    let threads: Vec<_> = threads.collect();
    let keep = threads.into_iter().map(|thread| thread.join().unwrap_or(false));
    let keep: Vec<bool> = keep.collect();
    if keep.iter().all(|one| *one) { Ok(()) } else { Err(TrialError::LostTiles) }
}

/// Multiplies matrices of each type in each layout.
fn try_products(device: &Device) -> Result<(), TrialError> {
    let some = TRIAL_KINDS.iter().flat_map(|kind| TRIAL_ROWS.map(|rows| (*kind, rows)));
    for layout in device.layouts() {
        for (kind, rows) in some.clone() {
            let result = Product::ones(rows).run(device, layout, kind, TRIAL_THREADS)?;
            let expected = product::DEPTH as f32;
            if let Some(number) = result.and_then(|numbers| find_wrong(&numbers, expected)) {
                return Err(TrialError::WrongProduct { kind, number, expected });
            }
        }
    }
    Ok(())
}

/// Computes attention with each type of keys and values.
fn try_attention(device: &Device) -> Result<(), TrialError> {
    for rows in [1, 4, 65] {
        for kind in [sys::GGML_TYPE_F16, sys::GGML_TYPE_Q8_0] {
            let numbers = Attention::ones(rows).run(device, kind, TRIAL_THREADS)?;
            if let Some(number) = find_wrong(&numbers, 1.0) {
                return Err(TrialError::WrongAttention { kind, number, expected: 1.0 });
            }
        }
    }
    Ok(())
}

/// The first number that differs from `expected`. Quantization rounds ones slightly; a wrong kernel
/// is far off.
fn find_wrong(numbers: &[f32], expected: f32) -> Option<f32> {
    let is_wrong = |number: &f32| (number - expected).abs() > 0.05 * expected || number.is_nan();
    numbers.iter().copied().find(is_wrong)
}
