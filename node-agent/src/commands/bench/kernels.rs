//! Measures the gain of our kernels for attention and for matrix products: runs the same batches
//! with them and with llama.cpp's, alternating.

use std::path::Path;
use std::time::Duration;

use inference_core::llama::{ContextOptions, LlamaModel};
use inference_core::model_file::memory_plan::LoadMode;
use inference_core::tools::bench::median;
use inference_core::tools::bench::raw::{
    DEEP_CELLS, DEEP_TOKENS, DepthSpeeds, TRIAL_SLOTS, measure_at_depth, measure_curve,
};
use serde::{Deserialize, Serialize};

use super::report::Figure;
use super::{Setup, Show};
use crate::engine::measuring::ChildArgs;
use crate::engine::measuring::{
    MeasuringChild, command, load_confined, prepare_child, write_answer,
};
use crate::types::exit::Failed;

/// Value of the variables below that leaves the work to llama.cpp (inference-core/kernels).
const LLAMA_CPP: &str = "llama.cpp";
const ATTENTION: &str = "FLOTILLA_ATTENTION";
const PRODUCTS: &str = "FLOTILLA_MATMUL";
/// Numbers of sequences that decode in parallel.
const BATCHES: [u32; 5] = [1, 2, 4, 8, 16];
/// Enough to load from a slow disk and run some thousand tokens on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// Speeds in tokens per second.
#[derive(Debug, Serialize, Deserialize)]
struct Speeds {
    depth: DepthSpeeds,
    /// Decode speed for each of [`BATCHES`].
    curve: Vec<(u32, f64)>,
}

impl Speeds {
    /// Decode speed of the batch at an index.
    fn decode(&self, index: usize) -> f64 {
        self.curve.get(index).map_or(f64::NAN, |(_, speed)| *speed)
    }
}

/// `kernels-trial`: measures, and prints the figures.
pub(crate) fn child(args: &ChildArgs) -> Result<(), String> {
    prepare_child()?;
    let setup: Setup =
        serde_json::from_str(&args.options).map_err(|e| format!("--options: {e}"))?;
    let weights = load_confined(&args.model, setup.sandbox, setup.kernel, LoadMode::Mmap)?;
    let options = ContextOptions {
        slots: TRIAL_SLOTS,
        context_tokens: DEEP_CELLS,
        kv_cells: DEEP_CELLS,
        threads: setup.threads,
        ..ContextOptions::default()
    };
    let mut model = LlamaModel::new(weights, options).map_err(|e| e.to_string())?;
    let depth = measure_at_depth(&mut model).map_err(|e| e.0)?;
    let curve = measure_curve(&mut model, &BATCHES).map_err(|e| e.0)?;
    write_answer(&Speeds { depth, curve })
}

/// Measures once. `theirs`: the variable of the kernels that are llama.cpp's.
fn run(model: &Path, setup: Setup, theirs: Option<&str>) -> Result<Speeds, Failed> {
    let mut command = command("kernels-trial", model, &setup)?;
    if let Some(variable) = theirs {
        command.env(variable, LLAMA_CPP);
    }
    let mut child = MeasuringChild::start(command)?;
    child.receive(TIMEOUT).map_err(|e| Failed::data(format_args!("measuring kernels: {e}")))
}

/// Speed ratios, ours / llama.cpp's.
pub(super) fn measure(
    model: &Path,
    setup: Setup,
    rounds: u32,
    show: &Show,
) -> Result<Vec<Figure>, Failed> {
    let (mut attention, mut products) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        show.begin("kernels");
        let ours = run(model, setup, None)?;
        let of = |theirs: &Speeds, speed: &dyn Fn(&Speeds) -> f64| speed(&ours) / speed(theirs);
        let theirs = run(model, setup, Some(ATTENTION))?;
        attention.push([
            of(&theirs, &|speeds| speeds.depth.prefill),
            of(&theirs, &|speeds| speeds.depth.chunks),
            of(&theirs, &|speeds| speeds.depth.decode),
        ]);
        let theirs = run(model, setup, Some(PRODUCTS))?;
        let mut ratios = vec![of(&theirs, &|speeds| speeds.depth.prefill)];
        ratios.extend((0..BATCHES.len()).map(|i| of(&theirs, &|speeds| speeds.decode(i))));
        products.push(ratios);
        show.step();
    }
    let prompt = format!("a prompt of {DEEP_TOKENS} tokens");
    let ratio = |name: &str, what: &str, kernels: &str, ratios: Vec<f64>| {
        let how = format!("{what}: speed with our {kernels} / with llama.cpp's");
        Figure::new(name, median(ratios), None, &how)
    };
    let attention_of = |i: usize| attention.iter().map(|ratios| ratios[i]).collect();
    let mut figures = vec![
        ratio("attention_prefill", &prompt, "attention", attention_of(0)),
        ratio("attention_chunks", "16 rows at a time after it", "attention", attention_of(1)),
        ratio(
            "attention_decode",
            "8 side by side, one of them after it",
            "attention",
            attention_of(2),
        ),
    ];
    let products_of = |i: usize| products.iter().filter_map(|r| r.get(i).copied()).collect();
    figures.push(ratio("matmul_prefill", &prompt, "matrix products", products_of(0)));
    for (i, batch) in BATCHES.into_iter().enumerate() {
        let (name, what) = (format!("matmul_decode_{batch}"), format!("{batch} side by side"));
        figures.push(ratio(&name, &what, "matrix products", products_of(i + 1)));
    }
    Ok(figures)
}
