//! `flotilla-agent bench`: measures how fast a model runs on this machine, alone and through our
//! scheduler, and the memory it takes.
//!
//! Every figure is a line of JSON, `{"name", "value", "aim", "how"}`, or a part of a table. Figures
//! with an aim are ratios of two measurements that alternate in this run.

pub(crate) mod kernels;
pub(crate) mod memory;
pub(crate) mod plot;
pub(crate) mod report;
mod roofline;
pub(crate) mod runner;
mod speculation;

use std::cell::RefCell;
use std::io::IsTerminal;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use inference_core::hardware::Kernel;
use inference_core::hardware::files::Root;
use inference_core::hardware::report::Machine;
use inference_core::model_file::mtp_head;
use serde::{Deserialize, Serialize};

use crate::engine::model_files::ModelFiles;
use crate::engine::sandbox::SandboxMode;
use crate::types::exit::Failed;
use crate::types::print::{PrintError, print_line};
use crate::types::progress::Progress;
use report::{Figure, Figures};
use roofline::{Peaks, Work};

/// `bench`
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Model file (GGUF); `synth` writes one of any size
    pub model: PathBuf,
    /// Draft model (GGUF) to measure as well, in a text of which it knows a part [default: none]
    #[arg(long, value_name = "FILE")]
    pub draft_model: Option<PathBuf>,
    /// Compute threads [default: the physical cores this process may use]
    #[arg(long)]
    pub threads: Option<u32>,
    /// CPU kernels: avx512, baseline [default: the fastest that works here]
    #[arg(long)]
    pub kernel: Option<Kernel>,
    /// Run the measuring processes in the engine's sandbox: auto, on, off
    #[arg(long, value_name = "CHOICE", default_value_t)]
    pub sandbox: SandboxMode,
    /// Number of measurements per median
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub rounds: u32,
    /// Output format [default: a table on a terminal, else JSON]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Also draw the figures into this SVG file [default: none]
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
}

/// How figures are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// A table at the end.
    Table,
    /// A line of JSON for each figure, as soon as it is measured.
    Json,
}

/// Options of the engine in a measuring child process.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// The tested CPU kernels.
    pub kernel: Kernel,
    /// Number of compute threads.
    pub threads: u32,
    /// Measurements for each figure that is a median.
    pub rounds: u32,
    /// Whether the child confines itself.
    pub sandbox: SandboxMode,
    /// Measure what the MTP head in the model's file gains.
    pub mtp_head: bool,
}

/// Output of the figures.
struct Show {
    format: Format,
    bar: Progress,
    figures: RefCell<Figures>,
}

impl Show {
    fn add(&self, figure: Figure) -> Result<(), PrintError> {
        let line = figure.json();
        self.figures.borrow_mut().0.push(figure);
        match self.format {
            Format::Json => self.bar.beside(|| print_line(&line.to_string())),
            Format::Table => Ok(()),
        }
    }

    fn begin(&self, what: &str) {
        self.bar.begin(what);
    }

    fn step(&self) {
        self.bar.step();
    }
}

/// Measures everything.
pub(crate) fn run(args: &BenchArgs, kernel: Kernel) -> Result<(), Failed> {
    let files = ModelFiles::open(&args.model).map_err(Failed::data)?;
    let work = Work::of(files.header());
    let default = if std::io::stdout().is_terminal() { Format::Table } else { Format::Json };
    let cores = inference_core::hardware::compute_threads() as u32;
    let threads = args.threads.unwrap_or(cores);
    let mtp_head = args.draft_model.is_none() && mtp_head::is_usable(files.header());
    let steps = runner::steps(args.rounds, args.draft_model.is_some() || mtp_head);
    let show = Show {
        format: args.format.unwrap_or(default),
        bar: Progress::new(Some(steps + 1 + u64::from(args.rounds))),
        figures: RefCell::default(),
    };
    let how = format!("threads; kernels {}", kernel.name());
    show.add(Figure::new("machine", f64::from(threads), None, &how))?;
    let setup = Setup { kernel, threads, rounds: args.rounds, sandbox: args.sandbox, mtp_head };
    show.begin("the machine");
    let machine = Machine::read(&Root::machine(), std::env::consts::ARCH);
    let peaks = Peaks::measure(setup, &machine)?;
    for figure in peaks.figures() {
        show.add(figure)?;
    }
    show.begin("memory");
    for figure in memory::measure(&args.model, files.header(), setup)? {
        show.add(figure)?;
    }
    show.step();
    for figure in kernels::measure(&args.model, setup, args.rounds, &show)? {
        show.add(figure)?;
    }
    runner::measure((&args.model, args.draft_model.as_deref()), setup, &show)?;
    let limits = show.figures.borrow().limits(|step| work.limit(step, peaks));
    for figure in limits {
        show.add(figure)?;
    }
    show.bar.end();
    let figures = show.figures.into_inner();
    if show.format == Format::Table {
        print_line(&figures.table())?;
    }
    if let Some(path) = &args.plot {
        let name = args.model.file_name().unwrap_or_default().to_string_lossy();
        let title = format!("{name}, {threads} threads, kernels {}", kernel.name());
        let fail = |e: std::io::Error| Failed::data(format_args!("{}: {e}", path.display()));
        let picture = plot::svg(&title, &figures).map_err(Failed::data)?;
        std::fs::write(path, picture).map_err(fail)?;
    }
    Ok(())
}
