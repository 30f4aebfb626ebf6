//! `flotilla-gateway`: flags, log, signals.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use flotilla_gateway::app;
use flotilla_gateway::config::{Config, load};
use flotilla_gateway::secret::KeyDigest;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The configuration or the command line is wrong (`sysexits.h`: EX_USAGE).
const EXIT_USAGE: u8 = 64;
/// The port cannot be used (EX_UNAVAILABLE).
const EXIT_UNAVAILABLE: u8 = 69;
/// A bug or a machine without resources (EX_SOFTWARE).
const EXIT_SOFTWARE: u8 = 70;
/// The answer cannot be written.
const EXIT_WRITE: u8 = 74;

/// One OpenAI-compatible endpoint in front of many CPU inference nodes.
#[derive(Debug, Parser)]
#[command(name = "flotilla-gateway", version, about, long_about = None)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve
    Run {
        /// Configuration file (YAML)
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Check a configuration file and list every problem
    Check {
        /// Configuration file (YAML)
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// API keys
    #[command(subcommand)]
    Key(KeyCommand),
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make a key: prints it once, and the entry for the configuration, which holds only
    /// its digest
    New {
        /// The tenant's name
        #[arg(long, default_value = "default")]
        name: String,
    },
}

struct Failed {
    code: u8,
    message: String,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run { config } => run(&config),
        Command::Check { config } => load_config(&config).and_then(|_| say("ok")),
        Command::Key(KeyCommand::New { name }) => new_key(&name),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed { code, message }) => {
            complain(&message);
            ExitCode::from(code)
        }
    }
}

/// The answer of a command. (`println!` panics where nothing can be written.)
fn say(text: &str) -> Result<(), Failed> {
    writeln!(std::io::stdout(), "{text}").map_err(|e| Failed {
        code: EXIT_WRITE,
        message: format!("the answer cannot be written: {e}"),
    })
}

/// A line for the operator; there is nobody to tell that it cannot be written.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "flotilla-gateway: {text}");
}

fn load_config(path: &Path) -> Result<Config, Failed> {
    load::load(path).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(|p| format!("  {p}")).collect();
        let message = format!("{} is not usable:\n{}", path.display(), lines.join("\n"));
        Failed { code: EXIT_USAGE, message }
    })
}

fn run(path: &Path) -> Result<(), Failed> {
    start_log();
    let config = load_config(path)?;
    let software = |message| Failed { code: EXIT_SOFTWARE, message };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| software(e.to_string()))?;
    runtime.block_on(async {
        let listener = bind(&config).await?;
        let address = listener.local_addr().map_err(|e| software(e.to_string()))?;
        let stop = CancellationToken::new();
        stop_on_signal(stop.clone()).map_err(|e| software(e.to_string()))?;
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        tracing::info!("listening on {scheme}://{address}");
        app::run(config, listener, stop).await.map_err(|e| software(e.to_string()))
    })
}

async fn bind(config: &Config) -> Result<TcpListener, Failed> {
    let address = config.listen;
    TcpListener::bind(address).await.map_err(|e| {
        let why = match e.kind() {
            std::io::ErrorKind::AddrInUse => {
                "another program uses this port; choose another (listen)".to_string()
            }
            _ => e.to_string(),
        };
        Failed { code: EXIT_UNAVAILABLE, message: format!("cannot listen on {address}: {why}") }
    })
}

/// The first signal drains, the second ends at once.
fn stop_on_signal(stop: CancellationToken) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let watch = async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        next().await;
        tracing::info!("stopping");
        stop.cancel();
        next().await;
        #[expect(clippy::disallowed_methods, reason = "the operator insists")]
        std::process::exit(i32::from(EXIT_SOFTWARE));
    };
    // Lives exactly as long as the process.
    tokio::spawn(watch);
    Ok(())
}

fn new_key(name: &str) -> Result<(), Failed> {
    let mut random = [0u8; 32];
    getrandom::fill(&mut random)
        .map_err(|e| Failed { code: EXIT_SOFTWARE, message: format!("no randomness: {e}") })?;
    if !inference_protocol::ids::is_plain_id(name) {
        let message = "--name: expected 1 to 64 letters, digits, '.', '_' or '-'".into();
        return Err(Failed { code: EXIT_USAGE, message });
    }
    let hex: String = random.iter().map(|b| format!("{b:02x}")).collect();
    let key = format!("sk-flotilla-{hex}");
    let digest = KeyDigest::of(&key).to_hex();
    say(&format!("# The key, shown once:\n{key}\n# For the configuration:"))?;
    say(&format!("keys:\n  - name: {name}\n    sha256: {digest}"))
}

/// Text for people, JSON lines for machines, both on stderr.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // Otherwise a line that cannot be written (a full disk) ends in a panic about that.
    let log = tracing_subscriber::fmt().log_internal_errors(false);
    let log = log.with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        log.init();
    } else {
        log.json().flatten_event(true).init();
    }
}
