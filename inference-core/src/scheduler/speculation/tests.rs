//! Tests the controller on machines and texts of every kind.

use super::*;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

const PLAIN: DecodeStep =
    DecodeStep { sequences: 1, rows: 1, is_even: true, tokens: 1, seconds: 0.01, drafting: 0.0 };

/// A sequence whose draft tokens are accepted with a chance.
fn candidate(acceptance: f32) -> Candidate {
    Candidate { acceptance, kept: 1.0, rows: 1, tokens: 15, is_modeled: false }
}

/// Runs decode steps of some sequences whose draft tokens are accepted with a chance, on a
/// machine that takes `cost(rows)` seconds. Returns the tokens per second, as a part of those
/// without drafts.
fn speed(sequences: u32, chance: f32, cost: impl Fn(u32) -> f32) -> f32 {
    run(Speculation::new(false), sequences, chance, cost)
}

fn run(
    mut speculation: Speculation,
    sequences: u32,
    chance: f32,
    cost: impl Fn(u32) -> f32,
) -> f32 {
    let mut random = Pcg64::seed_from_u64(7);
    let mut all = vec![candidate(chance); sequences as usize];
    let (mut tokens, mut seconds, steps) = (0, 0.0, 2000);
    let plain = DecodeStep { sequences, ..PLAIN };
    for _ in 0..steps {
        let drafts = speculation.drafts(&all, 64);
        let mut is_hit = || (random.next_u32() as f32 / u32::MAX as f32) < chance;
        let (mut sampled, mut rows) = (0, Vec::new());
        for (candidate, drafted) in all.iter_mut().zip(drafts) {
            let hits = (0..drafted).take_while(|_| is_hit()).count() as u32;
            sampled += 1 + hits;
            rows.push(candidate.rows + drafted);
            let is_undone = speculation.undoes_batches && hits < drafted;
            candidate.rows = if is_undone { candidate.rows + hits + 1 } else { 1 };
        }
        let batch = match speculation.undoes_batches {
            true => uneven_cost(rows.clone(), &cost),
            false => cost(rows.iter().sum()),
        };
        let is_even = rows.iter().all(|each| *each == rows[0]);
        let rows = rows.iter().sum();
        let step = DecodeStep { rows, is_even, tokens: sampled, seconds: batch, ..plain };
        speculation.record(step);
        (tokens, seconds) = (tokens + sampled, seconds + step.seconds);
    }
    let plain = sequences as f32 / cost(sequences);
    tokens as f32 / seconds / plain
}

/// What a batch costs that computes sequences with different numbers of rows one after the other.
fn uneven_cost(mut rows: Vec<u32>, cost: impl Fn(u32) -> f32) -> f32 {
    let mut seconds = 0.0;
    while let Some(least) = rows.iter().copied().min() {
        seconds += cost(least * rows.len() as u32);
        rows = rows.into_iter().map(|rows| rows - least).filter(|rows| *rows > 0).collect();
    }
    seconds
}

/// A machine whose steps are bound by memory up to a few rows.
fn machine(rows: u32) -> f32 {
    0.010 + 0.002 * rows as f32
}

#[test]
fn text_that_repeats_itself_is_generated_several_times_as_fast() {
    assert!(speed(1, 0.95, machine) > 2.5, "{}", speed(1, 0.95, machine));
    assert!(speed(4, 0.9, machine) > 1.4, "{}", speed(4, 0.9, machine));
}

#[test]
fn drafts_are_never_much_slower_than_none() {
    // From rows that cost nothing to rows that cost a step each.
    for row in [0.0, 0.1, 0.3, 0.6, 1.0, 2.0] {
        for chance in [0.0, 0.05, 0.2, 0.4, 0.7, 0.95] {
            for sequences in [1, 2, 4, 8, 16, 20] {
                let cost = |rows: u32| 0.01 * (1.0 + row * (rows - 1) as f32);
                let speed = speed(sequences, chance, cost);
                assert!(speed > 0.985, "{sequences} of {chance}, {row} a row: {speed}");
            }
        }
    }
}

