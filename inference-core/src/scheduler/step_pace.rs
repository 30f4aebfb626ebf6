//! PURE. Learns how long steps take on this machine, and computes how much prefill a step can carry
//! without slowing the decoding sequences too much.
//!
//! A step costs about what its decoding rows cost alone, plus a price for each prefill row. Steps
//! without prefill measure the first, for each number of decoding sequences; the extra cost of
//! mixed steps gives the second. A few rows cost almost as much as a few dozen, so prefill comes in
//! chunks as long as the gap that a decoding sequence may see, and then pauses until its share of
//! the time allows the next one.
//!
//! A step without decoding sequences is all prefill. Time limits it as well, because the engine
//! handles no arrival or cancellation until it ends. Such steps measure what their rows cost.

/// Prefill may take this fraction of the decoding time: decoding keeps 1 / (1 + this) of its speed.
const PREFILL_SHARE: f32 = 1.0;
/// Prefill's share if a prompt waits for each sequence that decodes; more or fewer prompts make it
/// larger or smaller. Together they decode at less cost than a few do beside slow prefill.
const PREFILL_SHARE_OF_WAITING: f32 = 2.0;
/// Prefill's largest share, unless gaps of [`GAP_SECONDS`] have room for more.
const PREFILL_SHARE_MAX: f32 = 2.0;
/// A share beyond that does not make gaps between tokens longer than this, and chunks are as short
/// as prefill's share allows where they would.
const GAP_SECONDS: f32 = 0.15;
/// A prefill chunk takes this many times as long as a step of decoding alone, or less if the two,
/// which are the longest gap between tokens, would take longer than [`GAP_SECONDS`]; and never less
/// than prefill's share.
const CHUNK_TIME: f32 = 1.75;
/// Weight of the newest measurement in the moving average.
const SMOOTHING: f32 = 0.15;
/// Prefill rows of a step before anything has been measured.
pub(crate) const ROWS_FIRST: u32 = 32;
/// Target seconds of a step without decoding sequences: how long a new request may wait until the
/// engine handles it. Batches of half a second are as fast as longer ones wherever they have a few
/// dozen rows.
pub(crate) const STEP_SECONDS: f32 = 0.5;
/// Minimum prefill rows of a step without decoding sequences, however slow the machine is: with
/// fewer, loading the weights would take most of the time.
pub(crate) const PREFILL_ONLY_ROWS_MIN: u32 = 16;
/// Weight of the newest measurement when rows of prefill-only steps got cheaper.
const SMOOTHING_PREFILL_ONLY: f32 = 0.5;
/// Rows are computed in tiles: a partial tile costs as much as a full one.
const TILE_ROWS: u32 = 4;
/// Rows that a prefill-only chunk needs to measure the price of a row reliably.
const ROWS_MEASURABLE: u32 = 64;

/// What has been measured so far. See the module.
#[derive(Debug, Clone)]
pub(crate) struct StepPace {
    /// Seconds of a step by number of decoding sequences, without prefill; 0 if unknown.
    decode_steps: Vec<f32>,
    /// Seconds that one more prefill row costs in a mixed step; 0 if unknown.
    prefill_row: f32,
    /// Seconds per row in a prefill-only step; 0 if unknown.
    prefill_only_row: f32,
    /// Prefill may take this fraction of the decoding time.
    share: f32,
    /// Seconds that prefill may take from decoding; negative after a chunk.
    credit: f32,
}

