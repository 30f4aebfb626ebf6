//! A child process that measures: this executable with a hidden command. Questions and answers are
//! lines of JSON, so whatever kills the child costs only one answer.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use clap::Args;
use inference_core::hardware::Kernel;
use inference_core::hardware::files::Root;
use inference_core::llama::{Loading, Weights, register, spread_memory};
use inference_core::model_file::memory_plan::LoadMode;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::engine::model_files::ModelFiles;
use crate::engine::sandbox::{self, SandboxMode};
use crate::types::executable;
use crate::types::exit::Failed;

/// Maximum length of an answer in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// Answers buffered for reading: one for each question.
const ANSWERS_MAX: usize = 4;

/// Hidden commands that measure
#[derive(Debug, Args)]
pub(crate) struct ChildArgs {
    /// Model file.
    pub model: PathBuf,
    /// Draft model's file.
    pub draft_model: Option<PathBuf>,
    /// Everything else, as JSON.
    #[arg(long)]
    pub options: String,
}

/// A running child, killed on drop.
#[derive(Debug)]
pub(crate) struct MeasuringChild {
    child: Child,
    questions: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Drop for MeasuringChild {
    fn drop(&mut self) {
        // It may already have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Why a child gave no answer. It cannot be used any more.
#[derive(Debug)]
pub(crate) enum ChildError {
    Spawn(std::io::Error),
    /// Its options or a question cannot be written as JSON.
    Json(serde_json::Error),
    /// Its answer, the second field, cannot be parsed.
    Answer(serde_json::Error, String),
    /// It did not answer in time.
    Hangs,
    Exited(ExitStatus),
    /// It is gone, and how it exited is unknown.
    Lost(std::io::Error),
}

impl std::fmt::Display for ChildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Spawn(e) => write!(f, "cannot start the measuring process: {e}"),
            Self::Json(e) => write!(f, "{e}"),
            Self::Answer(e, line) => write!(f, "unreadable answer: {e}: {line}"),
            Self::Hangs => write!(f, "timed out"),
            Self::Exited(status) => write!(f, "the measuring process exited: {status}"),
            Self::Lost(e) => write!(f, "the measuring process was lost: {e}"),
        }
    }
}

impl std::error::Error for ChildError {}

impl From<ChildError> for Failed {
    fn from(error: ChildError) -> Self {
        Self::data(error)
    }
}

/// The command line of such a child. It has huge pages, as an engine with default flags has.
pub(crate) fn command(
    name: &str,
    model: &Path,
    options: &impl Serialize,
) -> Result<Command, ChildError> {
    let options = serde_json::to_string(options).map_err(ChildError::Json)?;
    let mut command = executable::computing_child(true);
    command.arg(name).args(["--options", &options]).arg("--").arg(model);
    Ok(command)
}

impl MeasuringChild {
    pub(crate) fn start(mut command: Command) -> Result<Self, ChildError> {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().map_err(ChildError::Spawn)?;
        let questions = child.stdin.take();
        let (sender, answers) = sync_channel(ANSWERS_MAX);
        if let Some(stdout) = child.stdout.take() {
            let read = move || {
                let mut reader = BufReader::new(stdout);
                loop {
                    let mut line = String::new();
                    let length = reader.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
                    if !length.is_ok_and(|n| n > 0) || sender.send(line).is_err() {
                        return;
                    }
                }
            };
            let reader = std::thread::Builder::new().name("answers".into());
            reader.spawn(read).map_err(ChildError::Spawn)?;
        }
        Ok(Self { child, questions, answers })
    }

    /// Sends a question and waits for the answer.
    pub(crate) fn request<A: DeserializeOwned>(
        &mut self,
        question: &impl Serialize,
        limit: Duration,
    ) -> Result<A, ChildError> {
        let line = serde_json::to_string(question).map_err(ChildError::Json)?;
        if let Some(stdin) = &mut self.questions {
            // If the child is dead, the error below gives the reason.
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
        self.receive(limit)
    }

    pub(crate) fn receive<A: DeserializeOwned>(
        &mut self,
        limit: Duration,
    ) -> Result<A, ChildError> {
        match self.answers.recv_timeout(limit) {
            Ok(line) => serde_json::from_str(&line).map_err(|e| ChildError::Answer(e, line)),
            Err(RecvTimeoutError::Timeout) => Err(ChildError::Hangs),
            Err(RecvTimeoutError::Disconnected) => match self.child.wait() {
                Ok(status) => Err(ChildError::Exited(status)),
                Err(e) => Err(ChildError::Lost(e)),
            },
        }
    }
}

/// Prepares the child before anything else: it exits with its parent, and an expected crash leaves
/// no core file.
pub(crate) fn prepare_child() -> Result<(), String> {
    let end = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(end)).map_err(|e| e.to_string())?;
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    // Failing here only costs disk space.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    Ok(())
}

/// In the child, before it starts any thread: opens a model, confines the process to it, and loads
/// it.
pub(crate) fn load_confined(
    model: &Path,
    sandbox: SandboxMode,
    kernel: Kernel,
    mode: LoadMode,
) -> Result<Weights, String> {
    load_all_confined(&[(model, false)], sandbox, kernel, mode).map(|mut all| all.remove(0))
}

/// Like [`load_confined`], for several models, each with its MTP head or without.
pub(crate) fn load_all_confined(
    models: &[(&Path, bool)],
    sandbox: SandboxMode,
    kernel: Kernel,
    mode: LoadMode,
) -> Result<Vec<Weights>, String> {
    let open = |(model, _): &(&Path, bool)| ModelFiles::open(model).map_err(|e| e.to_string());
    let opened = models.iter().map(open);
    let opened: Vec<ModelFiles> = opened.collect::<Result<_, _>>()?;
    // Like the engine's. What a container forbids, it forbids the engine as well.
    let _ = spread_memory(&Root::machine());
    let all: Vec<&File> = opened.iter().flat_map(ModelFiles::parts).collect();
    sandbox::confine(sandbox, &all, &[])?;
    register(kernel);
    let load = |(files, (_, mtp_head)): (&ModelFiles, &(&Path, bool))| {
        let loading = Loading { mtp_head: *mtp_head, ..mode.into() };
        Weights::load(&files.open_paths(), loading).map_err(|e| e.to_string())
    };
    opened.iter().zip(models).map(load).collect()
}

/// In the child: writes an answer.
pub(crate) fn write_answer(answer: &impl Serialize) -> Result<(), String> {
    let line = serde_json::to_string(answer).map_err(|e| e.to_string())?;
    let mut out = std::io::stdout();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    fn shell(script: &str) -> MeasuringChild {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        MeasuringChild::start(command).unwrap()
    }

    #[test]
    fn a_child_answers_line_by_line() {
        let mut child = shell("while read line; do echo \"[$line]\"; done");
        assert_eq!(child.request::<Vec<u32>>(&7, SOON).unwrap(), [7]);
        assert_eq!(child.request::<Vec<u32>>(&8, SOON).unwrap(), [8]);
        assert!(matches!(child.request::<u32>(&9, SOON), Err(ChildError::Answer(..))));
    }

    #[test]
    fn a_child_that_dies_says_how_and_one_that_hangs_is_given_up() {
        let died = shell("read line; kill -ILL $$").request::<u32>(&1, SOON).unwrap_err();
        assert!(died.to_string().contains("signal: 4"), "{died}");
        let hangs = shell("read line; read never").request::<u32>(&1, Duration::from_millis(50));
        assert!(matches!(hangs, Err(ChildError::Hangs)));
    }
}
