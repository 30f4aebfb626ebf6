//! The two sides of a trial. The child loads the weights once and then measures candidates, each in
//! its own context; the parent asks, and starts another child when one dies.

use std::io::BufRead;
use std::process::Command;
use std::time::{Duration, Instant};

use inference_core::hardware::Kernel;
use inference_core::llama::{ContextOptions, KvType, LlamaModel, Weights};
use inference_core::model_file::memory_plan::LoadMode;
use inference_core::tools::bench::raw::{
    Effort, TRIAL_SLOTS, measure, measure_curve, time_prefill,
};
use inference_core::tools::tune::{CURVE, Candidate, MeasuredSpeeds, Trials};
use inference_core::types::model::Model;
use serde::{Deserialize, Serialize};

use crate::engine::affinity::stay_on;
use crate::engine::measuring::ChildArgs;
use crate::engine::measuring::{
    ChildError, MeasuringChild, load_confined, prepare_child, write_answer,
};
use crate::engine::sandbox::SandboxMode;

/// Loading may have to read the whole file from a slow disk.
const LOAD_TIMEOUT: Duration = Duration::from_secs(600);
/// A trial that takes longer than this hangs.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(120);
/// Tokens of the prompt that measures prefill speed.
const PROBE_TOKENS: u32 = 64;

/// What all trials have in common.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub kernel: Kernel,
    /// Storage type of keys and values.
    pub kv_type: KvType,
    /// How the weights are loaded.
    pub load: LoadMode,
    /// CPUs to compute on.
    pub cpus: Option<Vec<u32>>,
    /// Whether the child confines itself.
    pub sandbox: SandboxMode,
}

/// Questions to a child.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Question {
    /// How much fits into a trial of this many seconds?
    Effort(Candidate, f64),
    /// How fast is this candidate?
    Measure(Candidate, Effort),
    /// How fast are batches of growing size?
    Curve(Candidate, Effort),
}

/// Answers of a child.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Answer {
    Ready,
    Effort(Effort),
    Measured(MeasuredSpeeds),
    Curve(Vec<(u32, f64)>),
    /// It cannot be done; the child stays alive.
    Refused(String),
}

/// `tune-trials`: answers questions until the input ends.
pub(crate) fn child(args: &ChildArgs) -> Result<(), String> {
    prepare_child()?;
    let setup: Setup =
        serde_json::from_str(&args.options).map_err(|e| format!("--options: {e}"))?;
    if let Some(cpus) = &setup.cpus {
        stay_on(cpus).map_err(|e| e.to_string())?;
    }
    let loaded = load_confined(&args.model, setup.sandbox, setup.kernel, setup.load);
    let weights = match loaded {
        Ok(weights) => weights,
        Err(why) => return write_answer(&Answer::Refused(why)),
    };
    write_answer(&Answer::Ready)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| e.to_string())?;
        let question = serde_json::from_str(&line).map_err(|e| format!("{e}: {line}"))?;
        let answer = respond(&weights, &setup, question);
        write_answer(&answer.unwrap_or_else(Answer::Refused))?;
    }
    Ok(())
}

fn respond(weights: &Weights, setup: &Setup, question: Question) -> Result<Answer, String> {
    match question {
        Question::Effort(candidate, seconds) => {
            let most = Effort::within(f64::MAX, 1.0);
            let mut model = context(weights, setup, candidate, most)?;
            let spent = time_prefill(&mut model, 0, PROBE_TOKENS).map_err(|e| e.0)?;
            model.clear(0);
            Ok(Answer::Effort(Effort::within(seconds, f64::from(PROBE_TOKENS) / spent)))
        }
        Question::Measure(candidate, effort) => {
            let mut model = context(weights, setup, candidate, effort)?;
            Ok(Answer::Measured(measure(&mut model, effort).map_err(|e| e.0)?))
        }
        Question::Curve(candidate, effort) => {
            let mut model = context(weights, setup, candidate, effort)?;
            Ok(Answer::Curve(measure_curve(&mut model, &CURVE).map_err(|e| e.0)?))
        }
    }
}

fn context(
    weights: &Weights,
    setup: &Setup,
    candidate: Candidate,
    effort: Effort,
) -> Result<LlamaModel, String> {
    let options = ContextOptions {
        slots: TRIAL_SLOTS,
        context_tokens: effort.context_tokens(),
        kv_cells: effort.kv_cells(),
        prefix_cache: false,
        saved_prefix_bytes: 0,
        whole_windows: false,
        threads: candidate.threads,
        kv_type: setup.kv_type,
        flash_attention: candidate.flash_attention,
        batch_rows: candidate.batch_rows,
        poll: candidate.poll,
    };
    LlamaModel::new(weights.clone(), options).map_err(|e| e.to_string())
}

/// Why a question has no answer.
#[derive(Debug)]
pub(crate) enum TrialError {
    /// The child failed.
    Child(ChildError),
    /// The child is alive, and cannot do it.
    Refused(String),
    /// The answer is one to another question.
    Unexpected,
}

impl std::fmt::Display for TrialError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Child(e) => write!(f, "{e}"),
            Self::Refused(why) => f.write_str(why),
            Self::Unexpected => write!(f, "unexpected answer"),
        }
    }
}

