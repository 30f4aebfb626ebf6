//! The measurements of `bench`: raw llama.cpp and our scheduler alternate, in a separate process
//! that reports its progress.

use std::path::Path;
use std::time::Duration;

use inference_core::llama::{ContextOptions, LlamaModel, Weights, draft_model, mtp_head};
use inference_core::model_file::memory_plan::LoadMode;
use inference_core::tools::bench::raw::{raw_decode, raw_prefill};
use inference_core::tools::bench::{Bench, median, percentile, prompt};
use inference_core::types::model::Model;
use inference_core::types::request::{RequestId, Sampling};
use serde::{Deserialize, Serialize};

use super::report::Figure;
use super::speculation::{self, AGREED, CLIENTS, TEXTS, Text};
use super::{Setup, Show};
use crate::engine::measuring::ChildArgs;
use crate::engine::measuring::{
    MeasuringChild, command, load_all_confined, prepare_child, write_answer,
};
use crate::types::exit::Failed;

const BATCHES: [u32; 5] = [1, 2, 4, 8, 16];
const SLOTS: u32 = 16;
/// Memory for saved prefixes.
const SAVED_PREFIX_BYTES: u64 = 512 << 20;
fn sampled() -> Sampling {
    Sampling { temperature: 1.0, ..Sampling::GREEDY }
}
/// Approximate number of tokens in 1,000 English words (long prompt) and in 400 (system prompt).
const LONG_TOKENS: u32 = 1300;
const SYSTEM_TOKENS: u32 = 520;

/// Prompt lengths for which prefill speed and time to first token are measured.
const PROMPTS: [u32; 2] = [128, 512];

/// Decode measurements per round: a second or two of decoding varies by more than the difference to
/// measure.
const DECODE_TURNS: u32 = 2;

/// The longest step runs some thousand tokens on a slow machine, or loads from a slow disk.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// A message from the child.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    Begins(String),
    Stepped,
    Figure(Figure),
    Done,
}

/// `speed-trials`: measures a model.
pub(crate) fn child(args: &ChildArgs) -> Result<(), String> {
    prepare_child()?;
    let setup: Setup =
        serde_json::from_str(&args.options).map_err(|e| format!("--options: {e}"))?;
    let draft = args.draft_model.as_deref().map(|path| (path, false));
    let models: Vec<_> = [(&*args.model, setup.mtp_head)].into_iter().chain(draft).collect();
    let mut loaded = load_all_confined(&models, setup.sandbox, setup.kernel, LoadMode::Mmap)?;
    let draft = loaded.split_off(1).pop();
    let weights = loaded.remove(0);
    Runner { weights, draft, threads: setup.threads, rounds: setup.rounds }.run()?;
    write_answer(&Line::Done)
}

/// The parent's side: shows the child's measurements.
pub(super) fn measure(
    (model, draft): (&Path, Option<&Path>),
    setup: Setup,
    show: &Show,
) -> Result<(), Failed> {
    let mut command = command("speed-trials", model, &setup)?;
    command.args(draft);
    let mut child = MeasuringChild::start(command)?;
    loop {
        let line = child.receive(TIMEOUT);
        match line.map_err(|e| Failed::data(format_args!("measuring speeds: {e}")))? {
            Line::Begins(what) => show.begin(&what),
            Line::Stepped => show.step(),
            Line::Figure(figure) => show.add(figure)?,
            Line::Done => return Ok(()),
        }
    }
}

pub(super) fn steps(rounds: u32, has_drafts: bool) -> u64 {
    let decode = BATCHES.len() * DECODE_TURNS as usize;
    let texts = TEXTS.len() + if has_drafts { AGREED.len() } else { 0 };
    let speculation = texts * CLIENTS.len();
    u64::from(rounds) * (decode + PROMPTS.len() + speculation + 1) as u64 + 3
}

/// Measures a loaded model.
struct Runner {
    weights: Weights,
    draft: Option<Weights>,
    threads: u32,
    rounds: u32,
}

type Outcome = Result<(), String>;

