//! Runs batches of a model without a scheduler: measures its kernels, and the candidates of
//! [`crate::tools::tune`].

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{median, prompt};
use crate::tools::tune::MeasuredSpeeds;
use crate::types::model::SeqId;
use crate::types::model::{DecodeError, Model, Row};

/// Tokens of the short sequences in a candidate's trial, which decode in parallel with the long
/// one.
const SHORT_TOKENS: u32 = 32;
/// Minimum and maximum tokens of the long sequence.
const LONG_TOKENS: (u32, u32) = (64, 512);
/// Number of sequences that decode in parallel in a trial.
const BATCH: u32 = 4;
/// Measured steps of each kind; their median counts.
const STEPS: u32 = 9;
/// Fraction of a trial's time that its long prompt may take.
const LONG_SHARE: f64 = 0.75;
/// Tokens of each sequence when measuring the batch curve.
const CURVE_TOKENS: u32 = 16;
/// Steps per point of the curve.
const CURVE_STEPS: u32 = 7;
/// Slots of a context for trials: those of the widest batch of a curve.
pub const TRIAL_SLOTS: u32 = 16;

/// Prefills a prompt in the largest batches the model takes; returns the seconds.
pub fn time_prefill<M: Model>(model: &mut M, seq: SeqId, tokens: u32) -> Result<f64, DecodeError> {
    let tokens = prompt(seq, tokens);
    let row = |(i, token): (usize, &u32)| Row {
        seq,
        position: i as u32,
        token: *token,
        logits: i + 1 == tokens.len(),
    };
    let rows: Vec<Row> = tokens.iter().enumerate().map(row).collect();
    let begun = Instant::now();
    for batch in rows.chunks(model.shape().batch_rows.max(1) as usize) {
        model.decode(batch, &|| false)?;
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Prefill speed of one prompt in tokens per second, without a scheduler.
pub fn raw_prefill<M: Model>(model: &mut M, tokens: u32) -> Result<f64, DecodeError> {
    let spent = time_prefill(model, 0, tokens);
    model.clear(0);
    Ok(f64::from(tokens) / spent?)
}

/// Decode speed of `batch` parallel sequences in tokens per second, without a scheduler.
pub fn raw_decode<M: Model>(
    model: &mut M,
    batch: u32,
    prompt_tokens: u32,
    steps: u32,
) -> Result<f64, DecodeError> {
    for seq in 0..batch {
        time_prefill(model, seq, prompt_tokens)?;
    }
    let mut positions = vec![prompt_tokens; batch as usize];
    let spent: f64 = decode_steps(model, &mut positions, steps)?.iter().sum();
    (0..batch).for_each(|seq| model.clear(seq));
    Ok(f64::from(batch * steps) / spent)
}

/// Decodes one token of each of the first sequences, `steps` times; `positions` are their lengths.
/// Returns the seconds of every step.
fn decode_steps<M: Model>(
    model: &mut M,
    positions: &mut [u32],
    steps: u32,
) -> Result<Vec<f64>, DecodeError> {
    let mut seconds = Vec::with_capacity(steps as usize);
    for step in 0..steps {
        let row = |(seq, position): (u32, &u32)| Row {
            seq,
            position: *position,
            token: 40 + step % 50,
            logits: true,
        };
        let rows: Vec<Row> = (0u32..).zip(positions.iter()).map(row).collect();
        let begun = Instant::now();
        model.decode(&rows, &|| false)?;
        seconds.push(begun.elapsed().as_secs_f64());
        positions.iter_mut().for_each(|position| *position += 1);
    }
    Ok(seconds)
}

/// Decode speed in tokens per second, by the median step; the first one warms up.
fn median_speed<M: Model>(
    model: &mut M,
    positions: &mut [u32],
    steps: u32,
) -> Result<f64, DecodeError> {
    decode_steps(model, positions, 1)?;
    let seconds = median(decode_steps(model, positions, steps)?);
    Ok(positions.len() as f64 / seconds)
}

/// Speeds in tokens per second at a context depth where attention matters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DepthSpeeds {
    /// Prefill of one prompt of [`DEEP_TOKENS`], in full batches.
    pub prefill: f64,
    /// Prefill after that prompt, in chunks of [`CHUNK_ROWS`].
    pub chunks: f64,
    /// Decode of eight parallel sequences, one of them after that prompt.
    pub decode: f64,
}

/// Tokens of a deep prompt.
pub const DEEP_TOKENS: u32 = 1536;
/// Rows of a prefill chunk next to decoding sequences, or of a short second turn.
pub const CHUNK_ROWS: u32 = 16;
/// Tokens of each of the other sequences, and their number.
const OTHERS: (u32, u32) = (192, 7);
/// KV cells that [`measure_at_depth`] needs.
pub const DEEP_CELLS: u32 =
    DEEP_TOKENS + STEPS * CHUNK_ROWS + OTHERS.0 * OTHERS.1 + (OTHERS.1 + 1) * (STEPS + 1);

/// Measures batches of a model at depth; it must have eight slots.
pub fn measure_at_depth<M: Model>(model: &mut M) -> Result<DepthSpeeds, DecodeError> {
    let prefill = f64::from(DEEP_TOKENS) / time_prefill(model, 0, DEEP_TOKENS)?;
    let mut seconds = Vec::new();
    for step in 0..STEPS {
        let first = DEEP_TOKENS + step * CHUNK_ROWS;
        let row = |i| Row { seq: 0, position: first + i, token: 40 + i, logits: false };
        let rows: Vec<Row> = (0..CHUNK_ROWS).map(row).collect();
        let begun = Instant::now();
        model.decode(&rows, &|| false)?;
        seconds.push(begun.elapsed().as_secs_f64());
    }
    let mut positions = vec![DEEP_TOKENS + STEPS * CHUNK_ROWS];
    for seq in 1..=OTHERS.1 {
        time_prefill(model, seq, OTHERS.0)?;
        positions.push(OTHERS.0);
    }
    let decode = median_speed(model, &mut positions, STEPS)?;
    (0..=OTHERS.1).for_each(|seq| model.clear(seq));
    Ok(DepthSpeeds { prefill, chunks: f64::from(CHUNK_ROWS) / median(seconds), decode })
}

/// How much a candidate's trial computes: the same for all candidates of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Effort {
    /// Tokens of the long sequence: the depth at which attention is measured.
    pub long_tokens: u32,
}

