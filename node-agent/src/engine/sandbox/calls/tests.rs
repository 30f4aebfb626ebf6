//! Runs the filter as the kernel would.

use seccompiler::sock_filter;

use super::*;

const OWN: u32 = 4711;
/// `seccomp_data` of linux/seccomp.h: number, architecture, instruction pointer, arguments.
const ARCHITECTURE: u32 = if cfg!(target_arch = "x86_64") { 0xc000_003e } else { 0xc000_00b7 };

struct Call {
    number: u32,
    architecture: u32,
    arguments: [u64; 6],
}

impl Call {
    fn word(&self, offset: u32) -> u32 {
        match offset {
            0 => self.number,
            4 => self.architecture,
            16.. => {
                let argument = self.arguments[(offset as usize - 16) / 8];
                (if offset % 8 == 4 { argument >> 32 } else { argument }) as u32
            }
            _ => 0,
        }
    }
}

/// Interprets a classic BPF program with the instructions that seccompiler emits.
fn run(program: &[sock_filter], call: &Call) -> u32 {
    let (mut at, mut a) = (0, 0u32);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let is_met = match code {
            // Load a word; and; return.
            0x20 => {
                a = call.word(k);
                continue;
            }
            0x54 => {
                a &= k;
                continue;
            }
            0x06 => return k,
            // Jumps: always, equal, greater, greater or equal.
            0x05 => {
                at += k as usize;
                continue;
            }
            0x15 => a == k,
            0x25 => a > k,
            0x35 => a >= k,
            other => panic!("an instruction that is not known here: {other:#x}"),
        };
        at += usize::from(if is_met { jt } else { jf });
    }
}

/// True if the call is allowed; otherwise checks that it fails with our error.
fn is_allowed(number: c_long, arguments: &[u64]) -> bool {
    is_allowed_with(false, number, arguments)
}

fn is_allowed_with(writes_files: bool, number: c_long, arguments: &[u64]) -> bool {
    let program = program(OWN, writes_files).unwrap();
    let mut all = [0; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let call = Call { number: number as u32, architecture: ARCHITECTURE, arguments: all };
    match run(&program, &call) {
        0x7fff_0000 => true,
        refused => {
            assert_eq!(refused, 0x0005_0000 | REFUSED as u32, "system call {number}");
            false
        }
    }
}

#[test]
fn what_leads_out_of_the_process_is_refused() {
    for call in [
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_listen,
        libc::SYS_accept4,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_clone3,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_tkill,
        libc::SYS_rt_sigqueueinfo,
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_getfd,
        libc::SYS_mount,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_keyctl,
        libc::SYS_add_key,
        libc::SYS_io_uring_setup,
        libc::SYS_memfd_create,
        libc::SYS_openat2,
        libc::SYS_open_by_handle_at,
        libc::SYS_unlinkat,
        libc::SYS_renameat2,
        libc::SYS_linkat,
        libc::SYS_mkdirat,
        libc::SYS_mknodat,
        libc::SYS_ftruncate,
        libc::SYS_fchmod,
        libc::SYS_ioctl,
        libc::SYS_setpriority,
        libc::SYS_seccomp,
        100_000,
    ] {
        assert!(!is_allowed(call, &[]), "{call}");
    }
}

#[test]
fn files_are_read_and_never_written() {
    let open = |flags: c_int| is_allowed(libc::SYS_openat, &[0, 0, flags as u64]);
    assert!(open(libc::O_RDONLY | libc::O_CLOEXEC));
    assert!(open(libc::O_RDONLY | libc::O_DIRECT));
    for flags in [
        libc::O_WRONLY,
        libc::O_RDWR,
        libc::O_CREAT,
        libc::O_TRUNC,
        libc::O_TMPFILE,
        libc::O_APPEND,
        libc::O_ACCMODE,
    ] {
        assert!(!open(flags | libc::O_CLOEXEC), "{flags:#x}");
    }
    // The kernel ignores the upper half.
    assert!(!is_allowed(libc::SYS_openat, &[0, 0, libc::O_RDWR as u64 | 1 << 32]));
}

#[test]
fn files_are_written_with_a_folder_for_them_and_nothing_else_is_allowed() {
    for flags in [libc::O_WRONLY, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, libc::O_RDONLY] {
        assert!(is_allowed_with(true, libc::SYS_openat, &[0, 0, flags as u64]), "{flags:#x}");
    }
    for call in [libc::SYS_unlinkat, libc::SYS_renameat2, libc::SYS_getdents64, libc::SYS_fdatasync]
    {
        assert!(is_allowed_with(true, call, &[]) && !is_allowed(call, &[]), "{call}");
    }
    for call in [
        libc::SYS_socket,
        libc::SYS_execve,
        libc::SYS_linkat,
        libc::SYS_symlinkat,
        libc::SYS_mkdirat,
        libc::SYS_mknodat,
        libc::SYS_ftruncate,
        libc::SYS_fchmod,
        libc::SYS_fchmodat,
        libc::SYS_fchownat,
        libc::SYS_flock,
        libc::SYS_mount,
    ] {
        assert!(!is_allowed_with(true, call, &[]), "{call}");
    }
}

#[test]
fn threads_are_started_and_processes_are_not() {
    // The flags that glibc uses for threads, and fork.
    let thread = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SETTLS;
    assert!(is_allowed(libc::SYS_clone, &[thread as u64]));
    for flags in [libc::SIGCHLD, libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, 0] {
        assert!(!is_allowed(libc::SYS_clone, &[flags as u64]), "{flags:#x}");
    }
}

#[test]
fn signals_stay_inside() {
    for call in [libc::SYS_kill, libc::SYS_tgkill] {
        assert!(is_allowed(call, &[OWN.into(), 9]));
        for other in [0, 1, u64::MAX, u64::from(OWN) + 1] {
            assert!(!is_allowed(call, &[other, 9]), "{other}");
        }
    }
    let limits = |of: u64, new: u64| is_allowed(libc::SYS_prlimit64, &[of, 7, new, 1]);
    assert!(limits(0, 0) && !limits(0, 1 << 40) && !limits(1, 0));
    let prctl = |option: c_int| is_allowed(libc::SYS_prctl, &[option as u64]);
    assert!(prctl(libc::PR_SET_NAME) && prctl(SVE_GET_VL));
    assert!(!prctl(libc::PR_SET_PDEATHSIG) && !prctl(libc::PR_SET_SECCOMP));
    let fcntl = |command: c_int| is_allowed(libc::SYS_fcntl, &[3, command as u64]);
    assert!(fcntl(libc::F_GETFL) && fcntl(libc::F_DUPFD_CLOEXEC));
    // F_SETSIG and F_SETOWN_EX of linux/fcntl.h come first.
    for command in [10, 15, libc::F_SETOWN, libc::F_SETLEASE, libc::F_NOTIFY, libc::F_SETPIPE_SZ] {
        assert!(!fcntl(command), "{command}");
    }
}

#[test]
fn memory_is_data() {
    let data = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    let code = (libc::PROT_READ | libc::PROT_EXEC) as u64;
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        assert!(is_allowed(call, &[0, 4096, data]) && !is_allowed(call, &[0, 4096, code]));
    }
}

#[test]
fn system_calls_of_another_architecture_end_the_process() {
    let program = program(OWN, false).unwrap();
    let call = Call { number: 3, architecture: 0x4000_0003, arguments: [0; 6] };
    assert_eq!(run(&program, &call), 0x8000_0000, "32 bits");
}
