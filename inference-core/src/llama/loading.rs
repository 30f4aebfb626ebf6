//! How the weights of a model get into memory.

use std::ffi::c_int;

use crate::model_file::memory_plan::LoadMode;

// See inference-core/memory/weights.cpp.
unsafe extern "C" {
    fn flotilla_begin_weights(bytes: usize, huge_pages: bool, threads: c_int);
    fn flotilla_end_weights();
}

/// Memory bandwidth ends before more threads load faster.
const THREADS_MAX: u32 = 16;

/// How the weights of a model are loaded.
#[derive(Debug, Clone, Copy)]
pub struct Loading {
    /// Where the weights are that are used as the file has them.
    pub mode: LoadMode,
    /// Threads that repack weights.
    pub threads: u32,
    /// Bytes of the weights that the kernels repack, for which memory is found while the
    /// vocabulary is read; 0 to find it afterwards.
    pub repacked_bytes: u64,
    /// Ask the system for huge pages for them.
    pub huge_pages: bool,
    /// Load the MTP head, which the file must have.
    pub mtp_head: bool,
}

impl From<LoadMode> for Loading {
    /// On one thread.
    fn from(mode: LoadMode) -> Self {
        Self { mode, threads: 1, repacked_bytes: 0, huge_pages: false, mtp_head: false }
    }
}

impl Loading {
    /// Applies to the model that this thread loads until the result is dropped.
    pub(super) fn begin(self) -> Begun {
        let bytes = usize::try_from(self.repacked_bytes).unwrap_or(0);
        let threads = self.threads.clamp(1, THREADS_MAX) as c_int;
        // SAFETY: the function only changes what this thread's next load does.
        unsafe { flotilla_begin_weights(bytes, self.huge_pages, threads) };
        Begun(())
    }
}

/// Gives back what loading has not used.
pub(super) struct Begun(());

impl Drop for Begun {
    fn drop(&mut self) {
        // SAFETY: a model that has taken memory has it for itself.
        unsafe { flotilla_end_weights() };
    }
}
