//! How many rows of the output matrix a batch is multiplied with: drafts need the logits of
//! frequent tokens alone.

use llama_cpp_sys_2 as sys;

// See inference-core/memory/staging.cpp.
unsafe extern "C" {
    fn flotilla_use_output_rows(rows: i64);
    fn flotilla_plan_again(context: *mut sys::llama_context);
}

/// Limits the rows of this thread's batches until it is dropped.
pub(super) struct OutputRows(());

impl OutputRows {
    pub(super) fn limit(rows: u32) -> Self {
        // SAFETY: this only sets a number of the thread.
        unsafe { flotilla_use_output_rows(rows.into()) };
        Self(())
    }
}

impl Drop for OutputRows {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { flotilla_use_output_rows(0) };
    }
}

/// Lets the next batch of a context plan its memory, and make its graph, for another limit.
///
/// # Safety
/// The context is valid.
pub(super) unsafe fn plan_again(context: *mut sys::llama_context) {
    // SAFETY: as above.
    unsafe { flotilla_plan_again(context) };
}
