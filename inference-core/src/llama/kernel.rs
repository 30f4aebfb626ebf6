//! The sets of CPU kernels in this binary: registers one, and proves that it runs.

use llama_cpp_sys_2 as sys;

use super::attention::Attention;
use super::device::{Device, registration};
use super::log;
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

/// Runs `kernel` on small matrices of the common types, with one row and eight, in every layout
/// that it offers, and on small attention operations, and checks the sums. The process dies of
/// SIGILL if the machine lacks the kernel's instructions, so run this in a child process.
pub fn trial(kernel: Kernel) -> Result<(), TrialError> {
    register(kernel);
    let device = Device::open(kernel)?;
    let layouts = device.layouts();
    #[cfg(target_arch = "x86_64")]
    if kernel == Kernel::Amx && !layouts.iter().any(|layout| is_tiled(*layout)) {
        return Err(TrialError::NoTilePermission);
    }
    for layout in layouts {
        for kind in
            [sys::GGML_TYPE_F16, sys::GGML_TYPE_Q8_0, sys::GGML_TYPE_Q4_0, sys::GGML_TYPE_Q4_K]
        {
            for rows in [1, 8] {
                let Some(numbers) =
                    Product::ones(rows).run(&device, layout, kind, TRIAL_THREADS)?
                else {
                    continue;
                };
                let expected = product::DEPTH as f32;
                if let Some(number) = find_wrong(&numbers, expected) {
                    return Err(TrialError::WrongProduct { kind, number, expected });
                }
            }
        }
    }
    for rows in [1, 4, 65] {
        for kind in [sys::GGML_TYPE_F16, sys::GGML_TYPE_Q8_0] {
            let numbers = Attention::ones(rows).run(&device, kind, TRIAL_THREADS)?;
            if let Some(number) = find_wrong(&numbers, 1.0) {
                return Err(TrialError::WrongAttention { kind, number, expected: 1.0 });
            }
        }
    }
    Ok(())
}

/// True for the AMX tile layout, which is offered only where the kernel lets this process use
/// tiles.
#[cfg(target_arch = "x86_64")]
fn is_tiled(layout: sys::ggml_backend_buffer_type_t) -> bool {
    // SAFETY: the layout is static; its name is null or a static string.
    unsafe {
        let name = sys::ggml_backend_buft_name(layout);
        !name.is_null() && std::ffi::CStr::from_ptr(name).to_bytes() == b"AMX"
    }
}

/// The first number that differs from `expected`. Quantization rounds ones slightly; a wrong kernel
/// is far off.
fn find_wrong(numbers: &[f32], expected: f32) -> Option<f32> {
    let is_wrong = |number: &f32| (number - expected).abs() > 0.05 * expected || number.is_nan();
    numbers.iter().copied().find(is_wrong)
}
