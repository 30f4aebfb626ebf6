//! The compute threads: one pool for the lifetime of a context. Without it, llama.cpp starts and
//! joins threads for every batch.

use std::ffi::{CStr, c_void};

use llama_cpp_sys_2 as sys;

use super::LoadError;

type New = unsafe extern "C" fn(*mut sys::ggml_threadpool_params) -> sys::ggml_threadpool_t;
type Free = unsafe extern "C" fn(sys::ggml_threadpool_t);

/// A thread pool of the registered kernels.
#[derive(Debug)]
pub(super) struct ThreadPool {
    raw: sys::ggml_threadpool_t,
    free: Free,
}

// SAFETY: any thread may compute on it or free it, one at a time.
unsafe impl Send for ThreadPool {}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        // SAFETY: created by the matching `new`, freed once, after the context that used it.
        unsafe { (self.free)(self.raw) };
    }
}

impl ThreadPool {
    /// Starts `threads` threads, including the caller's own. `poll` is how long idle threads poll
    /// before they sleep, 0 (not at all) to 100.
    pub(super) fn new(threads: i32, poll: u32) -> Result<Self, LoadError> {
        // SAFETY: a kernel is registered before any context is created.
        Self::of(unsafe { sys::ggml_backend_reg_get(0) }, threads, poll)
    }

    /// Like [`Self::new`], of kernels that need not be registered.
    pub(super) fn of(
        kernels: sys::ggml_backend_reg_t,
        threads: i32,
        poll: u32,
    ) -> Result<Self, LoadError> {
        let address = |name| address(kernels, name);
        // SAFETY: both functions have these types in ggml-cpu.h; null is checked.
        unsafe {
            let new = std::mem::transmute::<*mut c_void, New>(address(c"ggml_threadpool_new")?);
            let free = std::mem::transmute::<*mut c_void, Free>(address(c"ggml_threadpool_free")?);
            let mut params = sys::ggml_threadpool_params_default(threads);
            params.poll = poll.min(100);
            let raw = new(&raw mut params);
            if raw.is_null() {
                return Err(LoadError::Context("the compute threads cannot be started".into()));
            }
            Ok(Self { raw, free })
        }
    }

    /// Makes `context` compute on this pool.
    ///
    /// # Safety
    /// `context` must be valid, and freed before this pool.
    pub(super) unsafe fn attach(&self, context: *mut sys::llama_context) {
        // SAFETY: ensured by the caller. One pool serves batches of one row and of many.
        unsafe { sys::llama_attach_threadpool(context, self.raw, self.raw) };
    }

    pub(super) fn as_ptr(&self) -> sys::ggml_threadpool_t {
        self.raw
    }
}

/// Address of a function of a set of kernels: each has its own threads.
pub(super) fn address(
    kernels: sys::ggml_backend_reg_t,
    name: &CStr,
) -> Result<*mut c_void, LoadError> {
    // SAFETY: registrations are static.
    let address = unsafe { sys::ggml_backend_reg_get_proc_address(kernels, name.as_ptr()) };
    if address.is_null() {
        return Err(LoadError::Kernel(format!("{} is missing", name.to_string_lossy())));
    }
    Ok(address)
}
