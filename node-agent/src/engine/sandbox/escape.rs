//! Fault injection for tests: an engine that has loaded its model tries to leave its sandbox, as
//! code smuggled in by a hostile model file would. It writes the result of each attempt to standard
//! error as one line of JSON.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::fs::MemfdFlags;
use rustix::process::{PidfdFlags, Signal, getppid, kill_process, pidfd_open};
use serde::Deserialize;

/// The environment variable that requests it, as JSON. Only the engine's role reads it.
pub(crate) const VARIABLE: &str = "FLOTILLA_FAULT_ESCAPE";
/// Result of an attempt that nothing stopped.
pub(crate) const SUCCEEDED: &str = "succeeded";

/// The attempts to make.
#[derive(Debug, Deserialize)]
pub(crate) struct Escape {
    /// TCP address to connect to, with a listener.
    pub tcp: SocketAddr,
    /// Unix socket to connect to, with a listener.
    pub unix: PathBuf,
    /// Files to create.
    pub create: Vec<PathBuf>,
    /// Files to read.
    pub read: Vec<PathBuf>,
    /// Files to open for writing.
    pub write: Vec<PathBuf>,
    /// Path of a shell to run.
    pub shell: PathBuf,
}

type Results = BTreeMap<String, String>;

/// Makes the attempts that the environment variable requests, if it is set.
pub(crate) fn attempt() {
    let Ok(wanted) = std::env::var(VARIABLE) else { return };
    let results = match serde_json::from_str::<Escape>(&wanted) {
        Ok(escape) => escape.run(),
        Err(e) => [(VARIABLE.to_string(), e.to_string())].into(),
    };
    let line = serde_json::json!({ "message": "escape attempts", "results": results });
    // One write, because the agent logs to the same pipe. The reader notices a missing line.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

impl Escape {
    fn run(&self) -> Results {
        let mut results = Results::new();
        let mut note = |what: String, done: io::Result<()>| {
            let result = done.map_or_else(|e| e.to_string(), |()| SUCCEEDED.to_string());
            results.insert(what, result);
        };
        note("connect to a TCP port".into(), TcpStream::connect(self.tcp).map(drop));
        note("connect to a Unix socket".into(), UnixStream::connect(&self.unix).map(drop));
        note("listen on a TCP port".into(), TcpListener::bind("127.0.0.1:0").map(drop));
        for path in &self.create {
            note(format!("create {}", path.display()), File::create_new(path).map(drop));
        }
        for path in &self.read {
            let read = File::open(path).and_then(|mut file| file.read(&mut [0; 16]).map(drop));
            note(format!("read {}", path.display()), read);
        }
        for path in &self.write {
            let opened = File::options().write(true).open(path);
            note(format!("write {}", path.display()), opened.map(drop));
        }
        note("list a folder".into(), std::fs::read_dir("/").map(drop));
        note("create a file in memory".into(), memory_file());
        self.processes(&mut note);
        results
    }

    fn processes(&self, note: &mut impl FnMut(String, io::Result<()>)) {
        let mut shell = Command::new(&self.shell);
        // It opens no files: the sandbox must reject the new process itself.
        shell.args(["-c", "exit 0"]);
        let spawned = shell.status().map(drop);
        if spawned.is_err() {
            // Returns only on failure.
            note("become another program".into(), Err(shell.exec()));
        }
        note("start another program".into(), spawned);
        let Some(agent) = getppid() else { return };
        // A signal without effect on the receiver.
        let signalled = kill_process(agent, Signal::CONT);
        note("send the agent a signal".into(), signalled.map_err(io::Error::from));
        let pidfd = pidfd_open(agent, PidfdFlags::empty());
        note("get hold of the agent".into(), pidfd.map(drop).map_err(io::Error::from));
        let memory = File::open(format!("/proc/{}/mem", agent.as_raw_nonzero()));
        note("read the agent's memory".into(), memory.map(drop));
    }
}

fn memory_file() -> io::Result<()> {
    Ok(rustix::fs::memfd_create("escape", MemfdFlags::CLOEXEC).map(drop)?)
}
