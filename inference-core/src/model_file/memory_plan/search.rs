//! PURE. Chooses settings that were not requested, and finds what would fit if the plan does not.

use serde::Serialize;

use super::context::CELLS_MULTIPLE;
use super::{Case, MachineFacts, Plan, PlanError, RequestedSettings, SLOTS_DEFAULT, SLOTS_MAX};
use crate::model_file::gguf::Header;
use crate::types::units;

/// Minimum tokens of a request worth planning for; the command line has the same limit.
const CONTEXT_MIN: u64 = 64;
/// Up to this length, a longer context is preferred to more slots.
const CONTEXT_GOOD: u64 = 4096;
/// A context that was not requested, or additional slots, leave this share of the available memory
/// free: other programs and the page cache need some of it.
const SPARE_SHARE: u64 = 4;
/// A context that memory limits is a multiple of this, so that the next start, with a little more
/// or less memory, chooses the same.
const CONTEXT_STEP: u64 = 1024;
/// Maximum number of slots chosen automatically.
const SLOTS_CHOSEN_MAX: u64 = 16;
/// Context length for models that do not give theirs.
const TRAINED_DEFAULT: u64 = 4096;
/// Common quantizations and their bits per weight.
const QUANTISATIONS: [(&str, f64); 7] = [
    ("Q8_0", 8.5),
    ("Q6_K", 6.6),
    ("Q5_K_M", 5.7),
    ("Q4_K_M", 4.9),
    ("Q4_0", 4.6),
    ("Q3_K_M", 3.95),
    ("Q2_K", 3.2),
];

/// Why no plan was found.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanFailure {
    /// The model or the requested settings cannot be planned.
    Error(PlanError),
    /// The plan does not fit.
    Refused(Box<PlanRefusal>),
}

impl From<PlanError> for PlanFailure {
    fn from(error: PlanError) -> Self {
        Self::Error(error)
    }
}

/// A plan that does not fit, and what would.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanRefusal {
    /// The plan that does not fit.
    pub plan: Plan,
    /// Changes that each make it fit. Empty: this machine has too little memory for the weights.
    pub(crate) advice: Vec<Advice>,
}

/// A change that makes a plan fit.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Advice {
    /// A shorter context, in tokens.
    Context(u64),
    /// Fewer slots.
    Slots(u64),
    /// Another storage type of keys and values.
    KvKind(String),
    /// Fewer slots and a shorter context.
    SlotsAndContext(u64, u64),
    /// The same model in a smaller quantization, by name; an estimate.
    Quantisation(String),
}

impl std::fmt::Display for Advice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Context(tokens) => write!(f, "--context-tokens {tokens}"),
            Self::Slots(slots) => write!(f, "--slots {slots}"),
            Self::KvKind(kind) => write!(f, "--kv-type {kind}"),
            Self::SlotsAndContext(slots, tokens) => {
                write!(f, "--slots {slots} --context-tokens {tokens}")
            }
            Self::Quantisation(name) => {
                write!(f, "the same model as {name} or smaller (an estimate)")
            }
        }
    }
}

/// Plans a model on a machine with the requested settings. A context that is not requested is what
/// the model was trained for, as long as a quarter of the memory stays free.
pub fn plan(
    header: &Header,
    facts: &MachineFacts,
    requested: &RequestedSettings,
) -> Result<Plan, PlanFailure> {
    let case = Case::new(header, facts, requested)?;
    case.check()?;
    let (slots, context) = case.choose()?;
    let plan = case.plan(slots, context)?;
    if plan.fits {
        return Ok(plan);
    }
    Err(PlanFailure::Refused(Box::new(PlanRefusal { advice: case.advice(slots, context)?, plan })))
}

