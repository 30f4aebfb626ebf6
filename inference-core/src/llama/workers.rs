//! Work of our own on the compute threads, between two batches: they poll for some time after a
//! batch, so they begin sooner, and take less from each other, than threads beside them.

use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use llama_cpp_sys_2 as sys;

use super::LoadError;
use super::device::Graph;
use super::threads::{ThreadPool, address};

/// What each thread runs, with its number.
struct Work<'a>(&'a (dyn Fn(usize) + Sync));

/// What the operation finds.
#[derive(Debug, Default)]
struct Task {
    /// A [`Work`] while it runs.
    work: AtomicPtr<c_void>,
    has_panicked: AtomicBool,
}

/// A graph of one operation that runs a function on all threads of a pool.
#[derive(Debug)]
pub(super) struct Workers {
    backend: sys::ggml_backend_t,
    graph: *mut sys::ggml_cgraph,
    task: Box<Task>,
    /// Owns the graph.
    _context: Graph,
}

impl Drop for Workers {
    fn drop(&mut self) {
        // SAFETY: initialized in `new`, freed once, before its threads.
        unsafe { sys::ggml_backend_free(self.backend) };
    }
}

type SetCount = unsafe extern "C" fn(sys::ggml_backend_t, c_int);
type SetPool = unsafe extern "C" fn(sys::ggml_backend_t, sys::ggml_threadpool_t);

impl Workers {
    /// Work on the `threads` threads of `pool`, which must live longer.
    pub(super) fn new(pool: &ThreadPool, threads: i32) -> Result<Self, LoadError> {
        let failed = || LoadError::Context("the compute threads cannot be used".into());
        // SAFETY: a kernel is registered before any context is created, and has one device. ggml
        // defines the types of the named functions. Null is checked.
        let backend = unsafe {
            let kernels = sys::ggml_backend_reg_get(0);
            let named = |name: &CStr| address(kernels, name);
            let set_count = named(c"ggml_backend_set_n_threads")?;
            let set_pool = named(c"ggml_backend_cpu_set_threadpool")?;
            let device = sys::ggml_backend_reg_dev_get(kernels, 0);
            let backend = sys::ggml_backend_dev_init(device, std::ptr::null());
            if backend.is_null() {
                return Err(failed());
            }
            std::mem::transmute::<*mut c_void, SetCount>(set_count)(backend, threads);
            std::mem::transmute::<*mut c_void, SetPool>(set_pool)(backend, pool.as_ptr());
            backend
        };
        let task = Box::<Task>::default();
        // SAFETY: there is room for two tensors and a graph; the operation has no data, and what
        // it finds stays at its place as long as the graph.
        let (context, graph) = unsafe {
            let context = Graph(sys::ggml_init(sys::ggml_init_params {
                mem_size: 2 * sys::ggml_tensor_overhead() + sys::ggml_graph_overhead(),
                mem_buffer: std::ptr::null_mut(),
                no_alloc: true,
            }));
            let userdata = (&raw const *task).cast_mut().cast();
            let (kind, none) = (sys::GGML_TYPE_F32, std::ptr::null_mut());
            let output = sys::ggml_custom_4d(
                context.0,
                kind,
                1,
                1,
                1,
                1,
                none,
                0,
                Some(run),
                threads,
                userdata,
            );
            let graph = sys::ggml_new_graph(context.0);
            sys::ggml_build_forward_expand(graph, output);
            (context, graph)
        };
        Ok(Self { backend, graph, task, _context: context })
    }

    /// Runs `work` once on each thread, with its number, and returns when all have ended.
    ///
    /// # Panics
    /// If `work` panics on any of them.
    pub(super) fn run(&mut self, work: &(dyn Fn(usize) + Sync)) {
        let work = Work(work);
        self.task.work.store((&raw const work).cast_mut().cast(), Ordering::Release);
        // SAFETY: the backend and the graph are valid. Nothing uses `work` after this returns.
        let status = unsafe { sys::ggml_backend_graph_compute(self.backend, self.graph) };
        self.task.work.store(std::ptr::null_mut(), Ordering::Release);
        let has_panicked = self.task.has_panicked.swap(false, Ordering::AcqRel);
        assert!(status == sys::GGML_STATUS_SUCCESS && !has_panicked, "work on the threads failed");
    }
}

/// The operation: called on each thread.
unsafe extern "C" fn run(_: *mut sys::ggml_tensor, thread: c_int, _: c_int, task: *mut c_void) {
    // SAFETY: the task lives as long as the graph, and the work as long as it is computed.
    let (task, work) = unsafe {
        let task = &*task.cast::<Task>();
        (task, task.work.load(Ordering::Acquire).cast::<Work<'_>>().as_ref())
    };
    let Some(Work(work)) = work else { return };
    // A panic must not reach C.
    if catch_unwind(AssertUnwindSafe(|| work(thread as usize))).is_err() {
        task.has_panicked.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::hardware::Kernel;
    use crate::llama::context::POLL;
    use crate::llama::register;

    #[test]
    fn work_runs_once_on_each_thread_again_and_again_and_panics_are_passed_on() {
        register(Kernel::Baseline);
        let pool = ThreadPool::new(3, POLL).unwrap();
        let mut workers = Workers::new(&pool, 3).unwrap();
        let counts = [const { AtomicUsize::new(0) }; 3];
        for round in 1..=50 {
            workers.run(&|thread| {
                counts[thread].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == round));
        }
        let failed = catch_unwind(AssertUnwindSafe(|| {
            workers.run(&|thread| assert_ne!(thread, 1, "thread 1 fails"));
        }));
        assert!(failed.is_err());
        workers.run(&|_| {});
    }
}
