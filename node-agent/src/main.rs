//! `flotilla-agent`: parses the command line and runs the command.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::CommandFactory;
use flotilla_agent::commands::bench::{self, BenchArgs};
use flotilla_agent::commands::check::CheckArgs;
use flotilla_agent::commands::cli::{Cli, Command, EXAMPLES, EngineArgs};
use flotilla_agent::commands::doctor::sandbox_trial;
use flotilla_agent::commands::hardware::{self, HardwareArgs};
use flotilla_agent::commands::plan::NoFit;
use flotilla_agent::commands::pull;
use flotilla_agent::commands::serve;
use flotilla_agent::commands::serve::options::ServeArgs;
use flotilla_agent::commands::tune::TuneArgs;
use flotilla_agent::engine::kernel_trial::prove_kernel;
use flotilla_agent::engine::options::EngineOptions;
use flotilla_agent::engine::process;
use flotilla_agent::engine::tuning::trials;
use flotilla_agent::types::exit::{EXIT_DATA, EXIT_SOFTWARE, EXIT_UNAVAILABLE, Failed};
use flotilla_agent::types::print::UNWRITTEN;
use flotilla_manual::exit;
use inference_core::hardware::Kernel;

fn main() -> ExitCode {
    let program = flotilla_manual::with_help_sections(Cli::command(), EXAMPLES);
    let cli: Cli = match flotilla_manual::parse(program.clone(), std::env::args_os()) {
        Ok(cli) => cli,
        Err(code) => return ExitCode::from(code),
    };
    let done = match cli.command {
        Command::Serve(args) => serve(*args),
        Command::Pull(args) => pull::run(args),
        Command::Bench(args) => bench(&args),
        Command::Hardware(args) => hardware(&args),
        Command::Plan(args) => args.run().map_err(|e| match e {
            NoFit::Data(message) => Failed { code: EXIT_DATA, message },
            NoFit::Memory(message) => Failed { code: EXIT_UNAVAILABLE, message },
        }),
        Command::Doctor(args) => args.run(),
        Command::Health(args) => args.run(),
        Command::Probe { level } => {
            hardware::probe(level).map_err(|message| Failed { code: EXIT_SOFTWARE, message })
        }
        Command::Check(args) => check(&args),
        Command::Synth(args) => args.run().map_err(|message| Failed { code: EXIT_DATA, message }),
        Command::Tune(args) => tune(&args),
        Command::MemoryTrial(args) => bench::memory::child(&args).map_err(software),
        Command::AttentionTrial(args) => bench::attention::child(&args).map_err(software),
        Command::SpeedTrials(args) => bench::runner::child(&args).map_err(software),
        Command::SandboxTrial => sandbox_trial::child().map_err(software),
        Command::TuneTrials(args) => trials::child(&args).map_err(software),
        Command::Completions(of) => {
            let script = flotilla_manual::generate_completions(&program, of.shell);
            std::io::stdout().write_all(&script).map_err(unwritten)
        }
        Command::Man(to) => {
            let out = &mut std::io::stdout();
            flotilla_manual::write_man_pages(program, to.to.as_deref(), out).map_err(unwritten)
        }
        Command::Engine(args) => engine(args),
        Command::KernelTrial { kernel } => trial(kernel),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failed { code, message }) => {
            let code = if message.starts_with(UNWRITTEN) { exit::WRITE } else { code };
            // One line for the operator, even if a file's tensor names contain control characters.
            // If writing fails, there is no one to tell.
            let message = message.replace(char::is_control, " ");
            let _ = writeln!(std::io::stderr(), "flotilla-agent: {message}");
            ExitCode::from(code)
        }
    }
}

fn serve(args: ServeArgs) -> Result<(), Failed> {
    start_log();
    let kernel = prove(args.engine.kernel)?;
    let options = args.check(kernel).map_err(|message| Failed { code: EXIT_DATA, message })?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| software(e.to_string()))?;
    let served = runtime.block_on(serve::serve(options));
    // Do not wait for a DNS lookup in progress.
    runtime.shutdown_background();
    served
}

fn unwritten(error: std::io::Error) -> Failed {
    Failed { code: exit::WRITE, message: format!("{UNWRITTEN}: {error}") }
}

fn software(message: String) -> Failed {
    Failed { code: EXIT_SOFTWARE, message }
}

/// Chooses the kernels by testing them in a child process.
fn prove(wanted: Option<Kernel>) -> Result<Kernel, Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| software(e.to_string()))?;
    let proven = runtime.block_on(prove_kernel(wanted));
    proven.map_err(|message| Failed { code: EXIT_UNAVAILABLE, message })
}

fn hardware(args: &HardwareArgs) -> Result<(), Failed> {
    let failed = |message| Failed { code: EXIT_SOFTWARE, message };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| failed(e.to_string()))?;
    runtime.block_on(args.run()).map_err(failed)
}

fn bench(args: &BenchArgs) -> Result<(), Failed> {
    let kernel = prove(args.kernel)?;
    bench::run(args, kernel).map_err(|message| Failed { code: EXIT_DATA, message })
}

fn tune(args: &TuneArgs) -> Result<(), Failed> {
    start_log();
    let kernel = prove(args.engine.kernel)?;
    args.run(kernel).map_err(|message| Failed { code: EXIT_DATA, message })
}

fn check(args: &CheckArgs) -> Result<(), Failed> {
    let failed = |code| move |message: String| Failed { code, message };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| failed(EXIT_SOFTWARE)(e.to_string()))?;
    runtime.block_on(async {
        let kernel = prove_kernel(args.engine.kernel).await;
        let kernel = kernel.map_err(failed(EXIT_UNAVAILABLE))?;
        args.run(kernel).await.map_err(failed(EXIT_DATA))
    })
}

fn engine(args: EngineArgs) -> Result<(), Failed> {
    let options: EngineOptions = serde_json::from_str(&args.options)
        .map_err(|e| Failed { code: EXIT_SOFTWARE, message: format!("--options: {e}") })?;
    let options = EngineOptions { model: args.model, ..options };
    process::run(options).map_err(|e| Failed { code: EXIT_SOFTWARE, message: e.to_string() })
}

fn trial(kernel: Kernel) -> Result<(), Failed> {
    let failed = |message| Failed { code: EXIT_SOFTWARE, message };
    inference_core::llama::trial(kernel).map_err(failed)
}

/// Logs to stderr: text for people, JSON lines for programs.
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    // Otherwise a line that cannot be written (a full disk) would cause a panic.
    let log = tracing_subscriber::fmt().log_internal_errors(false);
    let log = log.with_env_filter(filter).with_writer(std::io::stderr);
    if std::io::stderr().is_terminal() {
        log.init();
    } else {
        log.json().flatten_event(true).with_current_span(false).init();
    }
}
