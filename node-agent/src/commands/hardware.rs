//! `flotilla-agent hardware`: shows this machine's hardware and what it can run.
//!
//! It tests each level of vector instructions in a child process, which is this executable with the
//! hidden command `probe`: if CPUID promises too much, the child dies of SIGILL.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use clap::Args;
use inference_core::hardware::bandwidth::{self, Bandwidth};
use inference_core::hardware::files::Root;
use inference_core::hardware::report::Machine;
use inference_core::hardware::simd::Level;
use inference_core::llama;
use tokio::process::Command as Process;
use tokio::time::timeout;

use crate::types::executable;
use crate::types::exit::Failed;
use crate::types::print::print_line;

/// A probe executes some instructions; one that takes longer hangs.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Passes over the buffer; the report shows their median.
const PASSES: usize = 7;
const SIGILL: i32 = 4;

/// `hardware`
#[derive(Debug, Args)]
pub(crate) struct HardwareArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Skip the tests of instructions and memory bandwidth; only read the operating system's files
    #[arg(long)]
    pub quick: bool,
}

impl HardwareArgs {
    /// Prints the report.
    pub(crate) async fn run(&self) -> Result<(), Failed> {
        let mut machine = Machine::read(&Root::machine(), std::env::consts::ARCH);
        if !self.quick {
            try_levels(&mut machine).await;
            machine.bandwidth = measure(&machine).map_err(Failed::software)?;
        }
        let text = if self.json {
            serde_json::to_string_pretty(&machine).map_err(Failed::software)?
        } else {
            machine.to_string()
        };
        Ok(print_line(&text)?)
    }
}

/// Measures the memory bandwidth; `None` if there is too little memory for a meaningful result.
pub(crate) fn measure(machine: &Machine) -> Result<Option<Bandwidth>, String> {
    let available = machine.memory.available_here;
    let buffer = bandwidth::buffer_bytes(machine.cpus.cache_bytes, available);
    buffer.map(|bytes| bandwidth::measure(machine.threads, bytes, PASSES)).transpose()
}

/// Tests every level of this CPU architecture.
async fn try_levels(machine: &mut Machine) {
    for level in Level::of(std::env::consts::ARCH) {
        let runs = try_level(level).await;
        machine.add_trial(level, llama::is_claimed(level), runs);
    }
}

/// True if a level runs; `None` if that could not be determined.
async fn try_level(level: Level) -> Option<bool> {
    let child = Process::from(executable::child())
        .args(["probe", level.name()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let status = timeout(PROBE_TIMEOUT, child.ok()?.wait()).await.ok()?.ok()?;
    verdict(status)
}

/// Success means that it runs. SIGILL, or no permission for tiles, means that it does not. Anything
/// else is inconclusive.
fn verdict(status: ExitStatus) -> Option<bool> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Some(true),
        (Some(_), _) | (_, Some(SIGILL)) => Some(false),
        _ => None,
    }
}

/// `probe`: executes one instruction of a level. An expected crash leaves no core file.
pub(crate) fn probe(level: Level) -> Result<(), String> {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    // Failing here only costs disk space.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    llama::probe(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn death_by_an_illegal_instruction_means_that_it_does_not_run() {
        let wait_status = |raw| verdict(ExitStatus::from_raw(raw));
        assert_eq!(wait_status(0), Some(true));
        assert_eq!(wait_status(1 << 8), Some(false));
        assert_eq!(wait_status(SIGILL), Some(false));
        assert_eq!(wait_status(9), None, "killed by somebody else");
    }
}
