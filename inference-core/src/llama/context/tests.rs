//! Tests real contexts on models with random weights. Neither parallel sequences nor earlier
//! contents of the KV cells change a sequence's logits, and a stopped batch leaves no trace.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::*;
use crate::hardware::Kernel;
use crate::llama::{Loading, register};
use crate::model_file::gguf;
use crate::model_file::memory_plan::LoadMode;
use crate::model_file::memory_plan::weights::repacked_bytes;
use crate::scheduler::engine_thread::StepEngine;
use crate::scheduler::sequence::{CancelFlag, Job};
use crate::scheduler::step::Engine;
use crate::tools::synth::{Chain, QUANTS, SHAPES, Synth};
use crate::types::request::{EngineStats, Event, Options, Sampling, Tenant, TextChunk};

/// Tokens of a prompt: more than two sliding windows.
const TOKENS: u32 = 300;
const CONTEXT: u32 = 512;
const NEVER: Stop<'static> = &|| false;
/// Models with shared cells, with sliding windows, with recurrent states besides attention, and
/// with one latent for keys and values.
const ALL: [&str; 5] = ["tiny", "tiny-window", "tiny-hybrid", "tiny-delta", "tiny-mla"];

/// Writes a model with random weights, or a chain, to a new file.
fn write(shape: &str, quant: &str, chain: Option<Chain>) -> PathBuf {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("flotilla-{shape}-{}-{number}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    let shape = SHAPES.iter().find(|known| known.name == shape).unwrap();
    let quant = QUANTS.iter().find(|known| known.name == quant).unwrap();
    let mut synth = Synth::new(shape, quant).unwrap();
    if let Some(chain) = chain {
        synth = synth.with_chain(shape, quant, chain).unwrap();
    }
    synth.write(&mut BufWriter::new(File::create(&path).unwrap()), |_| {}).unwrap();
    path
}

/// A model with random weights, whose file is already deleted.
pub(crate) fn weights(shape: &str) -> Weights {
    load(shape, None, LoadMode::Mmap.into())
}

/// The same, loaded in another way.
pub(crate) fn load(shape: &str, chain: Option<Chain>, loading: Loading) -> Weights {
    register(Kernel::Baseline);
    let path = write(shape, "f16", chain);
    let weights = Weights::load(&[&path], loading);
    // The mapping stays valid until it is dropped.
    std::fs::remove_file(&path).unwrap();
    weights.unwrap()
}

fn model(shape: &str, slots: u32, batch_rows: u32) -> LlamaModel {
    LlamaModel::new(weights(shape), options(slots, batch_rows)).unwrap()
}

pub(crate) fn options(slots: u32, batch_rows: u32) -> ContextOptions {
    ContextOptions {
        slots,
        context_tokens: CONTEXT,
        kv_cells: slots * CONTEXT,
        batch_rows,
        ..ContextOptions::default()
    }
}

/// All prompts have the same last token: only the tokens before it distinguish them.
fn token(prompt: u32, position: u32) -> Token {
    let last = position + 1 == TOKENS;
    33 + if last { 5 } else { (prompt * 7 + position * (3 + 2 * prompt)) % 90 }
}

fn rows(seq: SeqId, prompt: u32, from: u32, count: u32) -> Vec<Row> {
    let row = |position| Row {
        seq,
        position,
        token: token(prompt, position),
        logits: position + 1 == TOKENS,
    };
    (from..TOKENS.min(from + count)).map(row).collect()
}

/// Decodes a prompt from position `from` on; returns the logits after its last token.
fn feed(model: &mut LlamaModel, seq: SeqId, prompt: u32, from: u32) -> Vec<f32> {
    let mut last = Vec::new();
    for from in (from..TOKENS).step_by(100) {
        let rows = rows(seq, prompt, from, 100);
        assert_eq!(model.decode(&rows, NEVER), Ok(Decoded::Whole));
        if from + 100 >= TOKENS {
            last = model.logits(rows.len() - 1).to_vec();
        }
    }
    last
}

/// Euclidean distance of two vectors.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt()
}