impl Runner {
    fn run(&self) -> Outcome {
        self.decode()?;
        self.prefill()?;
        self.speculation()?;
        self.drafts()?;
        self.readers_beside_long_prompts()?;
        self.shared_prefix()?;
        self.second_turn()
    }

    fn report(&self, name: &str, value: f64, aim: Option<&'static str>, how: &str) -> Outcome {
        write_answer(&Line::Figure(Figure::new(name, value, aim, how)))
    }

    /// If the parent is gone, the kernel ends this process.
    fn begin(&self, what: &str) {
        let _ = write_answer(&Line::Begins(what.into()));
    }

    fn step(&self) {
        let _ = write_answer(&Line::Stepped);
    }

    fn options(&self, context_tokens: u32, prefix_cache: bool) -> ContextOptions {
        let cells = SLOTS * context_tokens.min(1024);
        ContextOptions {
            slots: SLOTS,
            context_tokens,
            kv_cells: cells.max(2 * context_tokens),
            prefix_cache,
            saved_prefix_bytes: SAVED_PREFIX_BYTES,
            threads: self.threads,
            ..ContextOptions::default()
        }
    }

    fn model(&self, context_tokens: u32, prefix_cache: bool) -> Result<LlamaModel, String> {
        let options = self.options(context_tokens, prefix_cache);
        LlamaModel::new(self.weights.clone(), options).map_err(|e| e.to_string())
    }

    /// Measures raw batches and the same work through the scheduler, alternating.
    fn decode(&self) -> Outcome {
        for batch in BATCHES {
            let (mut raw, mut served, mut overhead) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..DECODE_TURNS * self.rounds {
                self.begin(&format!("decode, {batch} in parallel"));
                let mut model = self.model(256, true)?;
                raw.push(raw_decode(&mut model, batch, 64, 48).map_err(|e| e.0)?);
                drop(model);
                served.push(served_decode(self.model(256, true)?, batch, &Sampling::GREEDY).0);
                if batch == SLOTS {
                    overhead.push(served_decode(self.model(256, true)?, batch, &sampled()).1);
                }
                self.step();
            }
            let (raw, served) = (median(raw), median(served));
            let name = format!("decode_batch_{batch}");
            self.report(&format!("{name}_raw"), raw, None, "tokens/s of a llama_decode loop")?;
            self.report(&format!("{name}_served"), served, None, "tokens/s through the scheduler")?;
            self.report(&name, served / raw, Some(">= 0.97"), "served / raw, medians")?;
            if batch == SLOTS {
                let how = "share of a step outside of llama.cpp, default sampling";
                self.report("step_overhead", median(overhead), Some("<= 0.03"), how)?;
            }
        }
        Ok(())
    }

    /// Measures prompts of one client: raw, and from the request to the first token.
    fn prefill(&self) -> Outcome {
        for tokens in PROMPTS {
            let (mut raw, mut first) = (Vec::new(), Vec::new());
            for round in 0..self.rounds {
                self.begin(&format!("prefill, {tokens} tokens"));
                let mut model = self.model(1024, true)?;
                raw.push(raw_prefill(&mut model, tokens).map_err(|e| e.0)?);
                let mut bench = Bench::new(model);
                let id = bench.submit(prompt(20 + round, tokens), 2, Sampling::GREEDY);
                bench.finish(&[id]);
                first.push(bench.timing(id).first_token());
                self.step();
            }
            let (raw, first) = (median(raw), median(first));
            let served = f64::from(tokens) / first;
            let name = format!("prefill_{tokens}");
            self.report(&format!("{name}_raw"), raw, None, "prompt tokens/s of llama_decode")?;
            let how = "prompt tokens/s through the scheduler, first token included";
            self.report(&format!("{name}_served"), served, None, how)?;
            let how = format!("ms to the first token of {tokens}, one client");
            self.report(&format!("first_token_{tokens}"), first * 1000.0, None, &how)?;
        }
        Ok(())
    }

