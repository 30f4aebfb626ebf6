//! `flotilla-agent recommend`: well-known models that this machine can serve, with the memory and
//! the speed that the memory plan computes.

use clap::Args;
use inference_core::hardware::files::Root;
use inference_core::hardware::report::Machine;
use inference_core::model_file::catalog::{KnownModel, MODELS, Purpose, Quantization};
use inference_core::model_file::memory_plan::{
    MachineFacts, Plan, PlanFailure, RequestedSettings, plan,
};
use inference_core::types::units::bytes;
use serde::Serialize;

use crate::commands::hardware::measure;
use crate::engine::plan_facts::facts;
use crate::types::exit::Failed;
use crate::types::print::print_line;

/// The agent's default number of slots.
const SLOTS: u64 = 4;
/// With less context than the first, the default slots are too many; with less than the second, a
/// model is of no use.
const CONTEXT_GOOD: u64 = 4096;
const CONTEXT_MIN: u64 = 2048;
/// Slower models are listed after faster ones: people read faster than this.
const TOKENS_PER_SECOND_MIN: f64 = 6.0;

/// `recommend`
#[derive(Debug, Args)]
pub(crate) struct RecommendArgs {
    /// Memory to plan for, in MiB [default: this machine's available memory]
    #[arg(long, value_name = "MIB")]
    pub memory_mib: Option<u64>,
    /// Also list models that do not fit
    #[arg(long)]
    pub all: bool,
    /// Skip measuring the memory bandwidth, and the estimate of tokens per second
    #[arg(long)]
    pub quick: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A model in one quantization, on this machine.
#[derive(Debug, Serialize)]
struct Recommendation {
    name: &'static str,
    quantization: &'static str,
    /// The argument of `serve`.
    model: String,
    license: &'static str,
    purpose: Purpose,
    parameters: u64,
    file_bytes: u64,
    fits: bool,
    needed_bytes: u64,
    slots: u64,
    context_tokens: u64,
    trained_context_tokens: u32,
    /// Estimate for one request with an empty context, from the memory bandwidth; `None` if that
    /// was not measured, and for embeddings.
    decode_tokens_per_second: Option<f64>,
}

impl RecommendArgs {
    /// Prints the models.
    pub(crate) fn run(&self) -> Result<(), Failed> {
        let machine = Machine::read(&Root::machine(), std::env::consts::ARCH);
        let mut facts = facts(&machine);
        if let Some(mebibytes) = self.memory_mib {
            facts.available_bytes = mebibytes.saturating_mul(1 << 20);
        }
        if !self.quick {
            facts.bandwidth = measure(&machine).map_err(Failed::data)?.map(|b| b.best);
        }
        let mut models = recommend(&facts);
        models.retain(|model| self.all || model.fits);
        let text = match self.json {
            true => serde_json::to_string_pretty(&models).map_err(Failed::software)?,
            false => table(&models, &facts),
        };
        Ok(print_line(&text)?)
    }
}

/// All models, best first: those that fit and are fast enough, the largest first; then slower ones;
/// then those that do not fit. Models for embeddings come last in each group.
fn recommend(facts: &MachineFacts) -> Vec<Recommendation> {
    let each = |model: &'static KnownModel| {
        model.quantizations.iter().filter_map(move |q| recommendation(model, *q, facts))
    };
    let mut all: Vec<Recommendation> = MODELS.iter().flat_map(each).collect();
    let is_slow = |model: &Recommendation| {
        model.decode_tokens_per_second.is_some_and(|speed| speed < TOKENS_PER_SECOND_MIN)
    };
    all.sort_by_key(|model| {
        let size = std::cmp::Reverse(model.parameters);
        let is_chat = model.purpose == Purpose::Chat;
        (!model.fits, !is_chat, is_slow(model), size, model.file_bytes)
    });
    all
}

fn recommendation(
    model: &'static KnownModel,
    quantization: Quantization,
    facts: &MachineFacts,
) -> Option<Recommendation> {
    let plan = planned(model, quantization, facts)?;
    let is_chat = model.purpose == Purpose::Chat;
    Some(Recommendation {
        name: model.name,
        quantization: quantization.name(),
        model: format!("hf:{}:{}", model.repository, quantization.name()),
        license: model.license,
        purpose: model.purpose,
        parameters: model.parameters(),
        file_bytes: model.file_bytes(quantization),
        fits: plan.fits && plan.context_tokens >= CONTEXT_MIN.min(model.context_tokens.into()),
        needed_bytes: plan.needed_bytes,
        slots: plan.slots,
        context_tokens: plan.context_tokens,
        trained_context_tokens: model.context_tokens,
        decode_tokens_per_second: plan.decode_estimate.filter(|_| is_chat),
    })
}

