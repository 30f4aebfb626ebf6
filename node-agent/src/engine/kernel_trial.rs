//! Chooses the CPU kernels: runs and times each set in a child process.

use std::process::{Output, Stdio};
use std::time::Duration;

use inference_core::hardware::{Kernel, KernelTrial, choose_kernel};
use tokio::process::Command as Process;
use tokio::time::timeout;

use crate::types::executable;

/// A trial runs a few small multiplications; one that takes longer hangs.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs the trial of one set of kernels in a child process; returns its speed.
async fn try_kernel(kernel: Kernel) -> Result<f64, String> {
    let child = Process::from(executable::child())
        .args(["kernel-trial", kernel.name()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| format!("its test cannot be started: {e}"))?;
    match timeout(TRIAL_TIMEOUT, child.wait_with_output()).await {
        Err(_) => Err("its test timed out".into()),
        Ok(Err(e)) => Err(format!("its test was lost: {e}")),
        Ok(Ok(output)) if output.status.success() => speed(&output),
        Ok(Ok(output)) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            Err(format!("its test ended with {} {}", output.status, stderr.trim()))
        }
    }
}

/// The number that a trial prints.
fn speed(output: &Output) -> Result<f64, String> {
    let printed = String::from_utf8_lossy(&output.stdout);
    printed.trim().parse().map_err(|_| format!("its test printed {:?}", printed.trim()))
}

/// Runs the trials of all sets of kernels, one after the other, and once more if not the first one
/// that works seems to be the fastest: of both speeds the better one counts, as all else is chance.
pub(crate) async fn try_kernels() -> Vec<KernelTrial> {
    let mut trials = Vec::new();
    for kernel in Kernel::ALL {
        trials.push((*kernel, try_kernel(*kernel).await));
    }
    let works = |(_, result): &&KernelTrial| result.is_ok();
    let first = trials.iter().find(works).map(|(kernel, _)| *kernel);
    if choose_kernel(&trials) != first {
        for (kernel, result) in &mut trials {
            if let (Ok(speed), Ok(again)) = (&mut *result, try_kernel(*kernel).await) {
                *speed = speed.max(again);
            }
        }
    }
    trials
}

/// Runs the trial of the `wanted` set of kernels, or chooses one by the trials of all.
pub(crate) async fn prove_kernel(wanted: Option<Kernel>) -> Result<Kernel, String> {
    if let Some(kernel) = wanted {
        let tried = try_kernel(kernel).await;
        return tried.map(|_| kernel).map_err(|why| {
            format!("the {} kernels do not work on this machine: {why}", kernel.name())
        });
    }
    choose(&try_kernels().await)
}

/// The best set of kernels, or why there is none.
pub(crate) fn choose(trials: &[KernelTrial]) -> Result<Kernel, String> {
    choose_kernel(trials).ok_or_else(|| {
        let why = |(kernel, result): &KernelTrial| {
            let why = result.as_ref().err().map_or("", String::as_str);
            format!("{}: {why}", kernel.name())
        };
        let lines: Vec<String> = trials.iter().map(why).collect();
        format!("no CPU kernels of this build work on this machine ({})", lines.join("; "))
    })
}

/// The chosen set of kernels, and how fast others are that work: for people.
pub(crate) fn describe(trials: &[KernelTrial]) -> Result<String, String> {
    let chosen = choose(trials)?;
    let speed_of = |kernel: Kernel| {
        let trial = trials.iter().find(|(tried, _)| *tried == kernel);
        trial.and_then(|(_, result)| result.as_ref().ok().copied())
    };
    let fastest = speed_of(chosen).unwrap_or(f64::NAN);
    let other = |(kernel, result): &KernelTrial| {
        let speed = result.as_ref().ok().filter(|_| *kernel != chosen)?;
        Some(format!("{:.1} times as fast as {}", fastest / speed, kernel.name()))
    };
    let others: Vec<String> = trials.iter().filter_map(other).collect();
    Ok(match others.is_empty() {
        true => format!("the {} kernels work", chosen.name()),
        false => format!("the {} kernels work, {}", chosen.name(), others.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_which_kernels_work_and_how_fast_the_others_are() {
        let fails = |why: &str| Err(why.to_string());
        let (first, last) = (Kernel::ALL[0], Kernel::Baseline);
        let both = [(first, Ok(300.0)), (last, Ok(100.0))];
        let text = format!("the {} kernels work, 3.0 times as fast as baseline", first.name());
        assert_eq!(describe(&both), Ok(text));
        let one = [(first, fails("signal 4")), (last, Ok(100.0))];
        assert_eq!(describe(&one), Ok("the baseline kernels work".into()));
        let none = [(first, fails("signal 4")), (last, fails("no memory"))];
        let why = describe(&none).unwrap_err();
        assert!(why.contains(": signal 4; baseline: no memory"), "{why}");
    }
}
