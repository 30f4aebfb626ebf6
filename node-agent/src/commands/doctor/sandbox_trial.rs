//! `sandbox-trial`: a process confines itself and tries to escape, for `doctor`. As with kernels,
//! only a test proves what a machine supports.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command as Process;
use tokio::time::timeout;

use crate::engine::measuring::{prepare_child, write_answer};
use crate::engine::sandbox::{Part, Sandbox, SandboxMode, confine};
use crate::types::executable;

/// A trial makes a few system calls; one that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(10);

/// In the child: prints the sandbox in force as a line of JSON.
pub(crate) fn child() -> Result<(), String> {
    prepare_child()?;
    let mut sandbox = confine(SandboxMode::Auto, &[], &[])?;
    if sandbox.files == Part::On && std::fs::File::open("/proc/self/status").is_ok() {
        sandbox.files = Part::Missing("it is set but has no effect".into());
    }
    // Nothing listens on port 0, so without a sandbox this fails with a different error.
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let refused = TcpStream::connect(nowhere).err().and_then(|e| e.raw_os_error());
    if sandbox.system_calls == Part::On && refused != Some(crate::engine::sandbox::calls::REFUSED) {
        sandbox.system_calls = Part::Missing("it is set but has no effect".into());
    }
    write_answer(&sandbox)
}

/// Determines the sandbox of an engine on this machine; the error says why it is unknown.
pub(crate) async fn run() -> Result<Sandbox, String> {
    let child = Process::from(executable::child())
        .arg("sandbox-trial")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| e.to_string())?;
    let output = timeout(TIMEOUT, child.wait_with_output()).await;
    let output =
        output.map_err(|_| "its test timed out".to_string())?.map_err(|e| e.to_string())?;
    let ended = || format!("its test ended with {}", output.status);
    serde_json::from_slice(&output.stdout).map_err(|_| ended())
}
