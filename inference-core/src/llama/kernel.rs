//! The sets of CPU kernels in this binary: registers one, and proves that it runs.

use std::ffi::c_void;

use llama_cpp_sys_2 as sys;

use super::attention::Attention;
use super::log;
use crate::hardware::Kernel;

// See inference-core/cmake/kernel-variants.cmake.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn ggml_backend_cpu_amx_reg() -> sys::ggml_backend_reg_t;
    fn ggml_backend_cpu_avx512_reg() -> sys::ggml_backend_reg_t;
}

// See inference-core/cmake/kernel-variants.cmake.
#[cfg(target_arch = "aarch64")]
unsafe extern "C" {
    fn ggml_backend_cpu_i8mm_reg() -> sys::ggml_backend_reg_t;
    fn ggml_backend_cpu_dotprod_reg() -> sys::ggml_backend_reg_t;
}

fn registration(kernel: Kernel) -> sys::ggml_backend_reg_t {
    match kernel {
        // SAFETY: all of these return a pointer to a static and need no initialization.
        #[cfg(target_arch = "x86_64")]
        Kernel::Amx => unsafe { ggml_backend_cpu_amx_reg() },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Kernel::I8mm => unsafe { ggml_backend_cpu_i8mm_reg() },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Kernel::Dotprod => unsafe { ggml_backend_cpu_dotprod_reg() },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Kernel::Avx512 => unsafe { ggml_backend_cpu_avx512_reg() },
        // SAFETY: as above.
        Kernel::Baseline => unsafe { sys::ggml_backend_cpu_reg() },
    }
}

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

/// Number of threads in a trial.
const TRIAL_THREADS: i32 = 2;

/// Runs `kernel` on small matrices of the common types, with one column and eight, in every layout
/// that it offers, and on small attention operations, and checks the sums. The process dies of
/// SIGILL if the machine lacks the kernel's instructions, so run this in a child process.
pub fn trial(kernel: Kernel) -> Result<(), String> {
    register(kernel);
    let device = Device::open(kernel)?;
    let layouts = device.layouts();
    #[cfg(target_arch = "x86_64")]
    if kernel == Kernel::Amx && !layouts.iter().any(|layout| is_tiled(*layout)) {
        return Err("this machine gives no permission for AMX tiles".into());
    }
    for layout in layouts {
        for kind in
            [sys::GGML_TYPE_F16, sys::GGML_TYPE_Q8_0, sys::GGML_TYPE_Q4_0, sys::GGML_TYPE_Q4_K]
        {
            for columns in [1, 8] {
                device.multiply(layout, kind, columns)?;
            }
        }
    }
    for rows in [1, 4, 65] {
        for kind in [sys::GGML_TYPE_F16, sys::GGML_TYPE_Q8_0] {
            let numbers = Attention::ones(rows).run(&device, kind, TRIAL_THREADS)?;
            check_all(&numbers, 1.0).map_err(|wrong| format!("attention, type {kind}: {wrong}"))?;
        }
    }
    Ok(())
}

pub(super) struct Device {
    registration: sys::ggml_backend_reg_t,
    device: sys::ggml_backend_dev_t,
    backend: sys::ggml_backend_t,
}

/// A ggml context, freed on drop.
pub(super) struct Graph(pub *mut sys::ggml_context);

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the pointer came from ggml_init and is freed once.
        unsafe { sys::ggml_free(self.0) };
    }
}

/// A buffer of tensors, freed on drop.
pub(super) struct Buffer(pub sys::ggml_backend_buffer_t);

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the pointer came from an allocation that succeeded and is freed once.
        unsafe { sys::ggml_backend_buffer_free(self.0) };
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the backend was initialized in `open` and is freed once.
        unsafe { sys::ggml_backend_free(self.backend) };
    }
}

impl Device {
    pub fn open(kernel: Kernel) -> Result<Self, String> {
        let registration = registration(kernel);
        // SAFETY: the registration is static and has one device; null is checked.
        unsafe {
            let device = sys::ggml_backend_reg_dev_get(registration, 0);
            let backend = sys::ggml_backend_dev_init(device, std::ptr::null());
            if backend.is_null() {
                return Err("the CPU backend could not be initialised".into());
            }
            Ok(Self { registration, device, backend })
        }
    }

