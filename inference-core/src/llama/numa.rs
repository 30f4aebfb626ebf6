//! Memory on machines with several NUMA nodes. By default, a page lies on the node of the thread
//! that touches it first. One thread reads most weights, so that they would lie on one node, and
//! all threads would wait for its memory. Taken from all nodes in turn, weights and KV cells have
//! the bandwidth of all of them. One engine on each node, next to its memory, is faster still.

use std::io;
use std::ptr::null_mut;

use crate::hardware::files::Files;
use crate::hardware::memory::nodes_in_use;

/// Kernels have at most 1,024 nodes (`MAX_NUMNODES`).
const NODES_MAX: usize = 1024;
/// What the kernel takes for its size: it leaves the last bit out.
const MASK_BITS: usize = NODES_MAX + 1;

/// Has what this thread allocates, and all threads that it starts later, come in turn from the
/// nodes whose CPUs they may use. Returns how many nodes that are: 1 if there is only one, or if
/// somebody has chosen (such as with `numactl`).
///
/// # Errors
/// The system does not allow it, as in a container.
pub fn spread_memory(files: &impl Files) -> io::Result<usize> {
    let nodes = nodes_in_use(files);
    if nodes.len() < 2 || policy()? != libc::MPOL_DEFAULT {
        return Ok(1);
    }
    let mut mask = [0_u64; NODES_MAX / 64];
    for node in nodes.iter().map(|node| *node as usize) {
        if let Some(word) = mask.get_mut(node / 64) {
            *word |= 1 << (node % 64);
        }
    }
    // SAFETY: the kernel reads the mask, which has that many bits, and changes no memory.
    let set = unsafe {
        libc::syscall(
            libc::SYS_set_mempolicy,
            libc::c_long::from(libc::MPOL_INTERLEAVE),
            mask.as_ptr(),
            MASK_BITS,
        )
    };
    if set == 0 { Ok(nodes.len()) } else { Err(io::Error::last_os_error()) }
}

/// The policy of this thread.
fn policy() -> io::Result<libc::c_int> {
    let mut mode: libc::c_int = 0;
    // SAFETY: the kernel writes the mode; without a mask and an address, nothing else.
    let got = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            null_mut::<u64>(),
            0_usize,
            null_mut::<u8>(),
            0_usize,
        )
    };
    if got == 0 { Ok(mode) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::files::Root;

    #[test]
    fn memory_of_a_machine_with_one_node_stays_as_it_is() {
        if nodes_in_use(&Root::machine()).len() < 2 {
            assert_eq!(spread_memory(&Root::machine()).unwrap(), 1);
            assert_eq!(policy().unwrap(), libc::MPOL_DEFAULT);
        }
    }
}
