//! PURE. A table of what tuning tried and chose.

use crate::engine::tuning::cache::Entry;
use crate::engine::tuning::describe;

/// All trials, the batch curve and the choice.
pub(crate) fn table(entry: &Entry) -> String {
    let mut lines = vec![format!(
        "{:>7} {:>9} {:>5} {:>4}  {:>10} {:>8} {:>9} {:>7}",
        "threads", "attention", "rows", "poll", "prompt t/s", "1 decode", "4 decode", "score"
    )];
    for trial in &entry.found.trials {
        let c = &trial.candidate;
        let attention = c.flash_attention.name();
        let place = format!("{:>7} {attention:>9} {:>5} {:>4}", c.threads, c.batch_rows, c.poll);
        let measured = match &trial.measured {
            Some(m) => format!(
                "{:>10.1} {:>8.1} {:>9.1} {:>7.1}",
                m.prefill, m.decode_one, m.decode_many, trial.score
            ),
            None => format!("{:>10} {:>8} {:>9} {:>7}", "-", "-", "-", "-"),
        };
        lines.push(format!("{place}  {measured}  {}", trial.verdict.text()));
    }
    if entry.found.cut_short {
        lines.push("the time limit was reached before all candidates ran".into());
    }
    if !entry.curve.is_empty() {
        let points = entry.curve.iter().map(|(n, speed)| format!("{n}: {speed:.1}"));
        let points: Vec<String> = points.collect();
        lines.push(format!("tokens/s by parallel sequences: {}", points.join(", ")));
    }
    let chosen = describe(&entry.tuned.candidate);
    lines.push(format!("chosen: {chosen}, slots {}", entry.tuned.slots));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::flags::tuned::{Fixed, Tuned};
    use inference_core::llama::FlashAttention;
    use inference_core::tools::tune::{Candidate, MeasuredSpeeds, SearchResult, Trial, Verdict};

    #[test]
    fn every_trial_has_a_line_and_the_choice_is_last() {
        let base = Candidate {
            threads: 2,
            flash_attention: FlashAttention::Auto,
            batch_rows: 512,
            poll: 50,
        };
        let measured = MeasuredSpeeds { prefill: 200.0, decode_one: 41.25, decode_many: 78.0 };
        let trial = |measured, verdict| Trial { candidate: base, measured, score: 80.0, verdict };
        let trials = vec![trial(Some(measured), Verdict::First), trial(None, Verdict::Failed)];
        let entry = Entry {
            fixed: Fixed::default(),
            tuned: Tuned { candidate: base, slots: 8 },
            found: SearchResult { best: Some(base), trials, cut_short: true },
            curve: vec![(1, 41.0), (2, 47.0)],
            measured_at: 0,
        };
        let text = table(&entry);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        assert!(lines[1].contains("41.2") && lines[2].ends_with("did not run"), "{text}");
        assert!(lines[3].contains("time limit") && lines[4].ends_with("1: 41.0, 2: 47.0"));
        assert!(lines[5].ends_with("poll 50, slots 8"), "{text}");
    }
}