    /// Measures decoding with and without speculation, alternating.
    fn speculation(&self) -> Outcome {
        for (copied, text) in TEXTS {
            for clients in CLIENTS {
                let (mut with, mut without) = (Vec::new(), Vec::new());
                for _ in 0..self.rounds {
                    self.begin(&format!("speculation, {clients} in parallel"));
                    let text = || Text { copied, draft: None };
                    with.push(speculation::speed(self.model(512, true)?, clients, text(), true));
                    let model = self.model(512, true)?;
                    without.push(speculation::speed(model, clients, text(), false));
                    self.step();
                }
                let (with, without) = (median(with), median(without));
                let aim = if copied == 0 { Some(">= 0.98") } else { None };
                let how = format!("tokens/s with / without; {copied} of 1,000 tokens copied");
                self.report(&format!("speculation_{text}_{clients}"), with / without, aim, &how)?;
            }
        }
        Ok(())
    }

    /// What drafts for a model, and its name: a draft model, or the model's MTP head.
    fn drafter(&self, model: &LlamaModel) -> Result<Option<(&'static str, LlamaModel)>, String> {
        let options = self.options(512, true);
        let drafter = match &self.draft {
            Some(weights) => draft_model(model, weights.clone(), options).map(Some),
            None => mtp_head(model, options),
        };
        let name = if self.draft.is_some() { "draft_model" } else { "mtp_head" };
        Ok(drafter.map_err(|e| e.to_string())?.map(|drafter| (name, drafter)))
    }

    /// Measures decoding of new text with and without what drafts it, alternating.
    fn drafts(&self) -> Outcome {
        let Some((name, _)) = self.drafter(&self.model(512, true)?)? else { return Ok(()) };
        for agreed in AGREED {
            for clients in CLIENTS {
                let (mut with, mut without) = (Vec::new(), Vec::new());
                for _ in 0..self.rounds {
                    self.begin(&format!("{}, {clients} in parallel", name.replace('_', " ")));
                    let model = self.model(512, true)?;
                    let draft = self.drafter(&model)?.map(|(_, drafter)| (drafter, agreed));
                    with.push(speculation::speed(model, clients, Text { copied: 0, draft }, true));
                    let model = self.model(512, true)?;
                    let text = Text { copied: 0, draft: None };
                    without.push(speculation::speed(model, clients, text, false));
                    self.step();
                }
                let (with, without) = (median(with), median(without));
                let aim = match agreed {
                    0 => Some(">= 0.98"),
                    800.. => Some(">= 1.3"),
                    _ => None,
                };
                let how = format!("tokens/s with / without; {agreed} of 1,000 tokens are right");
                self.report(&format!("{name}_{agreed}_{clients}"), with / without, aim, &how)?;
            }
        }
        Ok(())
    }

    fn readers_beside_long_prompts(&self) -> Outcome {
        self.begin("long prompts beside readers");
        let mut bench = Bench::new(self.model(4096, true)?);
        let alone = bench.submit(prompt(50, LONG_TOKENS), 1, Sampling::GREEDY);
        bench.finish(&[alone]);
        let alone = bench.timing(alone).first_token();
        let readers: Vec<RequestId> =
            (0..4).map(|n| bench.submit(prompt(n, 32), 4000, Sampling::GREEDY)).collect();
        let shortest = |bench: &Bench<_>| {
            readers.iter().map(|id| bench.timing(*id).tokens.len()).min().unwrap_or_default()
        };
        while shortest(&bench) < 65 {
            bench.step();
        }
        let (calm_speed, mut calm_gaps) = reading(&bench, &readers, 1);
        let calm_gap = percentile(&mut calm_gaps, 0.5);
        let from = shortest(&bench);
        let mut beside = Vec::new();
        for number in 0..2 {
            let long = bench.submit(prompt(60 + number, LONG_TOKENS), 8, Sampling::GREEDY);
            bench.finish(&[long]);
            beside.push(bench.timing(long).first_token());
        }
        let (speed, mut gaps) = reading(&bench, &readers, from);
        self.report("readers_alone", calm_speed, None, "tokens/s of four readers")?;
        self.report(
            "readers_speed_kept",
            speed / calm_speed,
            Some(">= 0.45"),
            "beside long prompts",
        )?;
        let gap = percentile(&mut gaps, 0.99) / calm_gap;
        self.report(
            "readers_gap",
            gap,
            Some("<= 4"),
            "p99 gap beside long prompts / p50 gap alone",
        )?;
        self.report(
            "long_prompt_alone",
            alone,
            None,
            "seconds to the first token of 1,300 tokens",
        )?;
        let slower = median(beside) / alone;
        self.report("long_prompt_time", slower, Some("<= 2.2"), "beside four readers / alone")
    }

