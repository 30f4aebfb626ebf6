//! PURE. Plans what one step decodes.
//!
//! Every decoding sequence gets its row first, so that no prompt stalls it. Prefill takes what its
//! budget ([`crate::scheduler::step_pace`]) and the free KV cells leave: the shortest remainder
//! first, because it starts its response soonest, but a skipped prompt ages until it is next.

use crate::types::model::Slot;

/// Each step that skips a prompt makes it count as this many rows shorter.
const AGEING_ROWS: u32 = 8;

/// A sequence as the planner sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlannedSequence {
    pub(crate) slot: Slot,
    /// Tokens known but not yet decoded. While decoding, that is one, and what was rolled back.
    pub(crate) rows: u32,
    /// True if its response has started.
    pub(crate) decoding: bool,
    /// Steps that skipped its prefill.
    pub(crate) skipped_steps: u32,
    /// Order of arrival: smaller is older.
    pub(crate) arrival: u64,
    /// True if it needs the logits of every row.
    pub(crate) needs_all_logits: bool,
    /// The step must not go beyond this number of rows.
    pub(crate) rows_max: u32,
}

/// A slot's rows in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotRows {
    pub(crate) slot: Slot,
    /// Rows of its tokens, at least 1.
    pub(crate) rows: u32,
    /// Rows of tokens that probably follow: [`crate::scheduler::speculation`].
    pub(crate) drafted: u32,
}

impl SlotRows {
    /// All rows of the slot.
    pub(crate) fn all_rows(self) -> u32 {
        self.rows + self.drafted
    }
}

/// Limits of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StepLimits {
    pub(crate) batch_rows: u32,
    pub(crate) prefill_rows: u32,
    /// KV cells that are free or can be evicted; each row needs one.
    pub(crate) kv_cells: u32,
    /// Rows of sequences that need the logits of every row.
    pub(crate) logits_rows: u32,
}

/// Plans one step. Each slot appears at most once. The caller ensures that every decoding sequence
/// has a cell.
pub(crate) fn plan(sequences: &[PlannedSequence], limits: StepLimits) -> Vec<SlotRows> {
    let rows_max = limits.batch_rows.min(limits.kv_cells);
    let decoding = sequences.iter().filter(|s| s.decoding);
    let share = |slot, rows| SlotRows { slot, rows, drafted: 0 };
    let mut left = rows_max;
    let mut shares = Vec::with_capacity(sequences.len());
    for sequence in decoding.filter(|s| s.rows > 0) {
        if let Some(rest) = left.checked_sub(sequence.rows) {
            shares.push(share(sequence.slot, sequence.rows));
            left = rest;
        }
    }
    left = left.min(limits.prefill_rows);
    let mut logits_left = limits.logits_rows;
    let mut prefilling: Vec<&PlannedSequence> = sequences.iter().filter(|s| !s.decoding).collect();
    prefilling.sort_by_key(|s| {
        (s.rows.saturating_sub(s.skipped_steps.saturating_mul(AGEING_ROWS)), s.arrival)
    });
    for sequence in prefilling {
        let most = if sequence.needs_all_logits { left.min(logits_left) } else { left };
        let rows = sequence.rows.min(sequence.rows_max).min(most);
        if rows == 0 {
            continue;
        }
        if sequence.needs_all_logits {
            logits_left -= rows;
        }
        shares.push(share(sequence.slot, rows));
        left -= rows;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: StepLimits =
        StepLimits { batch_rows: 512, prefill_rows: 512, kv_cells: 4096, logits_rows: 32 };

    fn decoding(slot: Slot) -> PlannedSequence {
        PlannedSequence {
            slot,
            rows: 1,
            decoding: true,
            skipped_steps: 0,
            arrival: u64::from(slot),
            needs_all_logits: false,
            rows_max: u32::MAX,
        }
    }

    fn prefilling(slot: Slot, rows: u32, arrival: u64) -> PlannedSequence {
        let (decoding, skipped_steps, needs_all_logits) = (false, 0, false);
        let rows_max = u32::MAX;
        PlannedSequence { slot, rows, decoding, skipped_steps, arrival, needs_all_logits, rows_max }
    }

    fn rows(sequences: &[PlannedSequence], limits: StepLimits) -> Vec<(Slot, u32)> {
        plan(sequences, limits).into_iter().map(|s| (s.slot, s.rows)).collect()
    }

    #[test]
    fn decoding_goes_first_and_a_long_prompt_takes_its_budget() {
        let all = [prefilling(0, 1000, 0), decoding(1), decoding(2)];
        let limits = StepLimits { prefill_rows: 30, ..WIDE };
        assert_eq!(rows(&all, limits), [(1, 1), (2, 1), (0, 30)]);
    }

    #[test]
    fn the_shortest_rest_goes_first_and_equals_by_arrival() {
        let all = [prefilling(0, 400, 1), prefilling(1, 300, 2), prefilling(2, 300, 0)];
        assert_eq!(rows(&all, WIDE), [(2, 300), (1, 212)]);
    }

    #[test]
    fn a_prompt_that_is_skipped_ages_until_it_is_the_next() {
        let limits = StepLimits { prefill_rows: 20, ..WIDE };
        let mut long = prefilling(0, 1000, 0);
        // New short prompts keep arriving.
        let steps = (0..1000).find(|step| {
            let shares = plan(&[long, prefilling(1, 20, step + 1)], limits);
            long.skipped_steps += 1;
            shares[0].slot == 0
        });
        assert_eq!(steps, Some(123), "(1000 - 20) / 8, rounded up");
    }

    #[test]
    fn prompts_whose_logits_are_all_needed_share_their_rows_and_hold_up_no_other() {
        let needing = |sequence| PlannedSequence { needs_all_logits: true, ..sequence };
        let all = [
            needing(prefilling(0, 20, 0)),
            needing(prefilling(1, 30, 1)),
            needing(prefilling(2, 40, 2)),
            prefilling(3, 400, 3),
        ];
        assert_eq!(rows(&all, WIDE), [(0, 20), (1, 12), (3, 400)]);
    }

    #[test]
    fn a_prompt_stops_where_its_state_is_saved_and_leaves_the_rest_to_others() {
        let stopping = PlannedSequence { rows_max: 30, ..prefilling(0, 100, 0) };
        assert_eq!(rows(&[stopping, prefilling(1, 600, 1)], WIDE), [(0, 30), (1, 482)]);
    }

    #[test]
    fn a_batch_is_never_overfull_and_never_without_cells() {
        let all = [decoding(0), decoding(1), decoding(2), prefilling(3, 9, 0)];
        assert_eq!(rows(&all, StepLimits { batch_rows: 2, ..WIDE }), [(0, 1), (1, 1)]);
        assert_eq!(rows(&all, StepLimits { kv_cells: 5, ..WIDE }).last(), Some(&(3, 2)));
        assert_eq!(rows(&[], WIDE), []);
    }
}
