//! A clean system within this machine: tests/install/boot.sh.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use fleet_tests::process::Folder;
use fleet_tests::{eventually, root};
use rustix::process::Pid;

use fleet_tests::tools::{has, skipped};

use crate::is_root;
use crate::release::own_architecture;

/// See the module. Everything in it ends with its handle.
pub struct System {
    child: Child,
    first: u32,
    folder: Folder,
}

/// What a command did there.
pub struct Done {
    /// True if it succeeded.
    pub ok: bool,
    /// What it printed, error output included.
    pub printed: String,
}

impl System {
    /// Starts a system of that Debian release, with these host names of its own; `None` where that
    /// is impossible.
    pub async fn start(suite: &str, architecture: &str, names: &[&str]) -> Option<Self> {
        let tools = [("nsenter", "util-linux"), ("mmdebstrap", "mmdebstrap"), ("ip", "iproute2")];
        if !is_root() || !tools.iter().all(|(tool, package)| has(tool, package)) {
            return None;
        }
        let script = root().join("scripts/chroot.sh");
        let made = Command::new(script).args([suite, architecture]).output().unwrap();
        if !made.status.success() {
            let why = String::from_utf8_lossy(&made.stderr).into_owned();
            skipped(&format!("no Debian {suite}: {}", why.trim().lines().last().unwrap_or("")));
            return None;
        }
        let files = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim());
        let folder = Folder::new();
        let boot = root().join("tests/install/boot.sh");
        let mut command = Command::new(&boot);
        if architecture != own_architecture() {
            command = Command::new(root().join("scripts/emulate.sh"));
            // A CPU that many machines have; the newest of the emulator is slow.
            command.arg(&boot).env("QEMU_CPU", "neoverse-n1");
        }
        let child = command
            .args([files.as_path(), folder.path()])
            .args(names)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut system = Self { child, first: 0, folder };
        system.wait_until_up().await;
        Some(system)
    }

    async fn wait_until_up(&mut self) {
        let pid = Pid::from_child(&self.child).as_raw_nonzero();
        let children = format!("/proc/{pid}/task/{pid}/children");
        let child = &mut self.child;
        self.first = eventually("the system's first process", async || {
            assert_eq!(child.try_wait().unwrap(), None, "the system does not start");
            let first = std::fs::read_to_string(&children).ok()?.trim().parse().ok()?;
            let name = std::fs::read_to_string(format!("/proc/{first}/comm")).ok()?;
            let is_ready = std::fs::exists(format!("/proc/{first}/root/ready")).unwrap_or(false);
            (is_ready && name.trim() == "sleep").then_some(first)
        })
        .await;
    }

    /// A shell that runs `line` there, as root in root's folder.
    pub fn shell(&self, line: &str) -> Command {
        let mut shell = Command::new("nsenter");
        shell
            .args(["--target", &self.first.to_string(), "--all", "--root", "--wd"])
            .args(["env", "-i", "PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"])
            .arg("QEMU_CPU=neoverse-n1")
            .args(["sh", "-euc", &format!("cd /root\n{line}")])
            .stdin(Stdio::null());
        shell
    }

    /// Runs a command line there.
    pub fn run(&self, line: &str) -> Done {
        done(&mut self.shell(line))
    }

    /// The same; it must succeed.
    pub fn succeed(&self, line: &str) -> String {
        let done = self.run(line);
        assert!(done.ok, "{line}: {}", done.printed);
        done.printed
    }

    /// A program of this machine, with the system's network and host names.
    pub fn outside(&self, program: &str) -> Command {
        let hosts = self.folder.path().join("hosts");
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.first.to_string(), "--net", "unshare", "--mount"])
            .args(["sh", "-ec", "mount --bind \"$1\" /etc/hosts; shift; exec \"$@\"", "sh"])
            .args([hosts.to_str().unwrap(), program])
            .stdin(Stdio::null());
        command
    }

    /// A file there, as seen from here.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.first))
    }
}

/// Runs a command.
pub fn done(command: &mut Command) -> Done {
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    Done { ok: output.status.success(), printed }
}

impl Drop for System {
    fn drop(&mut self) {
        // All of its processes end with the first one.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
