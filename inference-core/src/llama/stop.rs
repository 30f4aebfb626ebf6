//! Stops a batch early, through the callback that llama.cpp calls between two operations of its
//! graph.

use std::ffi::c_void;

use llama_cpp_sys_2 as sys;

use crate::types::model::Stop;

/// Return value of `llama_decode` and `llama_encode` for a stopped batch.
pub(super) const STOPPED: i32 = 2;

/// Runs `compute`, which computes on `context`, and stops it when `stop` returns true.
///
/// # Safety
/// `context` must be valid, and nothing else may use it meanwhile.
pub(super) unsafe fn run_stoppable(
    context: *mut sys::llama_context,
    stop: Stop<'_>,
    compute: impl FnOnce() -> i32,
) -> i32 {
    let mut stop = stop;
    let data = (&raw mut stop).cast::<c_void>();
    // SAFETY: the context is valid. The data lives on this stack until the callback is removed, and
    // llama.cpp calls back only while it computes.
    unsafe {
        sys::llama_set_abort_callback(context, Some(poll_stop), data);
        let code = compute();
        sys::llama_set_abort_callback(context, None, std::ptr::null_mut());
        code
    }
}

unsafe extern "C" fn poll_stop(data: *mut c_void) -> bool {
    // SAFETY: `run_stoppable` passed the address of a `Stop` that lives as long as the callback is
    // set.
    let stop = unsafe { *data.cast::<Stop<'_>>() };
    stop()
}
