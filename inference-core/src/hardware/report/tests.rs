//! Tests fake machines (bare metal, hybrid, containers, ARM) and this one.

use super::*;
use crate::hardware::cpus::Hybrid;
use crate::hardware::files::{FakeFiles, Root};
use crate::hardware::memory::Reserved;

const GIB: u64 = 1 << 30;
const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

/// CPUs with their SMT siblings in one package; the flags of an x86 machine.
fn cpus(files: FakeFiles, siblings: &[&str]) -> FakeFiles {
    let last = siblings.len() - 1;
    let files = files
        .file("/sys/devices/system/cpu/online", &format!("0-{last}\n"))
        .file("/proc/self/status", &format!("Name:\ta\nCpus_allowed_list:\t0-{last}\n"));
    siblings.iter().enumerate().fold(files, |files, (i, list)| {
        let folder = format!("/sys/devices/system/cpu/cpu{i}/topology");
        files
            .file(&format!("{folder}/core_cpus_list"), &format!("{list}\n"))
            .file(&format!("{folder}/physical_package_id"), "0\n")
    })
}

fn memory(files: FakeFiles, total: u64, available: u64) -> FakeFiles {
    let (total, available) = (total / 1024, available / 1024);
    let text = format!(
        "MemTotal: {total} kB\nMemFree: 1 kB\nMemAvailable: {available} kB\nSwapTotal: 0 kB\n"
    );
    files.file("/proc/meminfo", &text)
}

/// 8 cores with 16 threads, 64 GiB, no control groups.
fn bare_metal() -> FakeFiles {
    let siblings: Vec<String> = (0..16).map(|i| format!("{},{}", i % 8, i % 8 + 8)).collect();
    let siblings: Vec<&str> = siblings.iter().map(String::as_str).collect();
    let info = "processor\t: 0\nmodel name\t: AMD Ryzen 7\nflags\t\t: fpu avx2 fma f16c avx512f\n";
    memory(cpus(FakeFiles::default(), &siblings), 64 * GIB, 60 * GIB)
        .file("/proc/cpuinfo", info)
        .file("/sys/devices/system/cpu/cpu0/cache/index2/size", "1024K\n")
        .file("/sys/devices/system/cpu/cpu0/cache/index3/size", "32M\n")
        .file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
}

fn read(files: &FakeFiles) -> Machine {
    Machine::read(files, "x86_64")
}

#[test]
fn bare_metal_computes_with_its_physical_cores() {
    let machine = read(&bare_metal());
    let cpus = &machine.cpus;
    assert_eq!((cpus.cores, cpus.logical, cpus.sockets, cpus.smt), (8, 16, 1, true));
    assert_eq!((machine.threads, cpus.cache_bytes, cpus.hypervisor), (8, 32 << 20, false));
    assert_eq!(machine.memory.available_here, 60 * GIB);
    assert_eq!(machine.memory.huge_pages.as_deref(), Some("madvise"));
    assert_eq!((machine.container.as_deref(), machine.warnings.as_slice()), (None, &[][..]));
    let claimed: Vec<&str> =
        machine.simd.iter().filter(|s| s.claimed).map(|s| s.level.name()).collect();
    assert_eq!(claimed, ["avx2", "fma", "f16c", "avx512f"]);
    let text = machine.to_string();
    assert!(text.contains("AMD Ryzen 7") && text.contains("60.0 GiB"), "{text}");
}

#[test]
fn the_affinity_mask_counts_cores_not_their_threads() {
    let files = bare_metal().file("/proc/self/status", "Cpus_allowed_list:\t0-1,8-9\n");
    let machine = read(&files);
    assert_eq!((machine.cpus.cores_allowed, machine.cpus.logical_allowed), (2, 4));
    assert_eq!(machine.threads, 2);
    assert!(machine.warnings[0].contains("2 of 8 cores"));
}

#[test]
fn of_two_kinds_of_cores_the_fast_ones_compute() {
    // Two cores with two threads each, four with one.
    let siblings = ["0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"];
    let plain = memory(cpus(FakeFiles::default(), &siblings), 16 * GIB, 12 * GIB);
    let typed = plain
        .clone()
        .file("/sys/devices/cpu_core/cpus", "0-3\n")
        .file("/sys/devices/cpu_atom/cpus", "4-7\n");
    let by_frequency = (0..8).fold(plain.clone(), |files, i| {
        let path = format!("/sys/devices/system/cpu/cpu{i}/cpufreq/cpuinfo_max_freq");
        files.file(&path, if i < 4 { "5000000\n" } else { "3600000\n" })
    });
    let by_capacity = (0..8).fold(plain.clone(), |files, i| {
        let path = format!("/sys/devices/system/cpu/cpu{i}/cpu_capacity");
        files.file(&path, if i < 4 { "1024\n" } else { "420\n" })
    });
    for (files, told_by) in
        [(typed, "core types"), (by_frequency, "highest frequency"), (by_capacity, "cpu_capacity")]
    {
        let machine = read(&files);
        let expected = Hybrid { performance_cores: 2, efficiency_cores: 4, told_by };
        assert_eq!((machine.threads, machine.cpus.hybrid), (2, Some(expected)));
    }
    let favoured = (0..8).fold(plain, |files, i| {
        let path = format!("/sys/devices/system/cpu/cpu{i}/cpufreq/cpuinfo_max_freq");
        files.file(&path, if i == 0 { "5500000\n" } else { "5200000\n" })
    });
    assert_eq!(read(&favoured).cpus.hybrid, None, "one core turbos a little higher");
}

