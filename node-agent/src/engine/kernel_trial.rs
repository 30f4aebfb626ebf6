//! Chooses the CPU kernels: runs them in child processes, fastest first.

use std::process::Stdio;
use std::time::Duration;

use inference_core::hardware::{Kernel, choose_kernel};
use tokio::process::Command as Process;
use tokio::time::timeout;

use crate::types::executable;

/// A trial runs a few small multiplications; one that takes longer hangs.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs one kernel's trial in a child process.
pub(crate) async fn try_kernel(kernel: Kernel) -> Result<(), String> {
    let child = Process::from(executable::child())
        .args(["kernel-trial", kernel.name()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| format!("its test cannot be started: {e}"))?;
    match timeout(TRIAL_TIMEOUT, child.wait_with_output()).await {
        Err(_) => Err("its test timed out".into()),
        Ok(Err(e)) => Err(format!("its test was lost: {e}")),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            Err(format!("its test ended with {} {}", output.status, stderr.trim()))
        }
    }
}

/// Runs the kernels' trials, fastest first, and returns the first kernel that works.
pub(crate) async fn prove_kernel(wanted: Option<Kernel>) -> Result<Kernel, String> {
    if let Some(kernel) = wanted {
        let tried = try_kernel(kernel).await;
        return tried.map(|()| kernel).map_err(|why| {
            format!("the {} kernels do not work on this machine: {why}", kernel.name())
        });
    }
    let mut results = Vec::new();
    for kernel in Kernel::ALL {
        let result = try_kernel(*kernel).await;
        let works = result.is_ok();
        results.push(result);
        if works {
            break;
        }
    }
    let mut results = results.into_iter();
    choose_kernel(|_| results.next().unwrap_or_else(|| Err("not tried".into()))).map_err(
        |failures| {
            let lines = failures.iter().map(|(k, why)| format!("{}: {why}", k.name()));
            let lines: Vec<String> = lines.collect();
            format!("no CPU kernels of this build work on this machine ({})", lines.join("; "))
        },
    )
}