impl Effort {
    /// The most that fits into a trial of `seconds`, if prefill runs at `rate` tokens per second.
    pub fn within(seconds: f64, rate: f64) -> Self {
        let affordable = seconds * LONG_SHARE * rate - f64::from((BATCH - 1) * SHORT_TOKENS);
        let (least, most) = LONG_TOKENS;
        // Casting a negative or non-finite value yields 0 or saturates.
        let whole = (affordable as u32) / 64 * 64;
        Self { long_tokens: whole.clamp(least, most) }
    }

    /// Maximum tokens of one sequence in a trial.
    pub fn context_tokens(self) -> u32 {
        self.long_tokens + 4 * STEPS
    }

    /// KV cells that a trial or a curve needs.
    pub fn kv_cells(self) -> u32 {
        let others = (BATCH - 1) * (SHORT_TOKENS + 4 * STEPS);
        let curve = TRIAL_SLOTS * (CURVE_TOKENS + 6 * (CURVE_STEPS + 1));
        (self.context_tokens() + others).max(curve)
    }

    /// True if a trial can distinguish batches of `rows` rows from larger ones.
    pub fn can_distinguish_rows(self, rows: u32) -> bool {
        self.long_tokens > rows
    }
}

/// Measures a candidate: prefills a long prompt and three short ones, then decodes all four, then
/// the long one alone.
pub fn measure<M: Model>(model: &mut M, effort: Effort) -> Result<MeasuredSpeeds, DecodeError> {
    let long = time_prefill(model, 0, effort.long_tokens)?;
    let mut positions = vec![effort.long_tokens];
    for seq in 1..BATCH {
        time_prefill(model, seq, SHORT_TOKENS)?;
        positions.push(SHORT_TOKENS);
    }
    let decode_many = median_speed(model, &mut positions, STEPS)?;
    (1..BATCH).for_each(|seq| model.clear(seq));
    let decode_one = median_speed(model, &mut positions[..1], STEPS)?;
    model.clear(0);
    Ok(MeasuredSpeeds { prefill: f64::from(effort.long_tokens) / long, decode_one, decode_many })
}

