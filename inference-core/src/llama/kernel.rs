//! The sets of CPU kernels in this binary: registers one, and proves that it runs.

use llama_cpp_sys_2 as sys;

use super::attention::Attention;
use super::device::{Buffer, Device, new_graph, registration};
use super::log;
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

/// Rows and columns of the trial's weights: whole blocks of every quantization type.
const ROWS: i64 = 64;
const COLUMNS: i64 = 512;

const TRIAL_THREADS: i32 = 2;

/// Runs `kernel` on small matrices of the common types, with one column and eight, in every layout
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
            for columns in [1, 8] {
                multiply(&device, layout, kind, columns)?;
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

/// Multiplies ones by ones: every element of the product is the number of weight columns. Skips
/// a layout that does not support this type.
fn multiply(
    device: &Device,
    layout: sys::ggml_backend_buffer_type_t,
    kind: sys::ggml_type,
    columns: i64,
) -> Result<(), TrialError> {
    // SAFETY: tensors belong to contexts that live to the end of the function, all
    // sizes come from ggml, and every pointer that may be null is checked.
    unsafe {
        let weights_graph = new_graph()?;
        let weights = sys::ggml_new_tensor_2d(weights_graph.0, kind, COLUMNS, ROWS);
        let graph = new_graph()?;
        let input = sys::ggml_new_tensor_2d(graph.0, sys::GGML_TYPE_F32, COLUMNS, columns);
        let buffer = sys::ggml_backend_alloc_ctx_tensors_from_buft(weights_graph.0, layout);
        if buffer.is_null() {
            return Ok(());
        }
        let _weights_buffer = Buffer(buffer);
        let output = sys::ggml_mul_mat(graph.0, weights, input);
        if !device.can_compute(output) {
            return Ok(());
        }
        let buffer = sys::ggml_backend_alloc_ctx_tensors(graph.0, device.backend());
        if buffer.is_null() {
            return Err(TrialError::NoMemory);
        }
        let _buffer = Buffer(buffer);
        let ones = vec![1.0f32; (COLUMNS * ROWS.max(columns)) as usize];
        let mut packed = vec![0u8; sys::ggml_row_size(kind, COLUMNS) * ROWS as usize];
        let bytes = sys::ggml_quantize_chunk(
            kind,
            ones.as_ptr(),
            packed.as_mut_ptr().cast(),
            0,
            ROWS,
            COLUMNS,
            std::ptr::null(),
        );
        sys::ggml_backend_tensor_set(weights, packed.as_ptr().cast(), 0, bytes);
        let input_bytes = (COLUMNS * columns) as usize * size_of::<f32>();
        sys::ggml_backend_tensor_set(input, ones.as_ptr().cast(), 0, input_bytes);
        device.compute(graph.0, output, TRIAL_THREADS)?;
        let mut sums = vec![0.0f32; (ROWS * columns) as usize];
        let sums_bytes = sums.len() * size_of::<f32>();
        sys::ggml_backend_tensor_get(output, sums.as_mut_ptr().cast(), 0, sums_bytes);
        match find_wrong(&sums, COLUMNS as f32) {
            Some(number) => {
                Err(TrialError::WrongProduct { kind, number, expected: COLUMNS as f32 })
            }
            None => Ok(()),
        }
    }
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
