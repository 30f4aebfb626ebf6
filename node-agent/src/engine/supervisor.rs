//! Starts the engine process, watches it, and restarts it when it dies.
//!
//! The agent survives whatever the engine does. It runs the executable again by its inode
//! (`/proc/self/exe`), so an upgrade on disk never mixes two versions.

pub(crate) mod watchdog;

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use inference_core::types::request::{Event, Failure};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command as Process};
use tokio::task::JoinError;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::engine::client::EngineClient;
use crate::engine::ipc::{Command, EngineFacts, Report, decode, encode, frame_length};
use crate::engine::launch::{Launch, LaunchError};
use crate::engine::options::EngineOptions;
use crate::engine::prefix_disk::FINISH_LIMIT;
use crate::engine::systemd;
use crate::types::backoff::Backoff;
use crate::types::executable;

/// An engine that lived this long was healthy: its next restart is immediate.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
const RESTART_MIN: Duration = Duration::from_millis(50);
const RESTART_MAX: Duration = Duration::from_secs(5);
/// How much longer than its limit a stopping engine may take.
const FINISH_SLACK: Duration = Duration::from_millis(500);
/// How long a killed engine may take to exit.
const REAP_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the first engine did not become ready.
#[derive(Debug)]
pub(crate) struct EngineError {
    model: PathBuf,
    exit: EngineExit,
}

impl std::fmt::Display for EngineError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "model file {}: {}", self.model.display(), self.exit)
    }
}

impl std::error::Error for EngineError {}

/// Why there is no engine.
#[derive(Debug)]
enum EngineExit {
    Spawn(std::io::Error),
    Exited(Option<ExitStatus>),
    /// Its process closed the connection, and did not exit in time.
    Closed,
    Hung,
    /// It could not load the model, or its files changed.
    LoadFailed(String),
    Read(std::io::Error),
    Write(std::io::Error),
    /// The model file or the settings cannot be used any more.
    Launch(LaunchError),
    /// Checking the model file panicked.
    Panicked(JoinError),
}

impl std::fmt::Display for EngineExit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Spawn(e) => write!(f, "the engine process cannot be started: {e}"),
            Self::Exited(Some(status)) => write!(f, "the engine process exited: {status}"),
            Self::Exited(None) => write!(f, "the engine process exited"),
            Self::Closed => write!(f, "the engine process closed its connection"),
            Self::Hung => write!(f, "the engine hung: it had requests and made no progress"),
            Self::LoadFailed(why) => f.write_str(why),
            Self::Read(e) => write!(f, "reading from the engine failed: {e}"),
            Self::Write(e) => write!(f, "writing to the engine failed: {e}"),
            Self::Launch(e) => write!(f, "{e}"),
            Self::Panicked(e) => write!(f, "{e}"),
        }
    }
}

/// Keeps an engine running until `stop`. Returns early only if the first load fails.
pub(crate) async fn supervise(
    launch: Launch,
    client: EngineClient,
    stop: CancellationToken,
    seed: u64,
) -> Result<(), EngineError> {
    tokio::select! {
        ended = keep_running(launch, &client, stop, seed) => ended,
        never = systemd::signal_watchdog(&client) => match never {},
    }
}

async fn keep_running(
    mut launch: Launch,
    client: &EngineClient,
    stop: CancellationToken,
    seed: u64,
) -> Result<(), EngineError> {
    let mut backoff = Backoff::new(RESTART_MIN, RESTART_MAX, seed);
    let mut was_ready = false;
    loop {
        let begun = Instant::now();
        let mut end = run_once(&launch.options, client, &mut was_ready, &stop).await;
        if stop.is_cancelled() {
            return Ok(());
        }
        if !was_ready {
            let digest = launch.options.digest;
            match renew(&launch).await {
                // The file was replaced before the first engine had read it.
                Ok(next) if next.options.digest != digest => launch = next,
                _ => return Err(EngineError { model: launch.options.model, exit: end }),
            }
            continue;
        }
        client.set_dead();
        if begun.elapsed() >= HEALTHY_AFTER {
            backoff.reset();
        }
        launch = loop {
            let wait = backoff.next_wait();
            tracing::error!(reason = %end, restart_in_ms = wait.as_millis() as u64, "engine died");
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => return Ok(()),
            }
            match renew(&launch).await {
                Ok(next) => break next,
                Err(why) => end = why,
            }
        };
    }
}

/// The options of the next engine: the model file may have been replaced.
async fn renew(launch: &Launch) -> Result<Launch, EngineExit> {
    let launch = launch.clone();
    let renewing = tokio::task::spawn_blocking(move || launch.renew());
    match renewing.await {
        Ok(renewed) => renewed.map_err(EngineExit::Launch),
        Err(e) => Err(EngineExit::Panicked(e)),
    }
}