/// Decode speed in tokens per second of all sequences together, for each batch size, smallest
/// first.
pub fn measure_curve<M: Model>(
    model: &mut M,
    batches: &[u32],
) -> Result<Vec<(u32, f64)>, DecodeError> {
    let most = batches.iter().copied().max().unwrap_or(0).min(model.shape().slots);
    let mut positions = vec![CURVE_TOKENS; most as usize];
    for seq in 0..most {
        time_prefill(model, seq, CURVE_TOKENS)?;
    }
    let mut points = Vec::new();
    for batch in batches.iter().copied().filter(|n| (1..=most).contains(n)) {
        let speed = median_speed(model, &mut positions[..batch as usize], CURVE_STEPS)?;
        points.push((batch, speed));
    }
    (0..most).for_each(|seq| model.clear(seq));
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::fake::FakeModel;

    #[test]
    fn raw_batches_leave_the_model_as_it_was() {
        let mut model = FakeModel::new(3, 64, 16);
        assert!(raw_decode(&mut model, 3, 10, 4).unwrap() > 0.0);
        assert!(raw_prefill(&mut model, 40).unwrap() > 0.0);
        assert_eq!(model.cells(), 0);
    }

    #[test]
    fn a_deep_measurement_fits_into_its_cells_and_leaves_nothing() {
        let mut model = FakeModel::with_cells(8, DEEP_CELLS, 512, DEEP_CELLS);
        let speeds = measure_at_depth(&mut model).unwrap();
        assert!(speeds.prefill > 0.0 && speeds.chunks > 0.0 && speeds.decode > 0.0);
        assert_eq!(model.cells(), 0);
    }

    #[test]
    fn a_trial_fits_into_its_own_context_and_leaves_nothing() {
        for (seconds, rate) in [(4.0, 1e6), (4.0, 20.0)] {
            let effort = Effort::within(seconds, rate);
            let (context, kv_cells) = (effort.context_tokens(), effort.kv_cells());
            let mut model = FakeModel::with_cells(TRIAL_SLOTS, context, 512, kv_cells);
            let measured = measure(&mut model, effort).unwrap();
            assert!(measured.prefill > 0.0 && measured.decode_one > 0.0);
            assert_eq!(model.cells(), 0);
            let points = measure_curve(&mut model, &[1, 2, 4, 8, 16]).unwrap();
            assert_eq!(points.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1, 2, 4, 8, 16]);
            assert_eq!(model.cells(), 0);
        }
    }

    #[test]
    fn a_slow_machine_reads_a_shorter_prompt() {
        assert_eq!(Effort::within(4.0, 1000.0).long_tokens, 512);
        assert_eq!(Effort::within(4.0, 100.0).long_tokens, 192);
        assert_eq!(Effort::within(4.0, 1.0).long_tokens, 64);
        assert_eq!(Effort::within(f64::NAN, 1.0).long_tokens, 64);
        assert!(Effort::within(4.0, 1000.0).can_distinguish_rows(256));
        assert!(!Effort::within(4.0, 100.0).can_distinguish_rows(256));
    }
}