impl From<ChildError> for TrialError {
    fn from(error: ChildError) -> Self {
        Self::Child(error)
    }
}

/// The parent's side. `command` starts a child.
pub(crate) struct Children<F> {
    command: F,
    child: Option<MeasuringChild>,
    effort: Effort,
    begun: Instant,
    /// Called before each trial.
    progress: Box<dyn FnMut(&Candidate)>,
}

impl<F: FnMut() -> Result<Command, ChildError>> Children<F> {
    /// Loads the model, and determines how much a trial of this many seconds can do. Fails if the
    /// model cannot be measured at all.
    pub(crate) fn start(
        command: F,
        base: Candidate,
        seconds: f64,
        progress: Box<dyn FnMut(&Candidate)>,
    ) -> Result<Self, TrialError> {
        let effort = Effort::within(0.0, 0.0);
        let begun = Instant::now();
        let mut children = Self { command, child: None, effort, begun, progress };
        children.child = Some(children.load()?);
        // If not even that runs, the search starts with small trials.
        if let Ok(Answer::Effort(effort)) = children.request(Question::Effort(base, seconds)) {
            children.effort = effort;
        }
        children.begun = Instant::now();
        Ok(children)
    }

    /// How much a trial computes.
    pub(crate) fn effort(&self) -> Effort {
        self.effort
    }

    fn load(&mut self) -> Result<MeasuringChild, TrialError> {
        let mut child = MeasuringChild::start((self.command)()?)?;
        match child.receive(LOAD_TIMEOUT)? {
            Answer::Ready => Ok(child),
            Answer::Refused(why) => Err(TrialError::Refused(why)),
            _ => Err(TrialError::Unexpected),
        }
    }

    fn request(&mut self, question: Question) -> Result<Answer, TrialError> {
        let mut child = match self.child.take() {
            Some(child) => child,
            None => self.load()?,
        };
        // A child that gave no answer is not asked again.
        let answer = child.request(&question, TRIAL_TIMEOUT)?;
        self.child = Some(child);
        Ok(answer)
    }

    /// Decode speeds of batches of growing size; empty if they cannot be measured.
    pub(crate) fn curve(&mut self, candidate: Candidate) -> Vec<(u32, f64)> {
        (self.progress)(&candidate);
        match self.request(Question::Curve(candidate, self.effort)) {
            Ok(Answer::Curve(points)) => points,
            other => {
                tracing::warn!(result = ?other, "batch size curve not measured");
                Vec::new()
            }
        }
    }
}

impl<F: FnMut() -> Result<Command, ChildError>> Trials for Children<F> {
    fn run(&mut self, candidate: &Candidate) -> Option<MeasuredSpeeds> {
        (self.progress)(candidate);
        match self.request(Question::Measure(*candidate, self.effort)) {
            Ok(Answer::Measured(measured)) => Some(measured),
            other => {
                tracing::warn!(?candidate, result = ?other, "tuning candidate rejected");
                None
            }
        }
    }

    fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inference_core::llama::FlashAttention;
    use inference_core::tools::tune::{Space, search};

    /// Imitates a child, and dies on any candidate whose threads do not sleep.
    const SCRIPT: &str = r#"
        echo '"Ready"'
        while read line; do
            case "$line" in
                *Effort*) echo '{"Effort":{"long_tokens":128}}' ;;
                *'"poll":0'*) kill -ILL $$ ;;
                *'"off"'*) echo '{"Refused":"no such kernel"}' ;;
                *) echo '{"Measured":{"prefill":9.0,"decode_one":1.0,"decode_many":2.0}}' ;;
            esac
        done"#;

    #[test]
    fn a_candidate_that_kills_its_child_is_rejected_and_nothing_is_lost() {
        let base = Candidate {
            threads: 2,
            flash_attention: FlashAttention::Auto,
            batch_rows: 512,
            poll: 50,
        };
        let command = || {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", SCRIPT]);
            Ok(command)
        };
        let mut children = Children::start(command, base, 1.0, Box::new(|_| {})).unwrap();
        assert_eq!(children.effort(), Effort { long_tokens: 128 });
        let space = Space {
            base,
            threads: vec![1],
            flash_attention: vec![FlashAttention::Off],
            batch_rows: Vec::new(),
            poll: vec![0, 100],
        };
        let found = search(&space, &mut children, Duration::from_secs(60));
        assert_eq!((found.best, found.trials.len()), (Some(base), 5));
        let ran: Vec<bool> = found.trials.iter().map(|t| t.measured.is_some()).collect();
        assert_eq!(ran, [true, false, true, false, true]);
    }

    #[test]
    fn a_model_that_cannot_be_loaded_is_an_error() {
        let command = || {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", r#"echo '{"Refused":"no model"}'"#]);
            Ok(command)
        };
        let base = Candidate {
            threads: 1,
            flash_attention: FlashAttention::Auto,
            batch_rows: 512,
            poll: 50,
        };
        let error = Children::start(command, base, 1.0, Box::new(|_| {})).err();
        assert!(matches!(error, Some(TrialError::Refused(why)) if why == "no model"));
    }
}
