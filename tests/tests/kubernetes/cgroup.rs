//! A pod is a control group: an agent takes its threads and its memory from there. Tried in
//! control groups of our own, where the system lets us make some.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use fleet_tests::process::{Folder, Ran, Server, binary, run, run_command};
use fleet_tests::{SOON, demo_model};
use serde_json::Value;

const MIB: u64 = 1024 * 1024;
const PERIOD_US: u64 = 100_000;

/// A control group with limits: one folder, or one for each controller in version 1.
struct Pod {
    folders: Vec<PathBuf>,
}

impl Pod {
    /// `None` where control groups cannot be made here.
    fn new(cpus: f64, memory: u64) -> Option<Self> {
        let name = Folder::new().path().file_name()?.to_owned();
        let made = match Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            true => Self::v2(&name, cpus, memory),
            false => Self::v1(&name, cpus, memory),
        };
        made.inspect_err(|e| eprintln!("skipped: no control group can be made here: {e}")).ok()
    }

    fn v2(name: &std::ffi::OsStr, cpus: f64, memory: u64) -> std::io::Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let _ = write(&root.join("cgroup.subtree_control"), "+cpu +memory");
        let mut pod = Self { folders: Vec::new() };
        let folder = pod.make(root.join(name))?;
        write(&folder.join("cpu.max"), &format!("{} {PERIOD_US}", quota(cpus)))?;
        write(&folder.join("memory.max"), &memory.to_string())?;
        Ok(pod)
    }

    fn v1(name: &std::ffi::OsStr, cpus: f64, memory: u64) -> std::io::Result<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let mut pod = Self { folders: Vec::new() };
        let folder = pod.make(root.join("cpu").join(name))?;
        write(&folder.join("cpu.cfs_period_us"), &PERIOD_US.to_string())?;
        write(&folder.join("cpu.cfs_quota_us"), &quota(cpus).to_string())?;
        let folder = pod.make(root.join("memory").join(name))?;
        write(&folder.join("memory.limit_in_bytes"), &memory.to_string())?;
        Ok(pod)
    }

    fn make(&mut self, folder: PathBuf) -> std::io::Result<PathBuf> {
        std::fs::create_dir(&folder)?;
        self.folders.push(folder.clone());
        Ok(folder)
    }

    /// An agent inside.
    fn agent(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("sh");
        let enter = "while [ \"$1\" != -- ]; do echo $$ > \"$1/cgroup.procs\" || exit; shift; done; \
                     shift; exec \"$@\"";
        command.args(["-c", enter, "sh"]).args(&self.folders).arg("--");
        command.arg(binary("flotilla-agent")).args(arguments);
        command.env("FLOTILLA_CACHE_DIR", "/dev/null");
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        run_command(self.agent(arguments))
    }

    fn hardware(&self) -> Value {
        let ran = self.run(&["hardware", "--quick", "--json"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        serde_json::from_str(&ran.stdout).unwrap()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let begun = Instant::now();
        for folder in &self.folders {
            // Processes that have just ended are still in it for a moment.
            let busy = |e: std::io::Error| e.kind() == std::io::ErrorKind::ResourceBusy;
            while std::fs::remove_dir(folder).is_err_and(busy) && begun.elapsed() < SOON {
                std::thread::yield_now();
            }
        }
    }
}

fn quota(cpus: f64) -> u64 {
    (cpus * PERIOD_US as f64) as u64
}

/// Without making the file.
fn write(path: &Path, text: &str) -> std::io::Result<()> {
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

/// Threads that an agent uses here without limits: its physical cores.
fn threads_outside() -> u64 {
    let ran = run("flotilla-agent", &["hardware", "--quick", "--json"]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    report["threads"].as_u64().unwrap()
}

#[test]
fn an_agent_uses_as_many_threads_as_its_quota_has_cpus() {
    for (cpus, threads) in [(2.0, 2), (1.0, 1), (1.5, 1), (0.5, 1)] {
        let Some(pod) = Pod::new(cpus, 1024 * MIB) else { return };
        let report = pod.hardware();
        assert_eq!(report["cgroup"]["cpu_quota"], cpus, "{report}");
        let expected = threads_outside().min(threads);
        assert_eq!(report["threads"].as_u64(), Some(expected), "of a quota of {cpus}");
    }
}

#[test]
fn the_engine_in_a_pod_has_the_threads_of_the_pod() {
    let Some(pod) = Pod::new(1.0, 512 * MIB) else { return };
    let model = demo_model();
    let serve = ["serve", "--model", model.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let server = Server::spawn(pod.agent(&serve));
    let ready = server.wait_for_line("engine ready");
    assert!(ready.contains("\"threads\":1,"), "{ready}");
    drop(server);
}

#[test]
fn memory_is_planned_from_what_the_pod_may_have() {
    let limit = 768 * MIB;
    let Some(pod) = Pod::new(2.0, limit) else { return };
    let report = pod.hardware();
    assert_eq!(report["cgroup"]["memory_limit"].as_u64(), Some(limit), "{report}");
    let here = report["memory"]["available_here"].as_u64().unwrap();
    assert!(here <= limit && here > limit / 2, "{report}");

    let folder = Folder::new();
    let path = folder.path().join("small.gguf");
    let path = path.to_str().unwrap();
    let shape = ["synth", "--shape", "tiny", "--quant", "q4_0", path];
    assert_eq!(run("flotilla-agent", &shape).code, Some(0));
    // 300,000 cells of this model fit the machine, and not the pod.
    let plan = ["plan", path, "--quick", "--json", "--kv-type", "f32", "--kv-cells", "300000"];
    let outside = run("flotilla-agent", &plan);
    let inside = pod.run(&plan);
    assert_eq!((outside.code, inside.code), (Some(0), Some(69)), "{}", inside.stderr);
    let inside: Value = serde_json::from_str(&inside.stdout).unwrap();
    assert_eq!(inside["plan"]["fits"], false, "{inside}");
    assert!(inside["plan"]["available_bytes"].as_u64().unwrap() <= limit);
    // What nobody asked for shrinks until it fits.
    let fitting = pod.run(&["plan", path, "--quick", "--json"]);
    assert_eq!(fitting.code, Some(0), "{}", fitting.stderr);
}
