//! The command line: every command, including hidden ones, and examples.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use flotilla_manual::{CompletionsArgs, Example, ManArgs};
use inference_core::hardware::Kernel;
use inference_core::hardware::simd::Level;

use crate::commands::bench::BenchArgs;
use crate::commands::check::CheckArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::hardware::HardwareArgs;
use crate::commands::health::HealthArgs;
use crate::commands::plan::PlanArgs;
use crate::commands::pull::PullArgs;
use crate::commands::recommend::RecommendArgs;
use crate::commands::serve::options::ServeArgs;
use crate::commands::synth::SynthArgs;
use crate::commands::tune::TuneArgs;
use crate::engine::measuring::ChildArgs;

/// Examples, shown after the help of each command and in its man page.
pub(crate) const EXAMPLES: &[Example] = &[
    ("", "flotilla-agent serve model.gguf"),
    ("", "flotilla-agent serve hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M"),
    ("serve", "flotilla-agent serve model.gguf --listen 127.0.0.1:9000"),
    (
        "serve",
        "flotilla-agent serve hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M --join https://gateway.example:8080 \\\n      \
         --join-key-file join.key",
    ),
    ("serve", "flotilla-agent serve model.gguf --slots 8 --context-tokens 2048 --load mlock"),
    ("pull", "flotilla-agent pull hf:owner/repo:Q4_K_M --to models/"),
    ("pull", "flotilla-agent pull hf:owner/repo/model-q4_k_m.gguf --to models/"),
    ("pull", "flotilla-agent pull --cache hf:owner/repo:Q4_K_M"),
    ("bench", "flotilla-agent bench model.gguf --plot speed.svg"),
    ("tune", "flotilla-agent tune model.gguf"),
    ("tune", "flotilla-agent tune model.gguf --json > speeds.json"),
    ("hardware", "flotilla-agent hardware"),
    ("plan", "flotilla-agent plan model.gguf"),
    ("plan", "flotilla-agent plan model.gguf --memory-mib 3500 --context-tokens 4096 --slots 2"),
    (
        "plan",
        "flotilla-agent plan model.gguf --requests-per-day 20000 --prompt-tokens 600 \\\n      \
         --answer-tokens 200 --price-per-hour 0.02 --gpu-price-per-hour 1.20",
    ),
    ("recommend", "flotilla-agent recommend"),
    ("recommend", "flotilla-agent recommend --memory-mib 3500 --quick --all"),
    ("check", "flotilla-agent check model.gguf"),
    ("doctor", "flotilla-agent doctor --model model.gguf"),
    ("health", "flotilla-agent health --listen 127.0.0.1:8080"),
    ("synth", "flotilla-agent synth --shape qwen2.5-0.5b --quant q4_0 random.gguf"),
    ("completions", "flotilla-agent completions bash > /etc/bash_completion.d/flotilla-agent"),
    ("completions", "flotilla-agent completions zsh > ~/.zfunc/_flotilla-agent"),
    (
        "completions",
        "flotilla-agent completions fish > ~/.config/fish/completions/flotilla-agent.fish",
    ),
    ("man", "flotilla-agent man | man -l -"),
    ("man", "flotilla-agent man --to /usr/local/share/man/man1"),
];

/// Serves a GGUF model on this machine: alone, or as a node of a Flotilla fleet.
#[derive(Debug, Parser)]
#[command(name = "flotilla-agent", version, about)]
pub(crate) struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a model with the OpenAI API, on its own port or through a gateway
    ///
    /// A model that is not a file of this machine is downloaded into the cache folder at the first
    /// start, with the variables of `pull`. Later starts need no network; `pull --cache` looks for
    /// a new version.
    ///
    /// llama-server's -m, -hf, -hff, -mu, -a, -c, -np, -t, -fa, -ctk, -ctv and their long forms
    /// work, too, and so do its flags for host, port, mlock, no-mmap and the API key file. -c is
    /// the context of one request, not of all slots together.
    Serve(Box<ServeArgs>),
    /// Download a model file, or resume an interrupted download
    Pull(PullArgs),
    /// Measure the speed of a model on this machine, alone and through the scheduler
    Bench(BenchArgs),
    /// Find the fastest settings for a model on this machine, and store them for `serve`
    Tune(TuneArgs),
    /// Show this machine's CPUs, memory, and supported instructions
    Hardware(HardwareArgs),
    /// Show whether a model fits into this machine's memory, and with which settings
    Plan(PlanArgs),
    /// List well-known open models that fit this machine, with their memory and speed
    Recommend(RecommendArgs),
    /// Find problems that keep this machine from serving well, and show how to fix them; exits with
    /// 1 if one must be fixed
    Doctor(Box<DoctorArgs>),
    /// Ask a running agent whether it accepts requests; exits with 1 if it does not
    Health(HealthArgs),
    /// Load models as `serve` would, and report whether they work
    Check(CheckArgs),
    /// Write a model file with random weights and the dimensions of a real model
    Synth(SynthArgs),
    /// Print a shell completion script
    Completions(CompletionsArgs),
    /// Print the man page, or write one for each command
    Man(ManArgs),
    /// Run the engine process; started by `serve`
    #[command(hide = true)]
    Engine(EngineArgs),
    /// Execute one instruction of a level; started by `hardware`
    #[command(hide = true)]
    Probe {
        /// Name of the level.
        level: Level,
    },
    /// Measure the memory of one engine; started by `bench`
    #[command(hide = true)]
    MemoryTrial(ChildArgs),
    /// Measure speeds; started by `bench`
    #[command(hide = true)]
    SpeedTrials(ChildArgs),
    /// Test the engine's sandbox in this process; started by `doctor`
    #[command(hide = true)]
    SandboxTrial,
    /// Measure our kernels and llama.cpp's; started by `bench`
    #[command(hide = true)]
    KernelsTrial(ChildArgs),
    /// Measure candidate settings; started by `tune`
    #[command(hide = true)]
    TuneTrials(ChildArgs),
    /// Run one set of CPU kernels; started by `serve`
    #[command(hide = true)]
    KernelTrial {
        /// Name of the kernels.
        kernel: Kernel,
    },
}

/// `engine`
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// Model file.
    #[arg(long)]
    pub model: PathBuf,
    /// Draft model's file.
    #[arg(long)]
    pub draft_model: Option<PathBuf>,
    /// Everything else, as JSON.
    #[arg(long)]
    pub options: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> clap::Command {
        use clap::CommandFactory;
        flotilla_manual::with_help_sections(Cli::command(), EXAMPLES)
    }

    #[test]
    fn the_help_says_everything() {
        program().debug_assert();
        assert_eq!(flotilla_manual::find_help_gaps(&program()), Vec::<String>::new());
    }

    #[test]
    fn every_example_is_a_command_line_that_is_understood() {
        assert_eq!(flotilla_manual::find_invalid_examples::<Cli>(EXAMPLES), Vec::<String>::new());
    }
}