impl StepPace {
    /// Starts without measurements, for a model with `slots` slots.
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            decode_steps: vec![0.0; slots as usize + 1],
            prefill_row: 0.0,
            prefill_only_row: 0.0,
            share: PREFILL_SHARE,
            credit: 0.0,
        }
    }

    /// Divides time between the sequences that decode and those whose prompts wait.
    pub(crate) fn set_waiting(&mut self, decoding: u32, waiting: u32) {
        let share = PREFILL_SHARE_OF_WAITING * waiting as f32 / decoding.max(1) as f32;
        let room = gap_room(self.decode_seconds(decoding));
        self.share = share.clamp(PREFILL_SHARE, PREFILL_SHARE_MAX.max(room));
    }

    /// How many times as long as decoding alone, which takes `alone` seconds, a chunk takes.
    fn chunk_time(&self, alone: f32) -> f32 {
        CHUNK_TIME.min(gap_room(alone)).max(self.share)
    }

    /// Records the duration of a step with `decoding` decoding rows and `prefill` prefill rows.
    pub(crate) fn record_step(&mut self, decoding: u32, prefill: u32, seconds: f32) {
        if decoding == 0 && prefill > 0 {
            self.record_prefill_only(prefill, seconds);
        }
        let Some(alone) = self.decode_steps.get_mut(decoding as usize) else { return };
        match (decoding, prefill) {
            (0, rows) if rows >= ROWS_MEASURABLE && self.prefill_row == 0.0 => {
                self.prefill_row = seconds / rows as f32;
            }
            (0, _) => {}
            (_, 0) => smooth(alone, seconds),
            (_, rows) if *alone > 0.0 => {
                let price = (seconds - *alone).max(0.05 * seconds) / rows as f32;
                smooth(&mut self.prefill_row, price);
            }
            _ => {}
        }
        self.update_credit(decoding, prefill, seconds);
    }

    /// Records a step without prefill in which sequences also computed drafts: it does not measure
    /// how long one without them takes.
    pub(crate) fn record_drafted_step(&mut self, decoding: u32, seconds: f32) {
        self.update_credit(decoding, 0, seconds);
    }

    /// Records the price of a row in a prefill-only step. The few rows that end a prompt cost
    /// almost as much as many do, so they count only if they took too long. A slowdown is believed
    /// at once.
    fn record_prefill_only(&mut self, rows: u32, seconds: f32) {
        let price = seconds / rows as f32;
        if self.prefill_only_row == 0.0 {
            self.prefill_only_row = price;
        } else if seconds > STEP_SECONDS || rows * 2 >= self.prefill_only_rows() {
            let cheaper =
                self.prefill_only_row + SMOOTHING_PREFILL_ONLY * (price - self.prefill_only_row);
            self.prefill_only_row = price.max(cheaper);
        }
    }

    fn prefill_only_rows(&self) -> u32 {
        if self.prefill_only_row == 0.0 {
            return ROWS_FIRST;
        }
        let rows = (STEP_SECONDS / self.prefill_only_row).min(1e6) as u32;
        (rows / TILE_ROWS * TILE_ROWS).max(PREFILL_ONLY_ROWS_MIN)
    }

    /// Decoding time earns prefill its share; prefill spends it.
    fn update_credit(&mut self, decoding: u32, prefill: u32, seconds: f32) {
        let alone = self.decode_seconds(decoding);
        if decoding == 0 || alone == 0.0 {
            self.credit = 0.0;
            return;
        }
        let spent = if prefill > 0 { (seconds - alone).max(0.0) } else { 0.0 };
        let earned = self.share * alone;
        // Credit is limited to one step, and a step that took very long for other reasons does not
        // make prompts wait forever.
        let debt_max = -2.0 * self.chunk_time(alone) * alone;
        self.credit = (self.credit + earned - spent).clamp(debt_max, earned);
    }

    /// Prefill rows for a step with `decoding` decoding rows; 0 while prefill has used up its
    /// share.
    pub(crate) fn prefill_rows(&self, decoding: u32, batch_rows: u32) -> u32 {
        let room = batch_rows.saturating_sub(decoding);
        if decoding == 0 {
            return self.prefill_only_rows().min(room);
        }
        if self.credit < 0.0 {
            return 0;
        }
        let alone = self.decode_seconds(decoding);
        let rows = match (alone > 0.0, self.prefill_row > 0.0) {
            (true, true) => (self.chunk_time(alone) * alone / self.prefill_row) as u32,
            // What is known is how long rows take without decoding.
            _ => ROWS_FIRST.min(self.prefill_only_rows()),
        };
        let whole_tiles = (decoding.saturating_add(rows)) / TILE_ROWS * TILE_ROWS;
        let least = (decoding + 1).next_multiple_of(TILE_ROWS);
        (whole_tiles.max(least) - decoding).min(room)
    }

    /// Seconds of a step with this number of decoding sequences, or the nearest number that was
    /// measured.
    pub(crate) fn decode_seconds(&self, decoding: u32) -> f32 {
        let at = decoding as usize;
        let known = |i: &usize| self.decode_steps.get(*i).is_some_and(|s| *s > 0.0);
        let below = (1..=at).rev().find(known);
        let above = (at + 1..self.decode_steps.len()).find(known);
        below.or(above).map_or(0.0, |i| self.decode_steps[i])
    }
}