impl std::fmt::Display for PlanRefusal {
    /// Writes a single line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plan = &self.plan;
        write!(
            f,
            "{} {} of {} tokens need {}, {} more than there is ({}, of which {} are kept free)",
            plan.slots,
            if plan.slots == 1 { "slot" } else { "slots" },
            plan.context_tokens,
            units::bytes(plan.needed_bytes),
            units::bytes(plan.missing_bytes),
            units::bytes(plan.available_bytes),
            units::bytes(plan.reserve_bytes),
        )?;
        let advice: Vec<String> = self.advice.iter().map(Advice::to_string).collect();
        match advice.is_empty() {
            true => write!(f, "; nothing smaller would fit"),
            false => write!(f, "; would fit: {}", advice.join(", or ")),
        }
    }
}

impl Case<'_> {
    fn trained(&self) -> u64 {
        match self.layout.trained_tokens {
            0 => TRAINED_DEFAULT,
            tokens => tokens.max(CONTEXT_MIN),
        }
    }

    fn check(&self) -> Result<(), PlanError> {
        let wrong = |why: String| Err(PlanError::Settings(why));
        if self.requested.slots.is_some_and(|n| n == 0 || n > SLOTS_MAX) {
            return wrong(format!("slots must be 1 to {SLOTS_MAX}"));
        }
        let trained = self.trained();
        let context = self.requested.context_tokens;
        if context.is_some_and(|n| n < CONTEXT_MIN || n > trained) {
            return wrong(format!(
                "context tokens must be {CONTEXT_MIN} to {trained} for this model"
            ));
        }
        let least = context.unwrap_or(CONTEXT_MIN);
        if self.requested.kv_cells.is_some_and(|n| n < least || n > super::CELLS_MAX) {
            let most = super::CELLS_MAX;
            return wrong(format!("KV cells must be {least} (one request) to {most}"));
        }
        if !(1..=65_536).contains(&self.requested.batch_rows) {
            return wrong("batch rows must be 1 to 65536".into());
        }
        Ok(())
    }

    /// Chooses slots and context: those requested, or the best that fit; the smallest if none do.
    fn choose(&self) -> Result<(u64, u64), PlanError> {
        let (slots, context) = (self.requested.slots, self.requested.context_tokens);
        match (slots, context) {
            (Some(slots), Some(context)) => Ok((slots, context)),
            (Some(slots), None) => Ok((slots, self.longest(slots)?.unwrap_or(CONTEXT_MIN))),
            (None, Some(context)) => {
                let fitting = self.most_slots(SLOTS_DEFAULT, context)?;
                Ok((fitting.unwrap_or(1), context))
            }
            (None, None) => self.best(),
        }
    }

    /// The default number of slots with a good context. Prefers fewer slots to a short context, and
    /// adds slots only after the longest context.
    fn best(&self) -> Result<(u64, u64), PlanError> {
        let most = self.context_most();
        let mut best = (1, CONTEXT_MIN);
        for slots in (1..=SLOTS_DEFAULT).rev() {
            if let Some(context) = self.longest(slots)? {
                if context > best.1 {
                    best = (slots, context);
                }
                if context >= most.min(CONTEXT_GOOD) {
                    break;
                }
            }
        }
        // Embeddings are computed in batches, whatever the slots.
        while !self.is_embedding_model()
            && best.1 == most
            && best.0 < SLOTS_CHOSEN_MAX
            && self.fits_beside(best.0 * 2, best.1, self.spare())?
        {
            best.0 *= 2;
        }
        Ok(best)
    }

    fn context_most(&self) -> u64 {
        self.trained().min(self.requested.kv_cells.unwrap_or(u64::MAX))
    }

    /// The context with this number of slots if none was requested: the longest that leaves memory
    /// to spare, or else the longest up to a good one that fits at all.
    fn longest(&self, slots: u64) -> Result<Option<u64>, PlanError> {
        let most = self.context_most();
        let good = most.min(CONTEXT_GOOD);
        match self.longest_up_to(slots, most, self.spare())? {
            Some(context) if context == most => return Ok(Some(most)),
            Some(context) if context / CONTEXT_STEP * CONTEXT_STEP >= good => {
                return Ok(Some(context / CONTEXT_STEP * CONTEXT_STEP));
            }
            _ => {}
        }
        self.longest_up_to(slots, good, self.reserve())
    }

    fn spare(&self) -> u64 {
        self.reserve().max(self.facts.available_bytes / SPARE_SHARE)
    }

    /// The longest context up to `most` with which `free` bytes stay free.
    fn longest_up_to(&self, slots: u64, most: u64, free: u64) -> Result<Option<u64>, PlanError> {
        if self.fits_beside(slots, most, free)? {
            return Ok(Some(most));
        }
        // In steps of whole cell multiples; anything finer saves nothing.
        let (mut fits, mut fails) = (0, most.div_ceil(CELLS_MULTIPLE));
        while fits + 1 < fails {
            let middle = fits + (fails - fits) / 2;
            match self.fits_beside(slots, middle * CELLS_MULTIPLE, free)? {
                true => fits = middle,
                false => fails = middle,
            }
        }
        if fits > 0 {
            return Ok(Some(fits * CELLS_MULTIPLE));
        }
        Ok(self.fits_beside(slots, CONTEXT_MIN, free)?.then_some(CONTEXT_MIN))
    }

    fn most_slots(&self, from: u64, context: u64) -> Result<Option<u64>, PlanError> {
        for slots in (1..=from).rev() {
            if self.fits(slots, context)? {
                return Ok(Some(slots));
            }
        }
        Ok(None)
    }

    /// Changes that make it fit, smallest first.
    fn advice(&self, slots: u64, context: u64) -> Result<Vec<Advice>, PlanError> {
        let mut advice = Vec::new();
        // A requested pool size does not shrink with slots and context.
        let free = Self {
            requested: RequestedSettings { kv_cells: None, ..self.requested.clone() },
            ..self.copy()
        };
        for kind in ["q8_0", "q4_0"] {
            let smaller = Self { requested: quantised(&self.requested, kind), ..self.copy() };
            let smaller_cells = kind != self.requested.key_kind && self.requested.flash_attention;
            if smaller_cells && smaller.fits(slots, context) == Ok(true) {
                advice.push(Advice::KvKind(kind.into()));
                break;
            }
        }
        if let Some(fewer) = free.most_slots(slots.saturating_sub(1), context)? {
            advice.push(Advice::Slots(fewer));
        }
        let shorter = free.longest_up_to(slots, context, self.reserve())?;
        if let Some(shorter) = shorter.filter(|n| *n < context) {
            advice.push(Advice::Context(shorter));
        }
        if advice.is_empty()
            && slots > 1
            && let Some(shorter) = free.longest_up_to(1, context, self.reserve())?
        {
            advice.push(Advice::SlotsAndContext(1, shorter));
        }
        if let Some(name) = self.smaller_quantisation(slots, context)? {
            advice.push(Advice::Quantisation(name));
        }
        Ok(advice)
    }

    fn copy(&self) -> Self {
        Self {
            header: self.header,
            layout: self.layout.clone(),
            weights: self.weights,
            facts: self.facts,
            requested: self.requested.clone(),
        }
    }

    /// The largest common quantization with which the same settings would fit.
    fn smaller_quantisation(&self, slots: u64, context: u64) -> Result<Option<String>, PlanError> {
        let parts = self.parts(slots, context)?;
        let now = parts.weights_mapped.max(parts.weights_resident);
        let now = now.saturating_add(parts.weights_repacked);
        let rest = parts.sum().saturating_sub(now).saturating_add(self.reserve());
        let room = self.facts.available_bytes.saturating_sub(rest) as f64;
        let bytes = |bits: f64| self.weights.parameters as f64 * bits / 8.0;
        let fitting = |(_, bits): &&(&str, f64)| bytes(*bits) <= room && bytes(*bits) < now as f64;
        Ok(QUANTISATIONS.iter().find(fitting).map(|(name, _)| (*name).to_string()))
    }
}

fn quantised(requested: &RequestedSettings, kind: &str) -> RequestedSettings {
    RequestedSettings { key_kind: kind.into(), value_kind: kind.into(), ..requested.clone() }
}

#[cfg(test)]
mod tests;
