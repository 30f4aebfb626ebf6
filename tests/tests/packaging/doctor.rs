//! `flotilla-agent doctor`: the real program on made-up machines, and at real gateways.

use std::path::Path;

use fleet_tests::demo_model;
use fleet_tests::process::{Fleet, Folder, JOIN_KEY, Ran, program, run_command};
use serde_json::Value;

/// Runs it on the machine whose files are below `root`.
fn doctor(root: &Path, arguments: &[&str]) -> Ran {
    let root = root.to_str().unwrap();
    let all = [&["doctor", "--quick", "--root", root], arguments].concat();
    tokio::task::block_in_place(|| run_command(program("flotilla-agent", &all)))
}

/// The finding of that name.
fn finding(ran: &Ran, name: &str) -> Value {
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let all = report["findings"].as_array().unwrap();
    let found: Vec<&Value> = all.iter().filter(|f| f["name"] == name).collect();
    assert_eq!(found.len(), 1, "'{name}' in {report}");
    found[0].clone()
}

/// Four cores, 4 GiB of memory, and files that differ from test to test.
fn machine(files: &[(&str, &str)]) -> Folder {
    let folder = Folder::new();
    let cpus: String =
        (0..4).map(|i| format!("processor\t: {i}\nflags\t\t: avx2 fma f16c bmi2\n\n")).collect();
    let usual = [
        ("proc/cpuinfo", &cpus[..]),
        ("proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 3670016 kB\nSwapTotal: 0 kB\n"),
        ("proc/stat", "cpu  50 0 10 40 0 0 0 0 0 0\n"),
        ("proc/self/limits", "Max open files            65536                65536       files\n"),
        ("proc/sys/vm/overcommit_memory", "0\n"),
        ("run/chrony/chronyd.pid", "1\n"),
    ];
    for (name, text) in usual.iter().chain(files) {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_with_troubles_is_told_how_to_mend_each() {
    let folder = machine(&[
        ("proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 3670016 kB\nSwapTotal: 1048576 kB\n"),
        ("proc/sys/vm/overcommit_memory", "2\n"),
        ("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"),
        ("proc/self/cgroup", "0::/box\n"),
        ("proc/self/mountinfo", "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n"),
        ("cg/box/cpu.max", "250000 100000\n"),
    ]);
    let models = folder.path().to_str().unwrap();
    let ran = doctor(folder.path(), &["--json", "--models", models]);
    assert_eq!(ran.code, Some(0), "warnings do not keep it from serving: {}", ran.stderr);
    for (name, part) in [
        ("swap", "vm.swappiness=10"),
        ("overcommit", "vm.overcommit_memory=0"),
        ("hugepages", "systemd-tmpfiles --create"),
        ("quota", "CPUQuota="),
    ] {
        let found = finding(&ran, name);
        assert_eq!(found["level"], "warn", "{found}");
        assert!(found["fix"].as_str().unwrap().contains(part), "{found}");
    }
    assert_eq!(finding(&ran, "clock")["level"], "ok");
    assert_eq!(finding(&ran, "disk")["level"], "ok");
    let text = doctor(folder.path(), &["--models", models]).stdout;
    assert!(text.lines().any(|line| line.trim_start().starts_with("fix: ")), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_a_machine_from_serving_is_an_exit_code() {
    let old = machine(&[("proc/cpuinfo", "processor\t: 0\nflags\t\t: sse4_2\n")]);
    let ran = doctor(old.path(), &["--json"]);
    assert_eq!((ran.code, &finding(&ran, "cpu")["level"]), (Some(1), &"fail".into()));

    let little = "MemTotal: 65536 kB\nMemAvailable: 32768 kB\nSwapTotal: 0 kB\n";
    let little = machine(&[("proc/meminfo", little)]);
    let model = demo_model();
    let with_model = ["--json", "--model", model.to_str().unwrap()];
    let ran = doctor(little.path(), &with_model);
    assert_eq!((ran.code, &finding(&ran, "model")["level"]), (Some(1), &"fail".into()));
    let fix = finding(&ran, "model")["fix"].as_str().unwrap().to_string();
    assert!(fix.starts_with("flotilla-agent plan "), "{fix}");
    let ran = doctor(machine(&[]).path(), &with_model);
    assert_eq!((ran.code, &finding(&ran, "model")["level"]), (Some(0), &"ok".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn this_machine_is_looked_at_with_its_kernels() {
    let all = ["doctor", "--json"];
    let ran = tokio::task::block_in_place(|| run_command(program("flotilla-agent", &all)));
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    let says = finding(&ran, "cpu")["says"].as_str().unwrap().to_string();
    assert!(says.contains("kernels work"), "{says}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_is_asked_without_becoming_its_node() {
    let fleet = Fleet::start("").await;
    let folder = machine(&[]);
    let ask = |url: &str, key: &str| {
        let key = folder.write("key", key);
        let more = ["--json", "--join", url, "--join-key-file", key.to_str().unwrap()];
        let ran = doctor(folder.path(), &more);
        (ran.code, finding(&ran, "gateway"))
    };
    let (code, found) = ask(&fleet.url, JOIN_KEY);
    assert_eq!((code, &found["level"]), (Some(0), &"ok".into()), "{found}");
    let (code, found) = ask(&fleet.url, "another-key-than-the-gateways");
    assert_eq!((code, &found["level"]), (Some(1), &"fail".into()), "{found}");
    assert!(found["says"].as_str().unwrap().contains("401"), "{found}");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (code, found) = ask(&format!("http://{free}"), JOIN_KEY);
    assert_eq!(code, Some(1), "{found}");
    assert!(found["fix"].as_str().unwrap().starts_with("curl -v http://127.0.0.1"), "{found}");
    assert_eq!(fleet.health().await["nodes"]["linked"], 0);
}