#[test]
fn the_smallest_quota_and_limit_of_all_ancestors_count_without_file_cache() {
    let files = bare_metal()
        .file("/proc/self/cgroup", "0::/flotilla.slice/agent.service\n")
        .file("/proc/self/mountinfo", V2)
        .file("/sys/fs/cgroup/flotilla.slice/cpu.max", "150000 100000\n")
        .file("/sys/fs/cgroup/flotilla.slice/memory.max", &format!("{}\n", 2 * GIB))
        .file("/sys/fs/cgroup/flotilla.slice/memory.high", "max\n")
        .file("/sys/fs/cgroup/flotilla.slice/memory.current", &format!("{}\n", GIB + GIB / 2))
        .file(
            "/sys/fs/cgroup/flotilla.slice/memory.stat",
            &format!("anon 1\ninactive_file {}\nactive_file {}\n", GIB / 2, GIB / 2),
        )
        .file("/sys/fs/cgroup/flotilla.slice/agent.service/cpu.max", "max 100000\n")
        .file("/sys/fs/cgroup/flotilla.slice/agent.service/memory.max", "max\n");
    let machine = read(&files);
    assert_eq!((machine.cgroup.cpu_quota, machine.threads), (Some(1.5), 1));
    assert_eq!(machine.cgroup.memory_limit, Some(2 * GIB));
    assert_eq!(machine.memory.available_here, 2 * GIB - GIB / 2, "cache gives way");
    assert!(machine.memory.bound_by.contains("flotilla.slice"));
    assert_eq!(machine.warnings, ["quota of 1.5 CPUs (/sys/fs/cgroup/flotilla.slice): 1 thread"]);
    let throttled = files.file("/sys/fs/cgroup/flotilla.slice/memory.high", &format!("{GIB}\n"));
    assert_eq!(read(&throttled).cgroup.memory_limit, Some(GIB));
}

#[test]
fn version_1_groups_are_read_through_a_containers_mounts() {
    let mounts = "31 30 0:28 /docker/abc /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
        32 30 0:29 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    let files = bare_metal()
        .file("/proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/\n")
        .file("/proc/self/mountinfo", mounts)
        .file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "350000\n")
        .file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
        .file("/sys/fs/cgroup/memory/memory.limit_in_bytes", &format!("{GIB}\n"))
        .file("/sys/fs/cgroup/memory/memory.usage_in_bytes", &format!("{}\n", GIB / 2))
        .file("/sys/fs/cgroup/memory/memory.stat", &format!("total_inactive_file {}\n", GIB / 4));
    let machine = read(&files);
    assert_eq!((machine.cgroup.cpu_quota, machine.threads), (Some(3.5), 3));
    assert_eq!(machine.memory.available_here, GIB / 4 * 3);
    assert_eq!(machine.container.as_deref(), Some("docker"));
    let unlimited = files
        .file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
        .file("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_eq!(read(&unlimited).cgroup, Cgroup::default());
    assert_eq!(read(&unlimited).threads, 8);
}

#[test]
fn a_pod_sees_only_its_own_group() {
    let files = bare_metal()
        .file("/proc/self/cgroup", "0::/\n")
        .file("/proc/self/mountinfo", "900 800 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n")
        .file("/var/run/secrets/kubernetes.io/serviceaccount/token", "x")
        .file("/sys/fs/cgroup/cpu.max", "50000 100000\n")
        .file("/sys/fs/cgroup/memory.max", &format!("{}\n", 4 * GIB))
        .file("/sys/fs/cgroup/memory.current", &format!("{}\n", 5 * GIB));
    let machine = read(&files);
    assert_eq!((machine.threads, machine.cgroup.cpu_quota), (1, Some(0.5)));
    assert_eq!(machine.memory.available_here, 0, "over its limit already");
    assert_eq!(machine.container.as_deref(), Some("kubernetes"));
    let outside = files.file("/proc/self/cgroup", "0::/../../other\n");
    assert_eq!(read(&outside).cgroup.cpu_quota, Some(0.5), "a path outside of the mount");
}

