//! Tests the doctor on fake machines.

use std::collections::BTreeMap;

use inference_core::hardware::files::Files;
use inference_core::model_file::gguf::Header;
use inference_core::model_file::memory_plan::{LoadMode, RequestedSettings};

use super::*;
use crate::commands::doctor::facts::{Disk, JoinCheck, Model};
use crate::commands::doctor::finding::Level;
use crate::engine::sandbox::{Part, Sandbox};

/// Fake kernel files.
#[derive(Debug, Clone, Default)]
struct MadeUp(BTreeMap<String, String>);

impl MadeUp {
    fn file(mut self, path: &str, text: &str) -> Self {
        self.0.insert(path.into(), text.into());
        self
    }
}

impl Files for MadeUp {
    fn text(&self, path: &str) -> Option<String> {
        self.0.get(path).cloned()
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let inside = self.0.keys().filter_map(|path| path.strip_prefix(folder)?.strip_prefix('/'));
        inside.filter_map(|rest| rest.split('/').next()).map(String::from).collect()
    }
}

const INFO: &str = "processor\t: 0\nmodel name\t: Test CPU\nflags\t\t: avx2 fma f16c bmi2\n\n\
                    processor\t: 1\n";
const LIMITS: &str = "Max open files            65536                65536                files\n";