/// Logits of three prompts, each in its own context and a single batch, where no cell is reused;
/// and the distance between them.
fn alone(shape: &str) -> (Vec<Vec<f32>>, f32) {
    let each = |prompt| {
        let mut model = model(shape, 1, 512);
        let rows = rows(0, prompt, 0, TOKENS);
        assert_eq!(model.decode(&rows, NEVER), Ok(Decoded::Whole));
        model.logits(rows.len() - 1).to_vec()
    };
    let all: Vec<Vec<f32>> = (0..3).map(each).collect();
    let apart = distance(&all[0], &all[1]).min(distance(&all[1], &all[2]));
    assert!(apart > 0.0, "{shape}: prompts make a difference");
    (all, apart)
}

#[test]
fn threads_that_share_cores_wait_for_each_other_and_compute_the_same() {
    let logits = |threads: u32| {
        let options = ContextOptions { threads, ..options(1, 512) };
        let mut model = LlamaModel::new(weights("tiny"), options).unwrap();
        let mut compute = || {
            assert_eq!(model.decode(&rows(0, 0, 0, TOKENS), NEVER), Ok(Decoded::Whole));
            let logits = model.logits(TOKENS as usize - 1).to_vec();
            model.clear(0);
            logits
        };
        let first = compute();
        (0..20).for_each(|_| assert_eq!(compute(), first));
        first
    };
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    assert_eq!(logits(4 * cores.min(16)), logits(1));
}