    /// The plain layout of weights, and the repacked ones.
    fn layouts(&self) -> Vec<sys::ggml_backend_buffer_type_t> {
        // SAFETY: the device outlives self; the extra list is null-terminated and static.
        unsafe {
            let mut all = vec![sys::ggml_backend_dev_buffer_type(self.device)];
            let address = sys::ggml_backend_reg_get_proc_address(
                self.registration,
                c"ggml_backend_dev_get_extra_bufts".as_ptr(),
            );
            if address.is_null() {
                return all;
            }
            type Extra = unsafe extern "C" fn(
                sys::ggml_backend_dev_t,
            ) -> *mut sys::ggml_backend_buffer_type_t;
            let extra = std::mem::transmute::<*mut c_void, Extra>(address);
            let mut next = extra(self.device);
            while !next.is_null() && !(*next).is_null() {
                all.push(*next);
                next = next.add(1);
            }
            all
        }
    }

    /// Multiplies ones by ones: every element of the product is the number of weight columns. Skips
    /// a layout that does not support this type.
    fn multiply(
        &self,
        layout: sys::ggml_backend_buffer_type_t,
        kind: sys::ggml_type,
        columns: i64,
    ) -> Result<(), String> {
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
            if !sys::ggml_backend_dev_supports_op(self.device, output) {
                return Ok(());
            }
            let buffer = sys::ggml_backend_alloc_ctx_tensors(graph.0, self.backend);
            if buffer.is_null() {
                return Err("no memory for a trial".into());
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
            self.compute(graph.0, output, TRIAL_THREADS)?;
            let mut sums = vec![0.0f32; (ROWS * columns) as usize];
            let sums_bytes = sums.len() * size_of::<f32>();
            sys::ggml_backend_tensor_get(output, sums.as_mut_ptr().cast(), 0, sums_bytes);
            check_all(&sums, COLUMNS as f32).map_err(|wrong| format!("type {kind}: {wrong}"))
        }
    }

    /// The backend that computes.
    pub fn backend(&self) -> sys::ggml_backend_t {
        self.backend
    }

    /// Computes a tensor of a graph.
    ///
    /// # Safety
    /// The tensor belongs to the context, and both are allocated.
    pub unsafe fn compute(
        &self,
        context: *mut sys::ggml_context,
        output: *mut sys::ggml_tensor,
        threads: i32,
    ) -> Result<(), String> {
        type SetThreads = unsafe extern "C" fn(sys::ggml_backend_t, i32);
        // SAFETY: ggml defines the type of each named function; null is checked; see above.
        unsafe {
            let name = c"ggml_backend_set_n_threads".as_ptr();
            let address = sys::ggml_backend_reg_get_proc_address(self.registration, name);
            if !address.is_null() {
                std::mem::transmute::<*mut c_void, SetThreads>(address)(self.backend, threads);
            }
            let work = sys::ggml_new_graph(context);
            sys::ggml_build_forward_expand(work, output);
            match sys::ggml_backend_graph_compute(self.backend, work) {
                sys::GGML_STATUS_SUCCESS => Ok(()),
                _ => Err("a trial computation failed".into()),
            }
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

/// Quantization rounds ones slightly; a wrong kernel is far off.
fn check_all(numbers: &[f32], expected: f32) -> Result<(), String> {
    match numbers.iter().find(|s| (*s - expected).abs() > 0.05 * expected || s.is_nan()) {
        Some(wrong) => Err(format!("a number is {wrong}, not {expected}")),
        None => Ok(()),
    }
}

/// Creates a ggml context for the metadata of a few tensors and one graph.
///
/// # Safety
/// None beyond ggml being linked; the result frees itself.
pub(super) unsafe fn new_graph() -> Result<Graph, String> {
    // SAFETY: the sizes are ggml's own; null is checked.
    let context = unsafe {
        sys::ggml_init(sys::ggml_init_params {
            mem_size: sys::ggml_tensor_overhead() * 16 + sys::ggml_graph_overhead(),
            mem_buffer: std::ptr::null_mut(),
            no_alloc: true,
        })
    };
    if context.is_null() { Err("no memory for a trial".into()) } else { Ok(Graph(context)) }
}
