//! The sets of CPU kernels in this binary: registers one, and proves that it runs.

use llama_cpp_sys_2 as sys;

use super::attention::Attention;
use super::device::{Device, registration};
use super::log;
#[cfg(target_arch = "x86_64")]
use super::probe;
use super::product::{Product, Stored};
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
/// Columns and depth of their weights: whole blocks of every quantization type.
const TRIAL_SIZES: [usize; 2] = [64, 512];
/// Rows of the trial's products: for the kernels for few rows, and for those for many.
const TRIAL_ROWS: [usize; 3] = [1, 8, 40];

/// Types and rows of the products that are timed: what decodes a response, some, and a prompt.
const TIMED_KINDS: [sys::ggml_type; 4] =
    [sys::GGML_TYPE_Q4_0, sys::GGML_TYPE_Q4_K, sys::GGML_TYPE_Q6_K, sys::GGML_TYPE_Q8_0];
const TIMED_ROWS: [usize; 3] = [1, 8, 64];
/// Columns and depth of their weights, which stay in the second cache.
const TIMED_SIZES: [usize; 2] = [256, 1024];
/// How often each is timed; the fastest counts, as all else is chance.
const PASSES: usize = 6;

/// Runs `kernel` on small matrices of the common types, with few rows and many, in every layout
/// that it offers, and on small attention operations, and checks the sums. Returns how fast
/// it is on one thread: millions of products of a weight and a number per second, the geometric
/// mean of some types and numbers of rows. The process dies of SIGILL if the machine lacks the
/// kernel's instructions, so run this in a child process.
pub fn trial(kernel: Kernel) -> Result<f64, TrialError> {
    #[cfg(target_arch = "x86_64")]
    if kernel == Kernel::Amx {
        try_tiles()?;
    }
    register(kernel);
    let device = Device::open(kernel)?;
    try_products(&device)?;
    try_attention(&device)?;
    time_products(&device)
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
            let [columns, depth] = TRIAL_SIZES;
            let product = Product::of_ones(rows, columns, depth);
            let result = product.run(device, layout, kind, TRIAL_THREADS)?;
            let expected = depth as f32;
            if let Some(number) = result.and_then(|numbers| find_wrong(&numbers, expected)) {
                return Err(TrialError::WrongProduct { kind, number, expected });
            }
        }
    }
    Ok(())
}

/// Times products in the layouts that models are loaded in. See [`trial`].
fn time_products(device: &Device) -> Result<f64, TrialError> {
    // As llama.cpp chooses: a repacked layout if there is one for the type.
    let mut layouts = device.layouts();
    layouts.rotate_left(1);
    let [columns, depth] = TIMED_SIZES;
    let (mut logarithms, mut count) = (0.0, 0);
    for kind in TIMED_KINDS {
        let packed = Product::of_ones(1, columns, depth).packed(kind);
        for rows in TIMED_ROWS {
            let product = Product::of_ones(rows, columns, depth);
            for layout in &layouts {
                let Some(time) = product.time(
                    device,
                    &Stored { layout: *layout, kind, packed: &packed },
                    PASSES,
                )?
                else {
                    continue;
                };
                let millions = (rows * columns * depth) as f64 / 1e6;
                logarithms += (millions / time.as_secs_f64().max(1e-9)).ln();
                count += 1;
                break;
            }
        }
    }
    Ok((logarithms / f64::from(count.max(1))).exp())
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
