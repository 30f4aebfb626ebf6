//! Seccomp: restricts the system calls of a thread and all that it starts.
//!
//! This is an allowlist, because no one can list what future kernels will add. All other calls fail
//! with ENOSYS, as on a kernel that lacks them: C libraries and runtimes must handle that and fall
//! back (glibc from `clone3` to `clone`, whose flags the filter can inspect), so a newer one that
//! tries a new call finds another way instead of being killed.

use std::collections::BTreeMap;

use libc::{c_int, c_long};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// Error of a system call that is not allowed.
pub(crate) const REFUSED: i32 = libc::ENOSYS;

/// System calls that are allowed with any arguments: they affect only this process and the files it
/// has open.
const ALLOWED: &[c_long] = &[
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mremap,
    libc::SYS_munlock,
    libc::SYS_munmap,
    // Threads.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_membarrier,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    // Its own signals.
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Time.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    // Open files: the model, the connection to the agent, standard error.
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_fadvise64,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_newfstatat,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_shutdown,
    libc::SYS_statx,
    libc::SYS_write,
    libc::SYS_writev,
    // Identity and location.
    libc::SYS_getcwd,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_readlinkat,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Calls that only x86-64 has. `arch_prctl` requests AMX tiles.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[c_long] = &[
    libc::SYS_arch_prctl,
    libc::SYS_lstat,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_stat,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[c_long] = &[];

/// System calls for files in folders, which Landlock confines to them. `open` with any flags is
/// allowed as well.
const FOLDER: &[c_long] = &[
    libc::SYS_fdatasync,
    libc::SYS_fsync,
    libc::SYS_getdents64,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
];
#[cfg(target_arch = "x86_64")]
const FOLDER_HERE: &[c_long] = &[libc::SYS_open, libc::SYS_rename, libc::SYS_unlink];
#[cfg(not(target_arch = "x86_64"))]
const FOLDER_HERE: &[c_long] = &[];

/// Allowed `prctl` operations: names of threads and of memory, and vector lengths.
const PRCTL: &[c_int] = &[
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_SET_VMA,
    libc::PR_GET_DUMPABLE,
    SVE_GET_VL,
    SME_GET_VL,
];

/// Allowed `fcntl` commands. Not those that have the kernel send signals to any process.
const FCNTL: &[c_int] = &[
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
];

/// PR_SVE_GET_VL and PR_SME_GET_VL from linux/prctl.h, which libc lacks.
const SVE_GET_VL: c_int = 51;
const SME_GET_VL: c_int = 64;

/// Flags of `open` that do more than read: write modes, O_CREAT, O_TRUNC, O_APPEND, and the bits of
/// O_TMPFILE outside O_DIRECTORY.
const WRITES: c_int = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_TRUNC
    | libc::O_APPEND
    | (libc::O_TMPFILE & !libc::O_DIRECTORY);

/// Restricts this thread to the system calls above; those for files in a folder only if it
/// `writes_files`.
pub(crate) fn confine(writes_files: bool) -> Result<(), String> {
    let program = program(std::process::id(), writes_files).map_err(|e| format!("seccomp: {e}"))?;
    seccompiler::apply_filter(&program).map_err(|e| match e {
        seccompiler::Error::Seccomp(e) | seccompiler::Error::Prctl(e) => format!("seccomp: {e}"),
        e => format!("seccomp: {e}"),
    })
}

/// The filter for the process with id `own`.
fn program(own: u32, writes_files: bool) -> Result<BpfProgram, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in ALLOWED.iter().chain(ALLOWED_HERE) {
        rules.insert(*call, Vec::new());
    }
    for (call, conditions) in conditional(own.into())? {
        rules.entry(call).or_default().push(SeccompRule::new(conditions)?);
    }
    if writes_files {
        for call in FOLDER.iter().chain(FOLDER_HERE).chain(&[libc::SYS_openat]) {
            // Without conditions, whatever they were.
            rules.insert(*call, Vec::new());
        }
    }
    let (refuse, allow) = (SeccompAction::Errno(REFUSED as u32), SeccompAction::Allow);
    let filter = SeccompFilter::new(rules, refuse, allow, std::env::consts::ARCH.try_into()?)?;
    filter.try_into()
}

type Conditional = (c_long, Vec<SeccompCondition>);

/// System calls that are allowed with certain arguments only.
fn conditional(own: u64) -> Result<Vec<Conditional>, BackendError> {
    let exec = libc::PROT_EXEC as u64;
    let thread = libc::CLONE_THREAD as u64;
    let mut all = vec![
        // Threads, but no processes. The flags are the first argument on both architectures.
        (libc::SYS_clone, vec![masked(0, thread, thread)?]),
        // Memory that is not executable.
        (libc::SYS_mmap, vec![masked(2, exec, 0)?]),
        (libc::SYS_mprotect, vec![masked(2, exec, 0)?]),
        // Opening files for reading. Landlock decides which ones.
        (libc::SYS_openat, vec![masked(2, WRITES as u64, 0)?]),
        // Signals to itself: abort, and the end of an engine.
        (libc::SYS_kill, vec![is(0, own)?]),
        (libc::SYS_tgkill, vec![is(0, own)?]),
        // Reading its own limits.
        (libc::SYS_prlimit64, vec![is(0, 0)?, is_zero(2)?]),
    ];
    #[cfg(target_arch = "x86_64")]
    all.push((libc::SYS_open, vec![masked(1, WRITES as u64, 0)?]));
    for option in PRCTL {
        all.push((libc::SYS_prctl, vec![is(0, *option as u64)?]));
    }
    for command in FCNTL {
        all.push((libc::SYS_fcntl, vec![is(1, *command as u64)?]));
    }
    Ok(all)
}

/// The kernel treats these arguments as 32-bit numbers and ignores the upper half.
fn is(argument: u8, value: u64) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

fn masked(argument: u8, mask: u64, value: u64) -> Result<SeccompCondition, BackendError> {
    let masked = SeccompCmpOp::MaskedEq(mask);
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, masked, value)
}

/// A null pointer.
fn is_zero(argument: u8) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}

#[cfg(test)]
mod tests;