/// Runs one engine process to its end, and returns why it ended. Kills it on drop.
async fn run_once(
    options: &EngineOptions,
    client: &EngineClient,
    was_ready: &mut bool,
    stop: &CancellationToken,
) -> EngineExit {
    let (mut child, socket) = match spawn(options) {
        Ok(spawned) => spawned,
        Err(e) => return EngineExit::Spawn(e),
    };
    let (reader, writer) = socket.into_split();
    let Some(pid) = child.id() else { return EngineExit::Exited(None) };
    client.set_pid(pid);
    let end = tokio::select! {
        () = watchdog::wait_until_hung(pid, client) => Some(EngineExit::Hung),
        end = read_reports(reader, client, was_ready) => end,
        error = write_commands(writer, client) => Some(EngineExit::Write(error)),
        () = stop_engine(stop, client, options.prefix_disk.is_some()) => None,
    };
    let _ = child.start_kill();
    // Until it is gone, its files are locked.
    match (end, timeout(REAP_TIMEOUT, child.wait()).await) {
        (Some(end), _) => end,
        (None, Ok(Ok(status))) => EngineExit::Exited(Some(status)),
        (None, _) => EngineExit::Closed,
    }
}

/// Returns when the engine should be gone: at `stop`, or after it had time to write to its files.
async fn stop_engine(stop: &CancellationToken, client: &EngineClient, has_files: bool) {
    stop.cancelled().await;
    if has_files {
        client.stop_engine(FINISH_LIMIT);
        // It exits by itself, which ends its connection.
        tokio::time::sleep(FINISH_LIMIT + FINISH_SLACK).await;
    }
}

fn spawn(options: &EngineOptions) -> std::io::Result<(Child, UnixStream)> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let draft = options.draft_model.iter();
    let draft = draft.flat_map(|path| [OsStr::new("--draft-model"), path.as_os_str()]);
    let child = Process::from(executable::computing_child(options.huge_pages))
        .arg("engine")
        .arg("--model")
        .arg(&options.model)
        .args(draft)
        .args(["--options", &serde_json::to_string(options)?])
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    Ok((child, UnixStream::from_std(ours)?))
}

/// Reads reports until the engine is gone. `None` if it closed its end without an error.
async fn read_reports(
    reader: OwnedReadHalf,
    client: &EngineClient,
    was_ready: &mut bool,
) -> Option<EngineExit> {
    let mut reader = BufReader::new(reader);
    let mut payload = Vec::new();
    loop {
        let report = read_report(&mut reader, &mut payload).await;
        client.count_report();
        match report {
            Ok(None) => return None,
            Ok(Some(Report::Ready(facts))) => {
                *was_ready = true;
                log_ready(&facts);
                client.set_ready(facts);
            }
            Ok(Some(Report::LoadFailed(why))) => return Some(EngineExit::LoadFailed(why)),
            Ok(Some(Report::Event(id, event))) => client.deliver(id, event),
            Ok(Some(Report::Stats(stats))) => client.set_stats(stats),
            Ok(Some(Report::MemoryNodes(nodes))) => log_memory_nodes(nodes),
            Ok(Some(Report::PrefixesNotSaved(reason))) => {
                tracing::warn!(reason, "prefixes are not saved on disk");
            }
            Err(e) => return Some(EngineExit::Read(e)),
        }
    }
}

fn log_ready(facts: &EngineFacts) {
    tracing::info!(
        slots = facts.slots,
        context_tokens = facts.context_tokens,
        threads = facts.threads,
        kernel = facts.kernel,
        sandbox = %facts.sandbox,
        sampling_defaults = %facts.sampling,
        "engine ready"
    );
    let template = &facts.template;
    if template.lacks_tools {
        let notation = facts.format.calls;
        tracing::info!(?notation, "chat template describes no tools");
    }
    if !template.dropped_parts.is_empty() {
        let parts = template.dropped_parts.join(", ");
        tracing::info!(parts, "chat template leaves out parts");
    }
    if let Some(reason) = &template.error {
        let fix = "use another model file, or set --chat-template-file";
        tracing::warn!(reason, fix, "chat template is invalid; chats are refused");
    }
    if let Some(missing) = facts.sandbox.missing() {
        tracing::warn!(missing, "engine sandbox incomplete");
    }
}

fn log_memory_nodes(nodes: Result<usize, String>) {
    match nodes {
        Ok(nodes) if nodes > 1 => tracing::info!(nodes, "memory spread over NUMA nodes"),
        Ok(_) => {}
        Err(reason) => tracing::warn!(reason, "memory not spread over NUMA nodes"),
    }
}

async fn read_report(
    reader: &mut BufReader<OwnedReadHalf>,
    payload: &mut Vec<u8>,
) -> std::io::Result<Option<Report>> {
    let mut header = [0; 4];
    match reader.read_exact(&mut header).await {
        // A killed engine causes a reset or an end of file, depending on what it left unread.
        Err(e) if is_gone(&e) => return Ok(None),
        other => other.map(drop)?,
    }
    payload.resize(frame_length(header)?, 0);
    reader.read_exact(payload).await?;
    decode(payload).map(Some)
}

fn is_gone(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::ConnectionReset)
}

/// Writes commands until writing fails.
async fn write_commands(mut writer: OwnedWriteHalf, client: &EngineClient) -> std::io::Error {
    loop {
        let mut wire = Vec::new();
        for command in client.next_commands().await {
            match (encode(&command), command) {
                (Ok(frame), _) => wire.extend(frame),
                // JSON may grow when it is serialized again: 1e15 has sixteen digits. That fails
                // only this request, not the engine.
                (Err(_), Command::Submit(id, _) | Command::Slot(id, _)) => {
                    client.deliver(id, Event::Failed(Failure::TooLarge));
                }
                // All others are short.
                (Err(e), _) => return e,
            }
        }
        if let Err(e) = writer.write_all(&wire).await {
            return e;
        }
    }
}
