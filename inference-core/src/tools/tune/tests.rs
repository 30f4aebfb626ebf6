//! Tests searches on scripted machines.

use proptest::prelude::*;

use super::*;

const BASE: Candidate =
    Candidate { threads: 4, flash_attention: FlashAttention::Auto, batch_rows: 512, poll: 50 };

fn space() -> Space {
    Space {
        base: BASE,
        threads: Space::threads_beside(4),
        flash_attention: vec![FlashAttention::Off],
        batch_rows: vec![256],
        poll: vec![0],
    }
}

/// A machine with a speed for each candidate; a trial takes one second.
struct Scripted<F> {
    speed: F,
    asked: Vec<Candidate>,
}

impl<F: FnMut(&Candidate, usize) -> Option<f64>> Trials for Scripted<F> {
    fn run(&mut self, candidate: &Candidate) -> Option<MeasuredSpeeds> {
        let speed = (self.speed)(candidate, self.asked.len());
        self.asked.push(*candidate);
        speed.map(|s| MeasuredSpeeds { prefill: 10.0 * s, decode_one: s, decode_many: 2.0 * s })
    }

    fn elapsed(&self) -> Duration {
        Duration::from_secs(self.asked.len() as u64)
    }
}

fn find(
    seconds: u64,
    speed: impl FnMut(&Candidate, usize) -> Option<f64>,
) -> (SearchResult, Vec<Candidate>) {
    let mut trials = Scripted { speed, asked: Vec::new() };
    let result = search(&space(), &mut trials, Duration::from_secs(seconds));
    (result, trials.asked)
}

#[test]
fn every_coordinate_is_tried_and_the_best_of_each_is_kept() {
    let (result, asked) = find(100, |c, _| {
        let flash = if c.flash_attention == FlashAttention::Off { 1.1 } else { 1.0 };
        let threads = if c.threads == 3 { 1.2 } else { 1.0 };
        let poll = if c.poll == 0 { 0.9 } else { 1.0 };
        Some(100.0 * flash * threads * poll)
    });
    let best = Candidate { threads: 3, flash_attention: FlashAttention::Off, ..BASE };
    assert_eq!(result.best, Some(best));
    assert!(!result.cut_short);
    // Base, three alternatives once each, two winners with two more trials each, half the threads
    // once.
    assert_eq!((result.trials.len(), asked.len()), (6, 10));
}

#[test]
fn what_is_a_little_better_is_not_taken() {
    let (result, _) = find(100, |c, _| Some(if *c == BASE { 100.0 } else { 102.9 }));
    assert_eq!(result.best, Some(BASE));
    assert!(result.trials[1..].iter().all(|t| t.verdict == Verdict::NoBetter));
}

#[test]
fn what_wins_once_by_luck_is_not_taken() {
    // A quiet moment during the second trial.
    let (result, _) = find(100, |_, n| Some(if n == 1 { 150.0 } else { 100.0 }));
    assert_eq!(result.best, Some(BASE));
    assert_eq!(result.trials[1].verdict, Verdict::Luck);
}

#[test]
fn a_candidate_that_dies_is_rejected_and_the_search_goes_on() {
    let (result, _) = find(100, |c, _| (c.flash_attention == FlashAttention::Auto).then_some(9.0));
    assert_eq!((result.best, result.trials.len()), (Some(BASE), 6));
    let (result, _) = find(100, |c, _| (c.flash_attention == FlashAttention::Off).then_some(9.0));
    assert_eq!(result.best, Some(Candidate { flash_attention: FlashAttention::Off, ..BASE }));
    assert_eq!(find(100, |_, _| None).0.best, None);
    assert_eq!(find(100, |_, _| Some(f64::NAN)).0.best, None);
}

#[test]
fn far_fewer_threads_are_not_tried_after_fewer_were_much_worse() {
    let (_, asked) = find(100, |c, _| Some(f64::from(c.threads)));
    assert!(asked.iter().all(|c| c.threads >= 3), "{asked:?}");
}

#[test]
fn time_that_runs_out_keeps_what_was_found() {
    let (result, asked) = find(3, |c, _| Some(if c.poll == 0 { 200.0 } else { 100.0 }));
    assert_eq!((result.best, asked.len(), result.cut_short), (Some(BASE), 3, true));
    // Better once, and no time to confirm it.
    let (result, _) = find(3, |c, _| Some(if *c == BASE { 100.0 } else { 200.0 }));
    assert_eq!((result.best, result.trials[1].verdict), (Some(BASE), Verdict::Unconfirmed));
}

#[test]
fn threads_are_all_cores_or_one_less_or_half() {
    assert_eq!(Space::threads_beside(1), [] as [u32; 0]);
    assert_eq!(Space::threads_beside(2), [1]);
    assert_eq!(Space::threads_beside(3), [2, 1]);
    assert_eq!(Space::threads_beside(16), [15, 8]);
}

#[test]
fn slots_follow_the_curve_while_doubling_pays() {
    // Two rows cost twice as much as one; four cost hardly more than two: measured with Q4_0.
    let dip = [(1, 41.0), (2, 42.0), (4, 78.0), (8, 90.0), (16, 103.0)];
    assert_eq!(slots_worth(&dip), 16);
    let flat = [(1, 40.0), (2, 60.0), (4, 80.0), (8, 81.0), (16, 82.0)];
    assert_eq!(slots_worth(&flat), 4);
    assert_eq!(slots_worth(&[(1, 40.0), (2, 30.0), (4, 41.0)]), 1);
    assert_eq!(slots_worth(&[]), 1);
}

proptest! {
    #[test]
    fn noise_below_three_percent_flips_no_choice(noise in proptest::collection::vec(-0.014..0.014f64, 32)) {
        let (result, _) = find(100, |_, n| Some(100.0 * (1.0 + noise[n])));
        prop_assert_eq!(result.best, Some(BASE));
    }

    #[test]
    fn a_clear_winner_is_found_through_noise(noise in proptest::collection::vec(-0.014..0.014f64, 32)) {
        let (result, _) = find(100, |c, n| {
            let speed = if c.threads == 3 { 110.0 } else { 100.0 };
            Some(speed * (1.0 + noise[n]))
        });
        prop_assert_eq!(result.best, Some(Candidate { threads: 3, ..BASE }));
    }
}