#[test]
fn weights_that_several_threads_repack_into_memory_found_ahead_are_the_same() {
    register(Kernel::Baseline);
    for (shape, quant) in [
        ("tiny", "q4_0"),
        ("tiny-experts", "q4_0"),
        ("tiny-experts", "q4_k_m"),
        ("tiny-mla", "q4_0"),
        ("tiny-mla", "q4_k_m"),
    ] {
        let path = write(shape, quant, None);
        let file = File::open(&path).unwrap();
        let bytes = file.metadata().unwrap().len();
        let header = gguf::read_header(BufReader::new(file), bytes).unwrap();
        let exact = repacked_bytes(&header, Kernel::Baseline, false);
        assert!(exact > bytes / 4, "{shape} {quant}: {exact} of {bytes}");
        let logits = |loading: Loading| {
            let weights = Weights::load(&[&path], loading).unwrap();
            let mut model = LlamaModel::new(weights, options(1, 512)).unwrap();
            assert_eq!(model.decode(&rows(0, 0, 0, TOKENS), NEVER), Ok(Decoded::Whole));
            model.logits(TOKENS as usize - 1).to_vec()
        };
        let one = Loading::from(LoadMode::Mmap);
        let expected = logits(one);
        for (threads, repacked_bytes) in
            [(3, exact), (1, exact), (16, 0), (2, exact / 2), (2, exact * 20), (2, u64::MAX)]
        {
            for mode in [LoadMode::Mmap, LoadMode::None] {
                let huge_pages = threads == 3;
                let same =
                    logits(Loading { mode, threads, repacked_bytes, huge_pages, mtp_head: false });
                assert_eq!(same, expected, "{shape} {quant} {threads} {repacked_bytes} {mode:?}");
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn others_in_the_pool_and_a_second_beginning_never_change_the_logits() {
    for shape in ALL {
        let (expected, apart) = alone(shape);
        let check = |prompt: u32, logits: &[f32], when: &str| {
            let off = distance(logits, &expected[prompt as usize]);
            assert!(off < 0.1 * apart, "{shape}, {when}: {off} where prompts are {apart} apart");
        };
        let mut model = model(shape, 3, 128);
        for from in (0..TOKENS).step_by(40) {
            let batch: Vec<Row> = (0..3).flat_map(|p| rows(p, p, from, 40)).collect();
            assert_eq!(model.decode(&batch, NEVER), Ok(Decoded::Whole));
            if from + 40 >= TOKENS {
                for (row, _) in batch.iter().enumerate().filter(|(_, row)| row.logits) {
                    check(batch[row].seq, model.logits(row), "side by side");
                }
            }
        }
        // The sequence is preempted and continues later.
        model.clear(1);
        let again = feed(&mut model, 1, 1, 0);
        check(1, &again, "begun again");
    }
}

#[test]
fn a_saved_state_continues_in_another_sequence_beside_others() {
    for shape in ALL {
        let (expected, apart) = alone(shape);
        let check = |logits: &[f32], when: &str| {
            let off = distance(logits, &expected[0]);
            assert!(off < 0.1 * apart, "{shape}, {when}: {off} where prompts are {apart} apart");
        };
        let mut model = model(shape, 3, 128);
        model.decode(&rows(0, 0, 0, 100), NEVER).unwrap();
        model.decode(&rows(1, 1, 0, 100), NEVER).unwrap();
        model.decode(&rows(0, 0, 100, 100), NEVER).unwrap();
        assert_eq!(model.save(0, 199, usize::MAX), None, "{shape}: it has 200 tokens");
        assert_eq!(model.save(0, 200, 1000), None, "{shape}: it is larger");
        assert_eq!(model.save(2, 0, 0), None, "{shape}: nothing to save");
        let state = model.save(0, 200, usize::MAX).unwrap();
        check(&feed(&mut model, 0, 0, 200), "saved");
        model.clear(0);
        model.decode(&rows(1, 1, 100, 100), NEVER).unwrap();
        assert!(model.restore(2, &state));
        check(&feed(&mut model, 2, 0, 200), "restored");
        // And in another context of the same model.
        let mut other = self::model(shape, 1, 128);
        assert!(other.restore(0, &state));
        check(&feed(&mut other, 0, 0, 200), "restored elsewhere");
    }
}

#[test]
fn a_state_of_shared_cells_can_be_restored_between_others_and_cut() {
    let (expected, apart) = alone("tiny");
    let mut model = model("tiny", 3, 128);
    let last = feed(&mut model, 0, 0, 0);
    let state = model.save(0, TOKENS, usize::MAX).unwrap();
    // Free cells lie between those of another sequence, and some are shared.
    for from in (0..TOKENS).step_by(30) {
        model.decode(&rows(1, 1, from, 30), NEVER).unwrap();
        model.decode(&rows(2, 2, from, 30), NEVER).unwrap();
    }
    model.clear(0);
    model.share(1, 0, 100);
    model.clear(2);
    assert!(model.restore(2, &state));
    model.truncate(2, 150);
    let logits = feed(&mut model, 2, 0, 150);
    assert!(
        distance(&logits, &expected[0]) < 0.1 * apart && distance(&logits, &last) < 0.1 * apart
    );
    let others = feed(&mut model, 0, 1, 100);
    assert!(distance(&others, &expected[1]) < 0.1 * apart);
}

#[test]
fn a_state_that_is_cut_off_or_does_not_fit_leaves_the_sequence_empty() {
    for shape in ALL {
        let mut model = model(shape, 2, 128);
        let expected = feed(&mut model, 0, 0, 0);
        let near = |logits: &[f32]| distance(logits, &expected) < 0.05;
        let state = model.save(0, TOKENS, usize::MAX).unwrap();
        for length in [0, 3, 8, 12, 50, state.len() / 2, state.len() - 1] {
            assert!(!model.restore(1, &state[..length]), "{shape}: {length} bytes");
        }
        assert!(near(&feed(&mut model, 1, 0, 0)), "{shape}");
        // The context has 1024 cells; three other sequences leave no room.
        model.clear(1);
        let mut small = LlamaModel::new(
            weights(shape),
            ContextOptions {
                slots: 2,
                context_tokens: 256,
                kv_cells: 256,
                ..ContextOptions::default()
            },
        )
        .unwrap();
        assert!(!small.restore(1, &state), "{shape}: 300 tokens in 256 cells");
    }
}

#[test]
fn a_batch_that_is_stopped_in_the_middle_leaves_no_trace() {
    for shape in ALL {
        let (expected, apart) = alone(shape);
        let mut model = model(shape, 2, 128);
        for from in [0, 100] {
            model.decode(&rows(0, 0, from, 100), NEVER).unwrap();
        }
        let shares = model.shape().shares_prefixes;
        if shares {
            model.share(0, 1, 150);
        }
        let asked = AtomicU32::new(0);
        let stop = || asked.fetch_add(1, Ordering::Relaxed) >= 10;
        assert_eq!(model.decode(&rows(0, 0, 200, 100), &stop), Ok(Decoded::Stopped), "{shape}");
        assert_eq!(asked.load(Ordering::Relaxed), 11, "{shape}: it is not asked any more");
        // A recurrent state cannot be rolled back: it is lost.
        let from = if ["tiny-hybrid", "tiny-delta"].contains(&shape) { 0 } else { 200 };
        let mut all = vec![feed(&mut model, 0, 0, from)];
        if shares {
            all.push(feed(&mut model, 1, 0, 150));
        }
        for logits in all {
            let off = distance(&logits, &expected[0]);
            assert!(off < 0.1 * apart, "{shape}: {off} where prompts are {apart} apart");
        }
    }
}

#[test]
fn what_cannot_be_shared_is_not_kept() {
    for (shape, seq_ids) in [("tiny", 4 + KEPT_SEQUENCES), ("tiny-window", 4), ("tiny-hybrid", 4)] {
        assert_eq!(model(shape, 4, 128).shape().seq_ids, seq_ids, "{shape}");
    }
}

fn job(id: u64, prompt: u32, options: Options) -> Job {
    Job {
        id,
        tenant: Tenant::default(),
        tokens: (0..TOKENS).map(|position| token(prompt, position)).collect(),
        resumed_len: 0,
        options,
        visible: Vec::new(),
        grammar: None,
        in_reasoning: false,
        resolved: Default::default(),
        cancel: CancelFlag::default(),
    }
}

/// The tokens of three responses side by side, on a machine whose steps all take as long, and what
/// the engine counted. There are drafts if there is a prediction of each.
fn responses(
    shape: &str,
    temperature: f32,
    predictions: Option<&[Vec<Token>]>,
) -> (Vec<Vec<Token>>, EngineStats) {
    // A recurrent model drafts for one that is alone.
    let lengths = [100, 100, 180];
    let drafts = predictions.is_some();
    let mut engine = Engine::new(model(shape, 3, 128), 4).with_speculation(drafts);
    let mut all = vec![Vec::new(); 3];
    let mut take = |id: u64, event| match event {
        Event::Text(TextChunk { tokens, .. }) | Event::Finished { tokens, .. } => {
            all[id as usize].extend(tokens);
        }
        Event::Started { .. } => {}
        other => panic!("{other:?}"),
    };
    for seed in 0..3 {
        let sampling = Sampling { temperature, seed, ..Sampling::GREEDY };
        let max_tokens = Some(lengths[seed as usize]);
        let options = Options { max_tokens, sampling, ..Options::GREEDY };
        let mut job = job(seed, 0, options);
        if let Some(predictions) = predictions {
            job.resolved.prediction = predictions[seed as usize][..].into();
        }
        engine.submit(job, &mut take);
    }
    let now = std::cell::Cell::new(Duration::ZERO);
    let clock = || {
        now.update(|now| now + Duration::from_millis(10));
        now.get()
    };
    while !engine.is_idle() {
        engine.step(&clock, &mut take);
    }
    (all, engine.stats())
}

/// The tokens of responses to these prompts, one after the other, and what was restored for them.
fn conversation(shape: &str, prompts: &[u32], cached: bool) -> (Vec<Vec<Token>>, u64) {
    let options = ContextOptions {
        context_tokens: CONTEXT,
        kv_cells: CONTEXT,
        batch_rows: 128,
        prefix_cache: cached,
        saved_prefix_bytes: 64 << 20,
        ..ContextOptions::default()
    };
    let mut engine = Engine::new(LlamaModel::new(weights(shape), options).unwrap(), 4);
    let mut all = vec![Vec::new(); prompts.len()];
    let mut take = |id: u64, event| match event {
        Event::Text(TextChunk { tokens, .. }) | Event::Finished { tokens, .. } => {
            all[id as usize].extend(tokens);
        }
        _ => {}
    };
    for (id, prompt) in prompts.iter().enumerate() {
        let options = Options { max_tokens: Some(30), ..Options::GREEDY };
        engine.submit(job(id as u64, *prompt, options), &mut take);
        while !engine.is_idle() {
            engine.step(&|| Duration::ZERO, &mut take);
        }
    }
    let restored = engine.stats().restored_tokens;
    (all, restored)
}

#[test]
fn restored_prefixes_change_no_token_of_any_response() {
    // A sliding window with random weights has near ties, which the length of a batch decides.
    for shape in ["tiny", "tiny-hybrid"] {
        let prompts = [0, 1, 0, 2, 1, 0];
        let (plain, nothing) = conversation(shape, &prompts, false);
        let (cached, restored) = conversation(shape, &prompts, true);
        for (turn, (cached, plain)) in cached.iter().zip(&plain).enumerate() {
            assert_eq!(cached, plain, "{shape}, turn {turn}");
        }
        assert!(nothing == 0 && restored >= 3 * u64::from(TOKENS - 32), "{shape}: {restored}");
    }
}

#[test]
fn drafts_change_no_token_of_any_response() {
    for shape in ALL {
        for temperature in [0.0, 0.05] {
            let (plain, _) = responses(shape, temperature, None);
            // Some tokens of each prediction are wrong.
            let wrong = |(place, token): (usize, &Token)| token ^ Token::from(place % 9 == 8);
            let predict = |said: &Vec<Token>| said.iter().enumerate().map(wrong).collect();
            let predictions: Vec<Vec<Token>> = plain.iter().map(predict).collect();
            let (drafted, stats) = responses(shape, temperature, Some(&predictions));
            assert_eq!(plain, drafted, "{shape} at {temperature}");
            let (drafted, accepted) = (stats.drafted_tokens, stats.accepted_tokens);
            // Some texts repeat themselves, and nothing of a prediction is used.
            let is_rejected = drafted > accepted || shape == "tiny-delta" && temperature == 0.0;
            assert!(is_rejected && accepted > 20, "{shape}: {accepted} of {drafted}");
        }
    }
}

#[test]
fn a_canceled_prompt_stops_the_engine_in_the_middle_of_its_batch() {
    let options = || Options { max_tokens: Some(4), ..Options::GREEDY };
    for shape in ALL {
        let mut engine = Engine::new(model(shape, 2, 128), 4);
        let mut events = Vec::new();
        let leaver = job(1, 0, options());
        let cancel = leaver.cancel.clone();
        engine.submit(leaver, &mut |id, event| events.push((id, event)));
        // The engine reads the clock when the batch starts.
        let leaves = || {
            cancel.set();
            Duration::ZERO
        };
        engine.step(&leaves, &mut |id, event| events.push((id, event)));
        assert_eq!(events.last(), Some(&(1, Event::Cancelled)), "{shape}");
        let stats = engine.stats();
        assert_eq!((stats.prompt_tokens, stats.kv_cells_in_use, stats.kv_cells_cached), (0, 0, 0));
        let begun = std::time::Instant::now();
        engine.submit(job(2, 0, options()), &mut |_, _| {});
        while !engine.is_idle() {
            engine.step(&|| begun.elapsed(), &mut |id, event| events.push((id, event)));
        }
        let last = events.last().map(|(id, event)| (*id, matches!(event, Event::Finished { .. })));
        assert_eq!(last, Some((2, true)), "{shape}: {events:?}");
        assert_eq!(engine.stats().prompt_tokens, u64::from(TOKENS));
    }
}
