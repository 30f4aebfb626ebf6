//! The commands of `flotilla-agent`, one file or folder for each. [`cli`] defines the command line,
//! [`run`] parses it and runs the command.

mod bench;
mod check;
mod cli;
mod doctor;
mod hardware;
mod health;
mod model;
mod plan;
mod pull;
mod recommend;
mod serve;
mod synth;
mod tune;

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use flotilla_listeners::log::start_log;
use flotilla_manual::exit::USAGE;
use inference_core::hardware::Kernel;

use crate::engine::kernel_trial::prove_kernel;
use crate::engine::options::EngineOptions;
use crate::engine::process;
use crate::engine::tuning::trials;
use crate::serve::request_id;
use crate::types::exit::{EXIT_UNAVAILABLE, Failed};
use crate::types::print::PrintError;
use check::CheckArgs;
use cli::{Cli, Command, EXAMPLES, EngineArgs};
use doctor::sandbox_trial;
use pull::stop::Stop;
use serve::llama_flags;
use serve::options::{CheckedArgs, ServeArgs, ServeOptions};
use serve::remote::{Files, RemoteModels};
use tune::TuneArgs;

/// Parses the command line, runs the command, and prints why it failed.
pub fn run() -> ExitCode {
    let program = flotilla_manual::with_help_sections(Cli::command(), EXAMPLES);
    let words = match llama_flags::translate(std::env::args_os()) {
        Ok(words) => words.into_iter(),
        Err(why) => return print_failure(&Failed::new(USAGE, why)),
    };
    let cli: Cli = match flotilla_manual::parse(program.clone(), words) {
        Ok(cli) => cli,
        Err(code) => return ExitCode::from(code),
    };
    let done = match cli.command {
        Command::Serve(args) => start(*args),
        Command::Pull(args) => pull::run(args),
        Command::Bench(args) => {
            block_on(prove(args.kernel)).and_then(|kernel| bench::run(&args, kernel))
        }
        Command::Hardware(args) => block_on(args.run()),
        Command::Plan(args) => args.run(),
        Command::Recommend(args) => args.run(),
        Command::Doctor(args) => args.run(),
        Command::Health(args) => args.run(),
        Command::Probe { level } => hardware::probe(level).map_err(Failed::software),
        Command::Check(args) => check(&args),
        Command::Synth(args) => args.run(),
        Command::Tune(args) => tune(&args),
        Command::MemoryTrial(args) => bench::memory::child(&args).map_err(Failed::software),
        Command::KernelsTrial(args) => bench::kernels::child(&args).map_err(Failed::software),
        Command::SpeedTrials(args) => bench::runner::child(&args).map_err(Failed::software),
        Command::SandboxTrial => sandbox_trial::child().map_err(Failed::software),
        Command::TuneTrials(args) => trials::child(&args).map_err(Failed::software),
        Command::Completions(of) => {
            let script = flotilla_manual::generate_completions(&program, of.shell);
            std::io::stdout().write_all(&script).map_err(|e| PrintError(e).into())
        }
        Command::Man(to) => {
            let out = &mut std::io::stdout();
            flotilla_manual::write_man_pages(program, to.to.as_deref(), out)
                .map_err(|e| PrintError(e).into())
        }
        Command::Engine(args) => engine(args),
        Command::KernelTrial { kernel } => kernel_trial(kernel),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => print_failure(&failed),
    }
}

/// Runs a set of kernels and prints its speed.
fn kernel_trial(kernel: Kernel) -> Result<(), Failed> {
    let speed = inference_core::llama::trial(kernel).map_err(Failed::software)?;
    writeln!(std::io::stdout(), "{speed:.1}").map_err(|e| PrintError(e).into())
}

fn print_failure(Failed { code, message }: &Failed) -> ExitCode {
    // One line for the operator, even if a file's tensor names contain control characters, and in
    // one write, because the agent and its engine share the pipe. If it fails, no one can be told.
    let line = format!("flotilla-agent: {}\n", message.replace(char::is_control, " "));
    let _ = std::io::stderr().write_all(line.as_bytes());
    ExitCode::from(*code)
}

fn start(args: ServeArgs) -> Result<(), Failed> {
    start_log(request_id::visit_current);
    let remote = args.remote_models()?;
    let args = args.check()?;
    let kernel = block_on(prove(args.kernel()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(Failed::software)?;
    let options = match remote.is_empty() {
        true => args.plan(kernel, Files::default()),
        false => runtime.block_on(fetch_and_plan(remote, args, kernel)),
    };
    let served = options.and_then(|options| runtime.block_on(serve::serve(options)));
    // Do not wait for a DNS lookup in progress.
    runtime.shutdown_background();
    served
}

/// Downloads the models and plans for them, until a signal comes.
async fn fetch_and_plan(
    remote: RemoteModels,
    args: CheckedArgs,
    kernel: Kernel,
) -> Result<ServeOptions, Failed> {
    let stop = Stop::on_signals().map_err(Failed::software)?;
    let files = remote.download(&stop).await?;
    let planned = tokio::task::spawn_blocking(move || args.plan(kernel, files));
    let planned = stop.unless(planned).await;
    let planned = planned.map_err(|code| Failed::new(code, "interrupted"))?;
    planned.map_err(Failed::software)?
}

/// Runs `work` on this thread.
fn block_on<T>(work: impl Future<Output = Result<T, Failed>>) -> Result<T, Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(Failed::software)?.block_on(work)
}

/// Chooses the kernels by testing them in child processes.
async fn prove(wanted: Option<Kernel>) -> Result<Kernel, Failed> {
    prove_kernel(wanted).await.map_err(|why| Failed::new(EXIT_UNAVAILABLE, why))
}

fn tune(args: &TuneArgs) -> Result<(), Failed> {
    start_log(request_id::visit_current);
    args.run(block_on(prove(args.engine.kernel))?)
}

fn check(args: &CheckArgs) -> Result<(), Failed> {
    block_on(async { args.run(prove(args.engine.kernel).await?).await })
}

fn engine(args: EngineArgs) -> Result<(), Failed> {
    let options: EngineOptions = serde_json::from_str(&args.options)
        .map_err(|e| Failed::software(format_args!("--options: {e}")))?;
    let options = EngineOptions { model: args.model, draft_model: args.draft_model, ..options };
    process::run(options).map_err(Failed::software)
}