#[test]
fn drafts_pay_off_if_only_whole_batches_can_be_undone_and_are_never_much_slower() {
    let speed = |sequences, chance, cost: &dyn Fn(u32) -> f32| {
        run(Speculation::new(true), sequences, chance, cost)
    };
    for (sequences, chance, least) in [
        (1, 0.95, 2.5),
        (1, 0.8, 1.5),
        (2, 0.95, 1.9),
        (2, 0.8, 1.25),
        (4, 0.95, 1.4),
        (4, 0.8, 1.05),
    ] {
        let speed = speed(sequences, chance, &machine);
        assert!(speed > least, "{sequences} of {chance}: {speed}");
    }
    for row in [0.0, 0.1, 0.3, 0.6, 1.0, 2.0] {
        for chance in [0.0, 0.05, 0.2, 0.4, 0.7, 0.95] {
            for sequences in 1..=4 {
                let cost = |rows: u32| 0.01 * (1.0 + row * (rows - 1) as f32);
                let speed = speed(sequences, chance, &cost);
                assert!(speed > 0.985, "{sequences} of {chance}, {row} a row: {speed}");
            }
        }
    }
}

#[test]
fn sequences_that_must_have_the_same_number_of_rows_have_it() {
    let (mut rows, mut drafts) = ([1, 3, 2], [4, 1, 3]);
    make_even(&rows, &mut drafts);
    assert_eq!(drafts, [3, 1, 2]);
    (rows, drafts) = ([1, 4, 1], [2, 0, 5]);
    make_even(&rows, &mut drafts);
    assert_eq!(drafts, [2, 0, 2], "one computes more again than another can draft");
}

#[test]
fn drafts_that_are_never_accepted_are_stopped_by_what_they_cost() {
    let mut speculation = Speculation::new(false);
    let (mut tokens, mut seconds) = (0, 0.0);
    for _ in 0..5000 {
        let sure = candidate(0.99);
        let drafts = speculation.drafts(&[sure], 64);
        let rows = 1 + drafts[0];
        // None is ever right.
        let step = DecodeStep { rows, seconds: machine(rows), ..PLAIN };
        speculation.record(step);
        (tokens, seconds) = (tokens + 1, seconds + step.seconds);
    }
    let speed = tokens as f32 / seconds * machine(1);
    assert!(speed > 0.985, "{speed}");
}

/// Like [`speed`], with a draft model whose steps and tokens take a part of a step's time, for
/// responses of `response` tokens after texts of `prompt` tokens. `knows`: it drops what would
/// be wrong.
fn modeled_speed(
    chance: f32,
    knows: bool,
    (step, token): (f32, f32),
    (prompt, response): (u32, u32),
) -> f32 {
    let mut random = Pcg64::seed_from_u64(7);
    let mut speculation = Speculation::new(false);
    let (mut tokens, mut seconds, plain) = (0, 0.0, machine(1));
    for _ in 0..200 {
        let (mut behind, mut left) = (prompt, response);
        while left > 0 {
            let is_ready = behind == 0 || speculation.can_catch_up(behind);
            let wanted = if is_ready { 15.min(left - 1) } else { 0 };
            let kept = if knows { chance } else { 1.0 };
            let candidate =
                Candidate { acceptance: chance, kept, rows: 1, tokens: wanted, is_modeled: true };
            let mut drafts = speculation.drafts(&[candidate], 64)[0];
            if drafts > 0 && behind > 0 {
                let rows = behind.min(64);
                speculation.record_catch_up(rows, rows as f32 * token * plain);
                (behind, drafts) = (behind - rows, 0);
                seconds += rows as f32 * token * plain;
            }
            let mut is_hit = || (random.next_u32() as f32 / u32::MAX as f32) < chance;
            let hits = (0..drafts).take_while(|_| is_hit()).count() as u32;
            let steps = if knows { drafts.min(hits + 1) } else { drafts };
            let drafting = steps as f32 * step * plain;
            if drafts > 0 {
                speculation.record_drafting(1, steps, drafting);
            }
            drafts = if knows { hits } else { drafts };
            let sampled = 1 + hits;
            let seconds_of_batch = machine(1 + drafts);
            speculation.record(DecodeStep {
                sequences: 1,
                rows: 1 + drafts,
                is_even: true,
                tokens: sampled,
                seconds: seconds_of_batch,
                drafting,
            });
            left -= sampled;
            (tokens, seconds) = (tokens + sampled, seconds + seconds_of_batch + drafting);
        }
    }
    tokens as f32 / seconds * plain
}

#[test]
fn a_draft_model_a_tenth_of_the_size_pays_off_and_another_costs_next_to_nothing() {
    let small = (0.1, 0.02);
    assert!(modeled_speed(0.8, false, small, (100, 200)) > 1.5);
    assert!(modeled_speed(0.7, false, small, (1000, 300)) > 1.2);
    for chance in [0.0, 0.2, 0.4, 0.7, 0.95] {
        for cost in [small, (0.3, 0.1), (1.0, 0.5)] {
            for sizes in [(20, 50), (1000, 50), (1000, 300), (8000, 100)] {
                for knows in [false, true] {
                    let speed = modeled_speed(chance, knows, cost, sizes);
                    assert!(speed > 0.98, "{chance}, {knows}, {cost:?}, {sizes:?}: {speed}");
                }
            }
        }
    }
}