/// How many times as long as a step of `alone` seconds prefill may take beside it, so that no gap
/// between tokens is longer than [`GAP_SECONDS`].
fn gap_room(alone: f32) -> f32 {
    if alone > 0.0 { GAP_SECONDS / alone - 1.0 } else { 0.0 }
}

/// Moves `value` toward the newest measurement; the first one counts in full.
pub(crate) fn smooth(value: &mut f32, newest: f32) {
    *value = if *value == 0.0 { newest } else { *value + SMOOTHING * (newest - *value) };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated machine: 20 ms per step, 5 ms for each decoding sequence, 4 ms for each prefill
    /// row.
    fn cost(decoding: u32, prefill: u32) -> f32 {
        let decode = if decoding == 0 { 0.02 } else { 0.02 + 0.005 * decoding as f32 };
        decode + 0.004 * prefill as f32
    }

    fn known(slots: u32) -> StepPace {
        let mut pace = StepPace::new(slots);
        (1..=slots).for_each(|decoding| pace.record_step(decoding, 0, cost(decoding, 0)));
        pace.record_step(0, 100, cost(0, 100));
        pace
    }

    /// 500 steps with `decoding` sequences while prompts wait. Returns how many times as long as
    /// decoding alone they took together, and the longest of them.
    fn mixed(decoding: u32, waiting: u32) -> (f32, f32) {
        let mut pace = known(16);
        pace.set_waiting(decoding, waiting);
        let steps = (0..500).map(|_| {
            let rows = pace.prefill_rows(decoding, 512);
            pace.record_step(decoding, rows, cost(decoding, rows));
            cost(decoding, rows) / cost(decoding, 0)
        });
        let steps: Vec<f32> = steps.collect();
        (steps.iter().sum::<f32>() / 500.0, steps.iter().copied().fold(0.0, f32::max))
    }

    #[test]
    fn decoding_keeps_its_share_and_no_gap_is_too_long() {
        for decoding in [2, 4, 16] {
            let (time, gap) = mixed(decoding, 1);
            let kept = 1.0 / time;
            assert!((0.45..0.6).contains(&kept), "{decoding} sequences keep {kept}");
            // A step of two sequences takes 30 ms, of four 40 ms, of sixteen 100 ms.
            let longest = (1.1 * GAP_SECONDS / cost(decoding, 0)).clamp(2.1, 3.2);
            assert!(
                (1.9..=longest).contains(&gap),
                "{decoding} sequences wait {gap} times as long"
            );
        }
    }

    #[test]
    fn prompts_that_are_more_than_decode_get_more_of_the_time_and_no_gap_is_much_longer() {
        // A step of one sequence takes 25 ms, of four 40 ms, of sixteen 100 ms.
        let shares =
            [(1, 15, 5.0), (1, 1, 2.0), (4, 8, 2.75), (4, 3, 1.5), (16, 16, 2.0), (16, 1, 1.0)];
        for (decoding, waiting, share) in shares {
            let (time, gap) = mixed(decoding, waiting);
            let taken = time - 1.0;
            assert!((0.75..1.25).contains(&(taken / share)), "{waiting} prompts took {taken}");
            let longest = f32::max(1.1 * GAP_SECONDS / cost(decoding, 0), 3.3);
            assert!(gap <= longest, "{decoding} sequences wait {gap} times as long");
        }
    }

    /// Runs prompts without decoding sequences on a machine that takes `fixed` seconds for a step
    /// and `row` seconds for each row. Returns the longest step after the first, and the overall
    /// rows per second.
    fn alone(fixed: f32, row: f32, prompts: &[u32]) -> (f32, f32) {
        let mut pace = StepPace::new(4);
        let (mut longest, mut time, mut all) = (0.0f32, 0.0, 0);
        for prompt in prompts {
            let mut left = *prompt;
            while left > 0 {
                let rows = pace.prefill_rows(0, 512).min(left);
                let seconds = fixed + row * rows as f32;
                pace.record_step(0, rows, seconds);
                longest = longest.max(if time > 0.0 { seconds } else { 0.0 });
                (time, all, left) = (time + seconds, all + rows, left - rows);
            }
        }
        (longest, all as f32 / time)
    }

    #[test]
    fn a_step_without_decoding_is_bounded_by_time_and_prefill_stays_fast() {
        // From a small model on a large machine to a large one on a small machine.
        for (fixed, row) in [(0.005, 0.0005), (0.02, 0.002), (0.1, 0.01), (0.3, 0.066)] {
            let (longest, speed) = alone(fixed, row, &[8192, 5, 8192, 3, 3, 3, 4096]);
            let least = (fixed + row * PREFILL_ONLY_ROWS_MIN as f32).max(STEP_SECONDS);
            assert!(longest <= 1.3 * least, "{row} s a row: a step of {longest} s");
            let whole = 512.0 / (fixed + row * 512.0);
            assert!(speed > 0.7 * whole, "{row} s a row: {speed} rows/s of {whole}");
        }
    }

    #[test]
    fn a_fast_machine_fills_its_batches_and_the_first_step_is_short_on_any() {
        let mut pace = StepPace::new(4);
        assert_eq!(pace.prefill_rows(0, 512), ROWS_FIRST);
        pace.record_step(0, ROWS_FIRST, 0.01);
        assert_eq!(pace.prefill_rows(0, 512), 512);
        assert_eq!(pace.prefill_rows(0, 20), 20);
    }

    #[test]
    fn a_machine_that_gets_slower_between_prompts_is_believed_at_once() {
        let mut pace = known(4);
        for _ in 0..20 {
            pace.record_step(0, pace.prefill_rows(0, 512), 0.4);
        }
        let rows = pace.prefill_rows(0, 512);
        pace.record_step(0, rows, 4.0);
        assert!(pace.prefill_rows(0, 512) <= rows / 7, "the next step is short again");
        (0..20).for_each(|_| {
            let rows = pace.prefill_rows(0, 512);
            pace.record_step(0, rows, 0.0005 * rows as f32);
        });
        assert!(pace.prefill_rows(0, 512) >= rows, "and long once it is fast again");
    }

    #[test]
    fn rows_fill_whole_tiles_and_never_more_than_the_batch() {
        for decoding in 1..=8 {
            assert_eq!((decoding + known(8).prefill_rows(decoding, 512)) % TILE_ROWS, 0);
        }
        assert_eq!(known(8).prefill_rows(8, 10), 2);
        assert_eq!(known(8).prefill_rows(8, 8), 0);
    }

    #[test]
    fn after_a_chunk_decoding_is_left_alone_for_a_while_but_not_for_ever() {
        let mut pace = known(4);
        let rows = pace.prefill_rows(4, 512);
        // The step took a minute because the machine was busy with something else.
        pace.record_step(4, rows, 60.0);
        let steps = (0..100).find(|_| {
            let allowed = pace.prefill_rows(4, 512) > 0;
            pace.record_step(4, 0, cost(4, 0));
            allowed
        });
        assert!((2..10).contains(&steps.unwrap()), "{steps:?}");
    }

    #[test]
    fn the_first_chunk_beside_decoding_is_short_on_a_slow_machine_too() {
        let mut pace = StepPace::new(4);
        let rows = pace.prefill_rows(0, 512);
        pace.record_step(0, rows, 0.3 + 0.066 * rows as f32);
        let beside = pace.prefill_rows(1, 512);
        assert!((1..=PREFILL_ONLY_ROWS_MIN).contains(&beside), "{beside} rows");
    }

    #[test]
    fn a_machine_that_gets_slower_is_noticed() {
        let mut pace = StepPace::new(4);
        let mut rows_at = |row: f32| {
            for _ in 0..60 {
                pace.record_step(2, 0, 0.04);
                pace.record_step(2, 20, 0.04 + 20.0 * row);
            }
            (0..9).for_each(|_| pace.record_step(2, 0, 0.04));
            pace.prefill_rows(2, 512)
        };
        let fast = rows_at(0.001);
        assert!(rows_at(0.004) < fast / 2);
    }
}