    fn shared_prefix(&self) -> Outcome {
        self.step();
        self.begin("a shared prefix");
        let mut first_tokens = Vec::new();
        for prefix_cache in [true, false] {
            let mut bench = Bench::new(self.model(1024, prefix_cache)?);
            let ask = |bench: &mut Bench<_>, n| {
                let mut tokens = prompt(70, SYSTEM_TOKENS);
                tokens.extend(prompt(n, 20));
                bench.submit(tokens, 8, Sampling::GREEDY)
            };
            let ids: Vec<RequestId> = (0..8).map(|n| ask(&mut bench, n)).collect();
            bench.finish(&ids);
            first_tokens
                .push(median(ids.iter().map(|id| bench.timing(*id).first_token()).collect()));
            if prefix_cache {
                let computed = bench.stats().prompt_tokens as f64;
                let ratio = computed / f64::from(SYSTEM_TOKENS + 20);
                let how = "prompt tokens computed for eight clients / of one prompt";
                self.report("shared_prefix_computed", ratio, Some("<= 1.3"), how)?;
            }
        }
        let ratio = first_tokens[0] / first_tokens[1];
        self.report("shared_prefix_first_token", ratio, Some("<= 0.25"), "median, cache on / off")
    }

    fn second_turn(&self) -> Outcome {
        self.step();
        let mut ratios = Vec::new();
        for round in 0..self.rounds {
            self.begin("a second turn");
            let mut bench = Bench::new(self.model(1024, true)?);
            let chat = prompt(80 + round, SYSTEM_TOKENS);
            let first = bench.submit(chat.clone(), 8, Sampling::GREEDY);
            bench.finish(&[first]);
            let turn = prompt(90 + round, 40);
            let alone = bench.submit(turn.clone(), 2, Sampling::GREEDY);
            bench.finish(&[alone]);
            let second = bench.submit([chat, turn].concat(), 2, Sampling::GREEDY);
            bench.finish(&[second]);
            ratios.push(bench.timing(second).first_token() / bench.timing(alone).first_token());
            self.step();
        }
        let how = "first token of a second turn / of a prompt of that turn only";
        self.report("second_turn", median(ratios), Some("<= 1.2"), how)
    }
}

/// Tokens per second while all `batch` clients decode, and the fraction of that time spent outside
/// decode.
fn served_decode<M: Model>(model: M, batch: u32, sampling: &Sampling) -> (f64, f64) {
    let mut bench = Bench::new(model);
    let ids: Vec<RequestId> =
        (0..batch).map(|n| bench.submit(prompt(n, 64), 64, sampling.clone())).collect();
    let all_have = |bench: &Bench<M>, tokens: usize| {
        ids.iter().all(|id| bench.timing(*id).tokens.len() >= tokens)
    };
    while !all_have(&bench, 2) {
        bench.step();
    }
    let (begun, begun_decoding) = bench.seconds();
    let read =
        |bench: &Bench<M>| ids.iter().map(|id| bench.timing(*id).tokens.len()).sum::<usize>();
    let before = read(&bench);
    for _ in 0..48 {
        bench.step();
    }
    let (ended, ended_decoding) = bench.seconds();
    let spent = ended - begun;
    let speed = (read(&bench) - before) as f64 / spent;
    (speed, 1.0 - (ended_decoding - begun_decoding) / spent)
}

/// Decode speed and token gaps of the requests from their token number `from` on.
fn reading<M: Model>(bench: &Bench<M>, readers: &[RequestId], from: usize) -> (f64, Vec<f64>) {
    let (mut speed, mut gaps) = (0.0, Vec::new());
    for id in readers {
        let all = bench.timing(*id).gaps();
        let part = &all[from.min(all.len())..];
        speed += part.len() as f64 / part.iter().sum::<f64>();
        gaps.extend(part);
    }
    (speed, gaps)
}
