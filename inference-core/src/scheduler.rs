//! PURE. What one step decodes.
//!
//! Every decoding sequence gets its row first, so that no prompt stalls a reader. Prefill
//! takes the rows that are left, oldest request first; while somebody reads, a step takes
//! only a bounded chunk of it, so that the gap between two tokens stays short.

use crate::model::Slot;

/// Prefill rows of a step in which somebody reads.
const PREFILL_ROWS_WHILE_DECODING: u32 = 64;

/// What the scheduler needs to know of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Its slot.
    pub slot: Slot,
    /// Tokens known but not decoded yet: 1 while decoding, more while prefilling.
    pub rows: u32,
    /// Whether its answer has begun.
    pub decoding: bool,
    /// Order of arrival: smaller is older.
    pub arrival: u64,
}

/// How many rows a sequence gets in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Its slot.
    pub slot: Slot,
    /// Rows, at least 1.
    pub rows: u32,
}

/// Plans one step of at most `batch_rows` rows. Nobody is in the plan twice.
pub fn plan(sequences: &[Waiting], batch_rows: u32) -> Vec<Share> {
    let decoding = sequences.iter().filter(|s| s.decoding);
    let mut shares: Vec<Share> =
        decoding.map(|s| Share { slot: s.slot, rows: 1 }).take(batch_rows as usize).collect();
    let mut left = batch_rows - shares.len() as u32;
    if !shares.is_empty() {
        left = left.min(PREFILL_ROWS_WHILE_DECODING);
    }
    let mut prefilling: Vec<&Waiting> = sequences.iter().filter(|s| !s.decoding).collect();
    prefilling.sort_by_key(|s| s.arrival);
    for sequence in prefilling {
        let rows = sequence.rows.min(left);
        if rows == 0 {
            break;
        }
        shares.push(Share { slot: sequence.slot, rows });
        left -= rows;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoding(slot: Slot) -> Waiting {
        Waiting { slot, rows: 1, decoding: true, arrival: u64::from(slot) }
    }

    fn prefilling(slot: Slot, rows: u32, arrival: u64) -> Waiting {
        Waiting { slot, rows, decoding: false, arrival }
    }

    fn rows(sequences: &[Waiting], batch_rows: u32) -> Vec<(Slot, u32)> {
        plan(sequences, batch_rows).into_iter().map(|s| (s.slot, s.rows)).collect()
    }

    #[test]
    fn readers_go_first_and_a_long_prompt_takes_a_chunk() {
        let all = [prefilling(0, 1000, 0), decoding(1), decoding(2)];
        assert_eq!(rows(&all, 512), [(1, 1), (2, 1), (0, PREFILL_ROWS_WHILE_DECODING)]);
    }

    #[test]
    fn without_readers_prefill_takes_the_whole_batch_oldest_first() {
        let all = [prefilling(0, 300, 2), prefilling(1, 300, 1)];
        assert_eq!(rows(&all, 512), [(1, 300), (0, 212)]);
    }

    #[test]
    fn a_batch_is_never_overfull() {
        let all = [decoding(0), decoding(1), decoding(2), prefilling(3, 9, 0)];
        assert_eq!(rows(&all, 2), [(0, 1), (1, 1)]);
        assert_eq!(rows(&all, 4), [(0, 1), (1, 1), (2, 1), (3, 1)]);
        assert_eq!(rows(&[], 4), []);
    }
}
