//! PURE. Drafts of several sequences of a model of which a batch can only be undone as a whole.
//!
//! llama.cpp computes recurrent layers of sequences with different numbers of rows one after the
//! other, and each time reads all weights. So all sequences have the same number of rows: those
//! that compute less again have longer drafts.

use super::{Candidate, GAIN_MIN, Speculation, UNDONE_TIMES};

impl Speculation {
    /// True if all of as many sequences must have the same number of rows.
    pub(crate) fn is_even(&self, sequences: usize) -> bool {
        self.undoes_batches && sequences > 1
    }

    /// Drafts with which all sequences have the same number of rows: the most that one of them must
    /// compute, or more. None where that does not pay off: what was undone is computed then, and no
    /// other draft is rejected.
    pub(super) fn even_drafts(&self, sequences: &[Candidate], rows_max: u32) -> Vec<u32> {
        let least = sequences.iter().map(|candidate| candidate.rows).max().unwrap_or(1);
        let most = sequences.iter().map(|candidate| candidate.rows + candidate.tokens).min();
        let most = most.unwrap_or(0).min(rows_max / sequences.len() as u32);
        let fresh = |candidate: &Candidate| Candidate { rows: 1, ..*candidate };
        let fresh: Vec<Candidate> = sequences.iter().map(fresh).collect();
        let plain = sequences.len() as f32 / self.estimate(sequences.len() as u32);
        let rate = |each: u32| {
            let (tokens, seconds) = self.evenly(&fresh, each);
            tokens / seconds
        };
        // Each draft is compared with what time is worth.
        let usual = (2..=most).map(rate).fold(GAIN_MIN * plain, f32::max);
        let worth = |each: u32| {
            let (tokens, seconds) = self.evenly(sequences, each);
            tokens - usual * seconds
        };
        let best = (least..=most).max_by(|a, b| worth(*a).total_cmp(&worth(*b)));
        let each = best.filter(|_| usual > GAIN_MIN * plain).unwrap_or(0);
        sequences.iter().map(|candidate| each.saturating_sub(candidate.rows)).collect()
    }

    /// Tokens that are expected if each sequence has as many rows, and seconds.
    fn evenly(&self, sequences: &[Candidate], each: u32) -> (f32, f32) {
        let count = sequences.len() as f32;
        let (mut tokens, mut rows, mut undone, mut draft_steps) = (count, 0.0, 0.0, 0.0f32);
        for candidate in sequences {
            let drafted = each.saturating_sub(candidate.rows);
            let (mut chance, mut reached, mut kept) = (1.0, 1.0, 0.0);
            for i in 0..drafted {
                let rejected = chance * (1.0 - candidate.acceptance);
                undone += UNDONE_TIMES * rejected * (candidate.rows + i) as f32;
                chance *= candidate.acceptance;
                tokens += chance;
                draft_steps =
                    draft_steps.max(if candidate.is_modeled { kept + reached } else { 0.0 });
                reached *= candidate.kept;
                kept += reached;
            }
            rows += candidate.rows as f32 + kept;
        }
        let modeled = sequences.iter().filter(|candidate| candidate.is_modeled).count();
        let draft_step = self.draft_steps.get(modeled).copied().unwrap_or_default();
        let again = self.estimate_between(count + undone) - self.estimate_between(count);
        (tokens, self.estimate_between(rows) + draft_steps * draft_step + again)
    }
}

/// Shortens drafts so that all sequences have the same number of rows, unless one must compute more
/// than another can.
pub(crate) fn make_even(rows: &[u32], drafts: &mut [u32]) {
    let all = rows.iter().zip(drafts.iter()).map(|(rows, drafted)| rows + drafted).min();
    for (rows, drafted) in rows.iter().zip(drafts) {
        *drafted = all.unwrap_or(0).saturating_sub(*rows);
    }
}