/// Two cores and 8 GiB, configured well.
fn good() -> MadeUp {
    MadeUp::default()
        .file("/proc/cpuinfo", INFO)
        .file("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 7340032 kB\nSwapTotal: 0 kB\n")
        .file("/proc/stat", "cpu  50 0 10 40 0 0 0 0 0 0\n")
        .file("/proc/self/limits", LIMITS)
        .file("/proc/sys/vm/overcommit_memory", "0\n")
        .file("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
        .file("/sys/devices/system/cpu/cpufreq/policy0/scaling_governor", "performance\n")
        .file("/run/systemd/timesync/synchronized", "")
}

fn facts(files: &MadeUp) -> Facts {
    let disk = Disk { folder: "/models".into(), free: Some(50 << 30) };
    Facts { disk, ..Facts::read(files, "x86_64") }
}

/// The only finding with that name.
fn finding(facts: &Facts, name: &str) -> Finding {
    let report = diagnose(facts);
    let found: Vec<&Finding> = report.findings.iter().filter(|f| f.name == name).collect();
    assert_eq!(found.len(), 1, "'{name}' in {report}");
    found[0].clone()
}

/// Checks the finding `name` on a machine where one file differs: its level, and a part of its text
/// or fix.
fn expect(path: &str, text: &str, name: &str, level: Level, part: &str) {
    let finding = finding(&facts(&good().file(path, text)), name);
    assert_eq!(finding.level, level, "{finding:?}");
    assert_eq!(finding.fix.is_some(), level != Level::Ok, "{finding:?}");
    let text = finding.says + &finding.fix.unwrap_or_default();
    assert!(text.contains(part), "{text}");
}

#[test]
fn a_good_machine_has_nothing_to_improve() {
    let report = diagnose(&facts(&good()));
    assert_eq!(report.level, Level::Ok, "{report}");
    assert!(report.findings.len() >= 9, "{report}");
    assert!(report.findings.iter().all(|f| f.fix.is_none()), "{report}");
}

#[test]
fn each_trouble_of_a_machine_is_named_with_its_fix() {
    let swap = "MemTotal: 8388608 kB\nMemAvailable: 7340032 kB\nSwapTotal: 2097152 kB\n";
    expect("/proc/meminfo", swap, "swap", Level::Warn, "vm.swappiness=10");
    let little = "MemTotal: 524288 kB\nMemAvailable: 204800 kB\nSwapTotal: 0 kB\n";
    expect("/proc/meminfo", little, "memory", Level::Warn, "200 MiB");
    expect("/proc/sys/vm/overcommit_memory", "2\n", "overcommit", Level::Warn, "sysctl -p");
    let thp = "/sys/kernel/mm/transparent_hugepage/enabled";
    expect(thp, "always madvise [never]\n", "hugepages", Level::Warn, "tmpfiles.d");
    let governor = "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor";
    expect(governor, "powersave\n", "governor", Level::Warn, "tee /sys/devices");
    expect("/proc/stat", "cpu  50 0 10 40 0 0 0 10 0 0\n", "steal", Level::Warn, "9.1 %");
    let limits = LIMITS.replace("65536", "1024 ");
    expect("/proc/self/limits", &limits, "files", Level::Warn, "ulimit -n");
    let limits =
        format!("{LIMITS}Max address space         1073741824           unlimited  bytes\n");
    expect("/proc/self/limits", &limits, "rlimit", Level::Warn, "ulimit -v");
    let old = INFO.replace("avx2 ", "");
    expect("/proc/cpuinfo", &old, "cpu", Level::Fail, "Test CPU lacks avx2");
    expect("/proc/self/status", "Cpus_allowed_list:\t0\n", "cores", Level::Warn, "1 of 2 cores");
}

#[test]
fn swap_that_is_used_last_is_no_trouble() {
    let swap = "MemTotal: 8388608 kB\nMemAvailable: 7340032 kB\nSwapTotal: 2097152 kB\n";
    let files = good().file("/proc/meminfo", swap).file("/proc/sys/vm/swappiness", "10\n");
    assert_eq!(finding(&facts(&files), "swap").level, Level::Ok);
}

#[test]
fn a_quota_is_told_and_one_that_cuts_a_core_is_trouble() {
    let grouped = |quota: &str| {
        let files = good()
            .file("/proc/self/cgroup", "0::/a\n")
            .file("/proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n")
            .file("/cg/a/cpu.max", quota)
            .file("/cg/a/memory.max", "1048576000\n")
            .file("/cg/a/memory.current", "0\n");
        facts(&files)
    };
    let whole = grouped("100000 100000\n");
    assert_eq!(finding(&whole, "quota").level, Level::Ok);
    assert!(finding(&whole, "memory").says.contains("/cg/a"), "memory is bound by the group");
    let cut = finding(&grouped("150000 100000\n"), "quota");
    assert_eq!(cut.level, Level::Warn);
    assert!(cut.says.contains("1.5 CPUs: 1 compute"), "{}", cut.says);
}

#[test]
fn kernels_that_were_tried_count_more_than_claims() {
    let old = good().file("/proc/cpuinfo", &INFO.replace("avx2 ", ""));
    let runs = Facts { kernel: Some(Ok("the baseline kernels work".into())), ..facts(&old) };
    assert_eq!(finding(&runs, "cpu").level, Level::Ok);
    let dies = Facts { kernel: Some(Err("signal 4".into())), ..facts(&good()) };
    assert_eq!(finding(&dies, "cpu").level, Level::Fail);
}

#[test]
fn the_clock_of_a_container_is_its_hosts() {
    let mut files = good();
    files.0.remove("/run/systemd/timesync/synchronized");
    assert_eq!(finding(&facts(&files), "clock").level, Level::Warn);
    let container = facts(&files.file("/.dockerenv", ""));
    assert!(diagnose(&container).findings.iter().all(|f| f.name != "clock"));
}

#[test]
fn a_disk_without_room_and_a_folder_that_is_missing_are_named() {
    let disk = |free| Disk { folder: "/models".into(), free };
    let full = Facts { disk: disk(Some(1 << 20)), ..facts(&good()) };
    assert!(finding(&full, "disk").says.contains("1.00 MiB free in /models"));
    let missing = Facts { disk: disk(None), ..facts(&good()) };
    assert_eq!(finding(&missing, "disk").fix.as_deref(), Some("sudo mkdir -p /models"));
}

#[test]
fn a_model_is_planned_and_one_that_cannot_be_read_fails() {
    let model = |header, load| {
        let wanted = RequestedSettings { load, ..RequestedSettings::default() };
        let model = Model { file: "m.gguf".into(), bytes: 2 << 30, header, wanted };
        Facts { model: Some(model), ..facts(&good()) }
    };
    let missing = model(Err("no such file".into()), LoadMode::Mmap);
    let found = finding(&missing, "model");
    assert_eq!((found.level, found.says.as_str()), (Level::Fail, "no such file"));
    assert!(found.fix.unwrap().contains("--to /models"));
    let strange = model(Ok(Header::default()), LoadMode::Mlock);
    assert_eq!(finding(&strange, "model").level, Level::Warn);
    assert_eq!(finding(&strange, "mlock").level, Level::Ok, "there is no limit");
    let locked = format!("{LIMITS}Max locked memory         8388608              8388608  bytes\n");
    let little = facts(&good().file("/proc/self/limits", &locked)).machine;
    let strange = Facts { machine: little, ..strange };
    assert_eq!(finding(&strange, "mlock").level, Level::Fail);
}

#[test]
fn each_gateway_is_told_of() {
    let check = |reached| {
        let gateways = vec![("http://gw:8080/".to_string(), reached)];
        finding(&Facts { gateways, ..facts(&good()) }, "gateway")
    };
    assert_eq!(check(JoinCheck::Accepted).level, Level::Ok);
    let refused = check(JoinCheck::Refused("wrong key".into()));
    assert!(refused.level == Level::Fail && refused.fix.unwrap().contains("join.key"));
    let gone = check(JoinCheck::Unreachable("connecting failed".into()));
    assert_eq!(gone.fix.as_deref(), Some("curl -v http://gw:8080/livez"));
}

#[test]
fn what_confines_an_engine_here_is_told() {
    let with = |sandbox| Facts { sandbox: Some(sandbox), ..facts(&good()) };
    let whole = Sandbox { files: Part::On, system_calls: Part::On };
    assert_eq!(finding(&with(Ok(whole)), "sandbox").level, Level::Ok);
    let half = Sandbox { files: Part::Missing("no Landlock".into()), system_calls: Part::On };
    let found = finding(&with(Ok(half)), "sandbox");
    assert_eq!(found.level, Level::Warn);
    assert!(found.says.contains("system calls only (files: no Landlock)"), "{found:?}");
    assert!(found.fix.unwrap().contains("/sys/kernel/security/lsm"));
    assert_eq!(finding(&with(Err("it hangs".into())), "sandbox").level, Level::Warn);
}
