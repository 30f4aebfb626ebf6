//! Measures the gain of our attention kernels: runs the same batches with them and with
//! llama.cpp's, alternating.

use std::path::Path;
use std::time::Duration;

use inference_core::llama::{ContextOptions, LlamaModel};
use inference_core::model_file::memory_plan::LoadMode;
use inference_core::tools::bench::median;
use inference_core::tools::bench::raw::{DEEP_CELLS, DEEP_TOKENS, DepthSpeeds, measure_at_depth};

use super::report::Figure;
use super::{Setup, Show};
use crate::engine::measuring::ChildArgs;
use crate::engine::measuring::{
    MeasuringChild, command, load_confined, prepare_child, write_answer,
};
use crate::types::exit::Failed;

/// Makes the kernels leave all attention to llama.cpp's own (inference-core/kernels).
const LLAMA_CPP: (&str, &str) = ("FLOTILLA_ATTENTION", "llama.cpp");
/// Number of parallel sequences.
const SLOTS: u32 = 8;
/// Enough to load from a slow disk and run some thousand tokens on a slow machine.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// `attention-trial`: measures, and prints the figures.
pub(crate) fn child(args: &ChildArgs) -> Result<(), String> {
    prepare_child()?;
    let setup: Setup =
        serde_json::from_str(&args.options).map_err(|e| format!("--options: {e}"))?;
    let weights = load_confined(&args.model, setup.sandbox, setup.kernel, LoadMode::Mmap)?;
    let options = ContextOptions {
        slots: SLOTS,
        context_tokens: DEEP_CELLS,
        kv_cells: DEEP_CELLS,
        threads: setup.threads,
        ..ContextOptions::default()
    };
    let mut model = LlamaModel::new(weights, options).map_err(|e| e.to_string())?;
    write_answer(&measure_at_depth(&mut model).map_err(|e| e.0)?)
}

fn run(model: &Path, setup: Setup, ours: bool) -> Result<DepthSpeeds, Failed> {
    let mut command = command("attention-trial", model, &setup)?;
    if !ours {
        command.env(LLAMA_CPP.0, LLAMA_CPP.1);
    }
    let mut child = MeasuringChild::start(command)?;
    child.receive(TIMEOUT).map_err(|e| Failed::data(format_args!("measuring attention: {e}")))
}

/// Speed ratios, ours / llama.cpp's.
pub(super) fn measure(
    model: &Path,
    setup: Setup,
    rounds: u32,
    show: &Show,
) -> Result<Vec<Figure>, Failed> {
    let mut turns = Vec::new();
    for _ in 0..rounds {
        show.begin("attention");
        turns.push((run(model, setup, true)?, run(model, setup, false)?));
        show.step();
    }
    let ratio = |name: &str, what: &str, speed: fn(&DepthSpeeds) -> f64| {
        let ratios = turns.iter().map(|(ours, theirs)| speed(ours) / speed(theirs)).collect();
        let how = format!("{what}: speed with our attention / with llama.cpp's");
        Figure::new(name, median(ratios), None, &how)
    };
    let prompt = format!("a prompt of {DEEP_TOKENS} tokens");
    Ok(vec![
        ratio("attention_prefill", &prompt, |speeds| speeds.prefill),
        ratio("attention_chunks", "16 rows at a time after it", |speeds| speeds.chunks),
        ratio("attention_decode", "8 side by side, one of them after it", |speeds| speeds.decode),
    ])
}
