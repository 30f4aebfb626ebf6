//! The device of a set of CPU kernels: computes single operations for the kernel trial and tests.

use std::cell::RefCell;
use std::ffi::{CStr, c_void};
use std::time::{Duration, Instant};

use llama_cpp_sys_2 as sys;

use super::threads::ThreadPool;
use super::trial_error::TrialError;
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
    fn ggml_backend_cpu_sve_reg() -> sys::ggml_backend_reg_t;
    fn ggml_backend_cpu_i8mm_reg() -> sys::ggml_backend_reg_t;
    fn ggml_backend_cpu_dotprod_reg() -> sys::ggml_backend_reg_t;
}

pub(super) fn registration(kernel: Kernel) -> sys::ggml_backend_reg_t {
    match kernel {
        // SAFETY: all of these return a pointer to a static and need no initialization.
        #[cfg(target_arch = "x86_64")]
        Kernel::Amx => unsafe { ggml_backend_cpu_amx_reg() },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Kernel::Sve => unsafe { ggml_backend_cpu_sve_reg() },
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

pub(super) struct Device {
    registration: sys::ggml_backend_reg_t,
    device: sys::ggml_backend_dev_t,
    backend: sys::ggml_backend_t,
    /// Kept from one operation to the next: a thread that just starts may have to wait for the time
    /// slice of the one that waits for it.
    threads: RefCell<Option<(i32, ThreadPool)>>,
}

/// How long idle threads poll before they sleep, 0 to 100: llama.cpp's default.
const POLL: u32 = 50;

/// A ggml context, freed on drop.
#[derive(Debug)]
pub(super) struct Graph(pub(crate) *mut sys::ggml_context);

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the pointer came from ggml_init and is freed once.
        unsafe { sys::ggml_free(self.0) };
    }
}

/// A buffer of tensors, freed on drop.
pub(super) struct Buffer(pub(crate) sys::ggml_backend_buffer_t);

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the pointer came from an allocation that succeeded and is freed once.
        unsafe { sys::ggml_backend_buffer_free(self.0) };
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the backend was initialized in `open` and is freed once, before its threads.
        unsafe { sys::ggml_backend_free(self.backend) };
    }
}

impl Device {
    pub(crate) fn open(kernel: Kernel) -> Result<Self, TrialError> {
        let registration = registration(kernel);
        // SAFETY: the registration is static and has one device; null is checked.
        unsafe {
            let device = sys::ggml_backend_reg_dev_get(registration, 0);
            let backend = sys::ggml_backend_dev_init(device, std::ptr::null());
            if backend.is_null() {
                return Err(TrialError::NoBackend);
            }
            Ok(Self { registration, device, backend, threads: RefCell::new(None) })
        }
    }

    /// The plain layout of weights, and the repacked ones.
    pub(crate) fn layouts(&self) -> Vec<sys::ggml_backend_buffer_type_t> {
        // SAFETY: the device outlives self; the extra list is null-terminated and static.
        unsafe {
            let mut all = vec![sys::ggml_backend_dev_buffer_type(self.device)];
            let address = self.address(c"ggml_backend_dev_get_extra_bufts");
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

    /// True if it computes the operation that `output` results from.
    pub(crate) fn can_compute(&self, output: *const sys::ggml_tensor) -> bool {
        // SAFETY: the device is static; the tensor is only read.
        unsafe { sys::ggml_backend_dev_supports_op(self.device, output) }
    }

    /// The backend that computes.
    pub(crate) fn backend(&self) -> sys::ggml_backend_t {
        self.backend
    }

    /// Computes a tensor of a graph.
    ///
    /// # Safety
    /// The tensor belongs to the context, and both are allocated.
    pub(crate) unsafe fn compute(
        &self,
        context: *mut sys::ggml_context,
        output: *mut sys::ggml_tensor,
        threads: i32,
    ) -> Result<(), TrialError> {
        // SAFETY: see above.
        unsafe { self.compute_often(context, output, threads, 1) }.map(|_| ())
    }

    /// Computes a tensor of a graph `times` times; returns the shortest time.
    ///
    /// # Safety
    /// As [`Self::compute`].
    pub(crate) unsafe fn compute_often(
        &self,
        context: *mut sys::ggml_context,
        output: *mut sys::ggml_tensor,
        threads: i32,
        times: usize,
    ) -> Result<Duration, TrialError> {
        self.use_threads(threads)?;
        let mut shortest = Duration::MAX;
        // SAFETY: see above.
        unsafe {
            let work = sys::ggml_new_graph(context);
            sys::ggml_build_forward_expand(work, output);
            for _ in 0..times {
                let begun = Instant::now();
                if sys::ggml_backend_graph_compute(self.backend, work) != sys::GGML_STATUS_SUCCESS {
                    return Err(TrialError::Computation);
                }
                shortest = shortest.min(begun.elapsed());
            }
        }
        Ok(shortest)
    }

    /// Lets the backend compute with this number of threads.
    fn use_threads(&self, count: i32) -> Result<(), TrialError> {
        type SetCount = unsafe extern "C" fn(sys::ggml_backend_t, i32);
        type SetPool = unsafe extern "C" fn(sys::ggml_backend_t, sys::ggml_threadpool_t);
        let mut threads = self.threads.borrow_mut();
        if threads.as_ref().is_some_and(|(started, _)| *started == count) {
            return Ok(());
        }
        let started = ThreadPool::of(self.registration, count, POLL);
        let started = started.map_err(|_| TrialError::NoThreads)?;
        let set_count = self.address(c"ggml_backend_set_n_threads");
        let set_pool = self.address(c"ggml_backend_cpu_set_threadpool");
        if set_count.is_null() || set_pool.is_null() {
            return Err(TrialError::NoThreads);
        }
        // SAFETY: ggml defines the type of each named function. The backend lets go of the threads
        // before, which are freed after it has others.
        unsafe {
            std::mem::transmute::<*mut c_void, SetCount>(set_count)(self.backend, count);
            std::mem::transmute::<*mut c_void, SetPool>(set_pool)(self.backend, started.as_ptr());
        }
        *threads = Some((count, started));
        Ok(())
    }

    /// Address of a function of this set of kernels; null if it has none of this name.
    fn address(&self, name: &CStr) -> *mut c_void {
        // SAFETY: registrations are static.
        unsafe { sys::ggml_backend_reg_get_proc_address(self.registration, name.as_ptr()) }
    }
}

/// Creates a ggml context for the metadata of a few tensors and one graph.
///
/// # Safety
/// None beyond ggml being linked; the result frees itself.
pub(super) unsafe fn new_graph() -> Result<Graph, TrialError> {
    // SAFETY: the sizes are ggml's own; null is checked.
    let context = unsafe {
        sys::ggml_init(sys::ggml_init_params {
            mem_size: sys::ggml_tensor_overhead() * 16 + sys::ggml_graph_overhead(),
            mem_buffer: std::ptr::null_mut(),
            no_alloc: true,
        })
    };
    if context.is_null() { Err(TrialError::NoMemory) } else { Ok(Graph(context)) }
}