#[test]
fn arm_machines_are_named_by_their_parts() {
    let graviton = "processor\t: 0\nFeatures\t: fp asimd asimddp asimdhp i8mm sve bf16\n\
        CPU implementer\t: 0x41\nCPU part\t: 0xd40\n";
    let files = memory(cpus(FakeFiles::default(), &["0", "1", "2", "3"]), 8 * GIB, 7 * GIB)
        .file("/proc/cpuinfo", graviton)
        .file("/proc/self/smaps", "0-1 r--p 0 0:0 0 a\nSize: 64 kB\nKernelPageSize:       64 kB\n");
    let machine = Machine::read(&files, "aarch64");
    assert_eq!((machine.cpus.model.as_str(), machine.threads), ("Neoverse V1", 4));
    let claimed: Vec<&str> =
        machine.simd.iter().filter(|s| s.claimed).map(|s| s.level.name()).collect();
    assert_eq!(claimed, ["neon", "dotprod", "i8mm", "fp16", "bf16", "sve"]);
    assert_eq!(machine.memory.page, 65_536);
    let pi = files
        .file("/proc/cpuinfo", &graviton.replace("0xd40", "0xd0b"))
        .file("/sys/firmware/devicetree/base/model", "Raspberry Pi 5 Model B Rev 1.0\0");
    let machine = Machine::read(&pi, "aarch64");
    assert_eq!(machine.cpus.model, "Raspberry Pi 5 Model B Rev 1.0 (Cortex-A76)");
}

#[test]
fn limits_swap_and_huge_pages_are_warned_about() {
    let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
        Max locked memory         8388608              unlimited            bytes\n\
        Max address space         1073741824           unlimited            bytes\n";
    let files = memory(bare_metal(), 8 * GIB, 6 * GIB)
        .file("/proc/self/limits", limits)
        .file("/proc/sys/vm/overcommit_memory", "2\n")
        .file("/proc/sys/vm/swappiness", "60\n")
        .file(
            "/proc/meminfo",
            "MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\nSwapTotal: 1000 kB\nSwapFree: 10 kB\n",
        )
        .file("/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n")
        .file("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "8\n")
        .file("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n")
        .file("/sys/devices/system/node/online", "0-1\n")
        .file(
            "/sys/devices/system/node/node0/meminfo",
            "Node 0 MemTotal:  4000000 kB\nNode 0 MemFree: 1 kB\n",
        )
        .file("/sys/devices/system/node/node0/cpulist", "0-7\n")
        .file("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  4000000 kB\n");
    let machine = read(&files);
    assert_eq!((machine.memory.lockable, machine.memory.available_here), (Some(8 << 20), GIB));
    assert_eq!(machine.memory.bound_by, "RLIMIT_AS");
    let expected = Reserved { size: 2 << 20, count: 8, free: 0 };
    assert_eq!(
        (machine.memory.reserved.as_slice(), machine.memory.nodes.len()),
        (&[expected][..], 2)
    );
    assert_eq!(machine.memory.nodes[0].total, 4_096_000_000);
    for word in
        ["swap is on", "THP is never", "overcommit_memory is 2", "RLIMIT_AS", "2 NUMA nodes"]
    {
        assert!(
            machine.warnings.iter().any(|w| w.contains(word)),
            "{word}: {:?}",
            machine.warnings
        );
    }
}

#[test]
fn what_is_claimed_and_dies_is_warned_about() {
    let mut machine = read(&bare_metal());
    machine.add_trial(Level::Avx2, true, Some(true));
    machine.add_trial(Level::AmxTile, true, Some(false));
    machine.add_trial(Level::AvxVnni, false, Some(false));
    assert_eq!(machine.warnings, ["amx_tile is advertised but kills the process: not used"]);
    let text = machine.to_string();
    assert!(text.contains("runs            avx2") && text.contains("warning: amx_tile"), "{text}");
    let json = serde_json::to_value(&machine).unwrap();
    assert_eq!(
        json["simd"][2],
        serde_json::json!({"level": "avx2", "claimed": true, "runs": true})
    );
}

#[test]
fn without_any_file_there_is_one_core_and_a_warning() {
    let machine = read(&FakeFiles::default());
    assert_eq!((machine.threads, machine.cpus.cores, machine.memory.available_here), (1, 1, 0));
    assert!(machine.warnings[0].contains("/proc/meminfo"));
}

#[test]
fn cpuinfo_alone_tells_cores_where_there_is_no_sys() {
    let block =
        |cpu, core| format!("processor\t: {cpu}\nphysical id\t: 0\ncore id\t\t: {core}\n\n");
    let info: String = (0..4).map(|cpu| block(cpu, cpu / 2)).collect();
    let machine = read(&FakeFiles::default().file("/proc/cpuinfo", &info));
    assert_eq!((machine.cpus.cores, machine.cpus.logical, machine.threads), (2, 4, 2));
}

#[test]
fn this_machine_has_a_core_memory_and_a_table() {
    let machine = Machine::read(&Root::machine(), std::env::consts::ARCH);
    assert!(machine.threads >= 1 && machine.cpus.cores >= 1, "{machine}");
    assert!(machine.memory.total > 0 && machine.memory.available_here <= machine.memory.available);
    assert!(machine.memory.page >= 4096 && !machine.to_string().is_empty());
}
