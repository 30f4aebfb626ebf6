//! CPU affinity of threads.

use std::io;

/// Restricts this thread, and all that it starts later, to these CPUs.
pub(crate) fn stay_on(cpus: &[u32]) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| (**cpu as usize) < rustix::thread::CpuSet::MAX_CPU) {
        set.set(*cpu as usize);
    }
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}