#[test]
fn a_draft_model_that_drops_what_would_be_wrong_gains_more() {
    for (chance, more) in [(0.5, 1.1), (0.7, 1.2), (0.9, 1.1)] {
        let speed = |knows| modeled_speed(chance, knows, (0.1, 0.02), (100, 200));
        assert!(speed(true) > more * speed(false), "{} {}", speed(true), speed(false));
    }
}

#[test]
fn a_token_must_be_the_surer_the_more_it_costs() {
    let timed = |sequences: u32, row: f32| {
        let mut speculation = Speculation::new(false);
        for rows in [sequences, 2 * sequences] {
            let seconds = 0.01 + row * rows as f32;
            speculation.record(DecodeStep { sequences, rows, seconds, ..PLAIN });
        }
        (0..2).for_each(|_| speculation.record_drafting(1, 2, 0.004));
        speculation.least_chance(sequences as usize, 1)
    };
    let unknown = Speculation::new(false).least_chance(1, 1);
    assert_eq!((unknown.to_keep, unknown.to_go_on), (LEAST_CHANCE_MIN, LEAST_CHANCE_MIN));
    let (one, four, dear) = (timed(1, 0.001), timed(4, 0.001), timed(4, 0.1));
    assert!((one.to_keep - 1.0 / 11.0).abs() < 0.01 && (four.to_keep - 4.0 / 14.0).abs() < 0.01);
    assert!(one.to_go_on > one.to_keep + 0.1 && four.to_go_on > one.to_go_on);
    assert_eq!((dear.to_keep, dear.to_go_on), (LEAST_CHANCE_MAX, LEAST_CHANCE_MAX));
}

#[test]
fn the_first_draft_does_not_tell_how_long_others_take() {
    let mut speculation = Speculation::new(false);
    speculation.record(PLAIN);
    let sure = [Candidate { tokens: 1, is_modeled: true, ..candidate(0.95) }];
    let long = 100.0 * PLAIN.seconds;
    for forgets in [false, true] {
        if forgets {
            speculation.forget_drafting();
        }
        speculation.record_drafting(1, 1, long);
        assert_eq!(
            speculation.drafts(&sure, 64),
            [1],
            "it has read its weights for the first time"
        );
        speculation.record_drafting(1, 1, 0.01 * PLAIN.seconds);
        assert_eq!(speculation.drafts(&sure, 64), [1]);
    }
    speculation.forget_drafting();
    (0..2).for_each(|_| speculation.record_drafting(1, 1, long));
    assert_eq!(speculation.drafts(&sure, 64), [0], "it does take long");
}

#[test]
fn a_time_that_was_measured_on_a_busy_machine_is_forgotten() {
    let mut speculation = Speculation::new(false);
    let plain = PLAIN;
    speculation.record(plain);
    speculation.record(DecodeStep { rows: 2, seconds: 1.0, tokens: 2, ..plain });
    let sure = [Candidate { tokens: 1, ..candidate(0.9) }];
    (0..450).for_each(|_| speculation.record(plain));
    assert_eq!(speculation.drafts(&sure, 64), [0], "it took too long");
    (0..64).for_each(|_| speculation.record(plain));
    assert_eq!(speculation.drafts(&sure, 64), [1], "it may be fast now");
}

#[test]
fn a_step_without_drafts_comes_now_and_then_and_rows_have_a_limit() {
    let mut speculation = Speculation::new(false);
    let step = DecodeStep { sequences: 2, rows: 2, tokens: 2, ..PLAIN };
    let sure = [candidate(1.0); 2];
    assert_eq!(speculation.drafts(&sure, 64), [0, 0], "nothing is known");
    speculation.record(step);
    let mut all = Vec::new();
    for _ in 0..DRAFTED_STEPS_MAX {
        let rows = 2 + speculation.drafts(&sure, 7).iter().sum::<u32>();
        speculation.record(DecodeStep { rows, tokens: rows, ..step });
        all.push(rows);
    }
    assert_eq!((all[0], all[1], all[31]), (4, 7, 7));
    assert_eq!(speculation.drafts(&sure, 7), [0, 0]);
}