/// The plan with the default slots, or with fewer if these leave no good context.
fn planned(model: &KnownModel, quantization: Quantization, facts: &MachineFacts) -> Option<Plan> {
    let header = model.header(quantization);
    let with = |slots| {
        let requested = RequestedSettings { slots, ..RequestedSettings::default() };
        match plan(&header, facts, &requested) {
            Ok(plan) => Some(plan),
            Err(PlanFailure::Refused(refusal)) => Some(refusal.plan),
            Err(PlanFailure::Error(_)) => None,
        }
    };
    let good = CONTEXT_GOOD.min(model.context_tokens.into());
    with(Some(SLOTS)).filter(|plan| plan.fits && plan.context_tokens >= good).or_else(|| with(None))
}

fn table(models: &[Recommendation], facts: &MachineFacts) -> String {
    let mut lines = vec![format!(
        "{:<25} {:<7} {:>8} {:>9} {:>9}  {:<19} {:>9}  {:<17} MODEL",
        "NAME", "QUANT", "PARAMS", "FILE", "MEMORY", "CONTEXT", "TOKENS/S", "LICENSE"
    )];
    for model in models {
        let speed = match model.decode_tokens_per_second {
            Some(speed) => format!("about {speed:.0}"),
            None => "-".into(),
        };
        let context = match (model.fits, model.purpose) {
            (false, _) => "does not fit".into(),
            (true, Purpose::Embeddings) => model.context_tokens.to_string(),
            (true, Purpose::Chat) => {
                let Recommendation { slots, context_tokens, trained_context_tokens, .. } = model;
                format!("{slots} x {context_tokens} / {trained_context_tokens}")
            }
        };
        lines.push(format!(
            "{:<25} {:<7} {:>6.2} B {:>9} {:>9}  {:<19} {:>9}  {:<17} {}",
            model.name,
            model.quantization,
            model.parameters as f64 / 1e9,
            bytes(model.file_bytes),
            bytes(model.needed_bytes),
            context,
            speed,
            model.license,
            model.model
        ));
    }
    if models.is_empty() {
        lines = vec!["no model of the list fits".into()];
    }
    lines.push(format!(
        "Planned for {} of available memory. CONTEXT is slots x tokens of each / tokens that the model \
         was trained for. TOKENS/S is an estimate for one request: memory speed / bytes read for a \
         token.",
        bytes(facts.available_bytes)
    ));
    lines.push("Serve one: flotilla-agent serve MODEL".into());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use inference_core::model_file::memory_plan::weights::Repacking;

    fn machine(gibibytes: u64) -> MachineFacts {
        MachineFacts {
            available_bytes: gibibytes << 30,
            lockable_bytes: None,
            threads: 4,
            repacking: Repacking::Avx2,
            bandwidth: Some(30e9),
            prefill_rate: None,
        }
    }

    #[test]
    fn the_largest_model_that_fits_and_is_fast_enough_comes_first() {
        for gibibytes in [1, 4, 16, 64] {
            let all = recommend(&machine(gibibytes));
            let fitting = all.iter().take_while(|model| model.fits).count();
            assert!(all[fitting..].iter().all(|model| !model.fits), "those that fit come first");
            let chats = all[..fitting].iter().filter(|model| model.purpose == Purpose::Chat);
            let fast: Vec<_> = chats
                .filter(|model| model.decode_tokens_per_second.unwrap() >= TOKENS_PER_SECOND_MIN)
                .collect();
            assert!(fast.is_sorted_by_key(|model| std::cmp::Reverse(model.parameters)));
            assert!(all[..fitting].iter().all(|model| model.needed_bytes < gibibytes << 30));
            assert_eq!(all[0].name, fast[0].name, "{gibibytes} GiB");
        }
        let names =
            |gibibytes| recommend(&machine(gibibytes)).into_iter().filter(|m| m.fits).count();
        assert!(names(1) >= 1 && names(1) < names(8) && names(8) < names(64));
    }

    #[test]
    fn the_table_says_how_to_serve_each() {
        let text = table(&recommend(&machine(16)), &machine(16));
        assert!(text.contains("hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M"), "{text}");
        assert!(text.contains("Apache-2.0") && text.contains("about "), "{text}");
        assert!(text.contains("4 x 32768 / 32768"), "slots, context and trained context: {text}");
        assert!(table(&[], &machine(0)).starts_with("no model of the list fits"));
    }
}
