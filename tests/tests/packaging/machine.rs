//! A machine within this one, with a systemd of its own: tests/vps/boot.sh.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use fleet_tests::process::Folder;
use fleet_tests::tools::has;
use fleet_tests::{eventually, root};
use rustix::process::{Pid, geteuid};

/// See the module. It ends with its handle, and nothing stays of it.
pub struct Machine {
    child: Child,
    init: u32,
    group: PathBuf,
    _folder: Folder,
}

/// What a command did there.
pub struct Done {
    /// Whether it succeeded.
    pub ok: bool,
    /// What it said, error output included.
    pub said: String,
}

impl Machine {
    /// Starts one, where that is possible.
    pub async fn start() -> Option<Self> {
        let tools = [("nsenter", "util-linux"), ("systemctl", "systemd"), ("ip", "iproute2")];
        if !tools.iter().all(|(tool, package)| has(tool, package)) {
            return None;
        }
        let Some(groups) = control_groups().filter(|_| geteuid().is_root()) else {
            eprintln!("skipped: this test needs root and a control group of its own");
            return None;
        };
        let folder = Folder::new();
        let group = groups.join(folder.path().file_name().unwrap());
        if let Err(error) = std::fs::create_dir(&group) {
            eprintln!("skipped: {}: {error}", group.display());
            return None;
        }
        let child = Command::new(root().join("tests/vps/boot.sh"))
            .args([folder.path(), &group])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut machine = Self { child, init: 0, group, _folder: folder };
        machine.booted().await;
        Some(machine)
    }

    async fn booted(&mut self) {
        let pid = Pid::from_child(&self.child).as_raw_nonzero();
        let children = format!("/proc/{pid}/task/{pid}/children");
        let child = &mut self.child;
        self.init = eventually("the machine's first process", async || {
            assert_eq!(child.try_wait().unwrap(), None, "the machine does not start");
            let first = std::fs::read_to_string(&children).ok()?.trim().parse().ok()?;
            let name = std::fs::read_to_string(format!("/proc/{first}/comm")).ok()?;
            (name.trim() == "systemd").then_some(first)
        })
        .await;
        eventually("the machine to be up", async || {
            let state = self.run("systemctl is-system-running").said;
            ["running", "degraded"].contains(&state.trim()).then_some(())
        })
        .await;
    }

    /// Runs a command line there, as root in root's folder.
    pub fn run(&self, line: &str) -> Done {
        let output = Command::new("nsenter")
            .args(["--target", &self.init.to_string(), "--all", "--root", "--wd"])
            .args(["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"])
            .args(["LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"])
            .args(["bash", "-euo", "pipefail", "-c", &format!("cd /root\n{line}")])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        Done { ok: output.status.success(), said }
    }

    /// The same; it must succeed.
    pub fn does(&self, line: &str) -> String {
        let done = self.run(line);
        let journal = || self.run("journalctl -n 30 --no-pager").said;
        assert!(done.ok, "{line}: {}\n{}", done.said, journal());
        done.said
    }

    /// A file there, as seen from here.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.init))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // All of its processes end with the first one.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let mut remove = Command::new("find");
        remove.arg(&self.group).args(["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"]);
        let _ = remove.stderr(Stdio::null()).status();
    }
}

/// Where control groups of version 2 are.
fn control_groups() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let mut mounts = mounts.lines().map(|line| line.split(' '));
    mounts.find_map(|mut mount| {
        let (point, kind) = (mount.nth(1)?, mount.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(point))
    })
}
