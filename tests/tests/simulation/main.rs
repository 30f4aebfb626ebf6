//! The gateway's pure cores in simulated time; `make bench-gateway` prints the figures.
//! `FLOTILLA_SEED` plays one seed alone.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "figures are for people")]

mod compute;
mod fleet;
mod storm;

use compute::{Ends, Tenant};
use fleet::{Router, Scene, Waits};
use flotilla_gateway::scheduler::routing::Policy;
use flotilla_gateway::scheduler::routing_stats::Forecast;
use std::collections::BTreeMap;
use storm::{Bug, Counts, Report, storm};

/// Seeds that a figure is the median of.
const SEEDS: u64 = 5;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn seeds() -> Vec<u64> {
    match std::env::var("FLOTILLA_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (1..=SEEDS).collect(),
    }
}

/// A policy's waits over those of the better of the two plain proxies: mean and 95th percentile.
fn ratios(policy: Policy, seed: u64) -> [f64; 2] {
    let scene = Scene::new(50, 0.8, 600.0, seed);
    let ours = scene.play(Router::Flotilla(policy));
    let plain = [Router::PlainRoundRobin, Router::PlainLeastConnections];
    let plain = plain.map(|router| scene.play(router));
    eprintln!("seed {seed}, {}: {ours:.2?}; plain {plain:.2?}", policy.name());
    let ratio =
        |figure: fn(&Waits) -> f64| figure(&ours) / figure(&plain[0]).min(figure(&plain[1]));
    [ratio(|waits| waits.mean), ratio(|waits| waits.p95)]
}

/// Prints the medians over all seeds and returns them.
fn measure(policy: Policy) -> [f64; 2] {
    let all: Vec<[f64; 2]> = seeds().into_iter().map(|seed| ratios(policy, seed)).collect();
    let figure = |which: usize| median(all.iter().map(|ratios| ratios[which]).collect());
    let how = "time to the first token of 50 mixed nodes at 80 % load, multi-turn, in simulated \
               time: this policy / the better of round robin and least connections with a queue \
               at each node; median of seeds";
    for (which, name) in ["mean", "p95"].into_iter().enumerate() {
        let name = format!("routing_{}_{name}", policy.name());
        let (value, aim) = (figure(which), "<= 0.5");
        println!("{}", serde_json::json!({"name": name, "value": value, "aim": aim, "how": how}));
    }
    [figure(0), figure(1)]
}

#[test]
fn fifty_mixed_nodes_answer_twice_as_soon_as_behind_a_plain_proxy() {
    for policy in [Policy::LeastConnections, Policy::Fastest] {
        let [mean, p95] = measure(policy);
        assert!(mean <= 0.5 && p95 <= 0.5, "{}: {mean}, {p95}", policy.name());
    }
}

#[test]
fn the_other_policies_are_no_worse_than_a_plain_proxy() {
    for policy in [Policy::RoundRobin, Policy::PowerOfTwo] {
        let [mean, p95] = measure(policy);
        assert!(mean <= 1.05 && p95 <= 1.05, "{}: {mean}, {p95}", policy.name());
    }
}

/// How far what is predicted of waits of more than a second is from them, as a part of them: the
/// median; all that was predicted over all that was waited; and the part of all forecasts that the
/// gateway's metrics call right.
fn wait_errors(load: f64, seed: u64) -> [f64; 3] {
    let mut scene = Scene::new(50, load, 600.0, seed);
    scene.limits_are_told = false;
    let (mut waits, stats) = scene.predicted(Policy::default());
    let [right, long, short] = Forecast::ALL.map(|forecast| stats.forecasts(forecast));
    assert_eq!(waits.len() as u64, right + long + short);
    waits.retain(|(waited, _)| *waited > 1.0);
    assert!(waits.len() > 1_000, "seed {seed}: only {} wait", waits.len());
    let [waited, predicted] =
        [0, 1].map(|i| waits.iter().map(|wait| [wait.0, wait.1][i]).sum::<f64>());
    let errors = waits.iter().map(|(waited, predicted)| (predicted - waited).abs() / waited);
    [median(errors.collect()), predicted / waited, right as f64 / (right + long + short) as f64]
}

#[test]
fn waits_are_foretold_on_mixed_nodes_whose_answers_tell_no_length() {
    for (load, percent) in [(1.3, 130), (2.0, 200)] {
        let all: Vec<[f64; 3]> = seeds().into_iter().map(|seed| wait_errors(load, seed)).collect();
        let [error, ratio, right] =
            [0, 1, 2].map(|i| median(all.iter().map(|one| one[i]).collect()));
        let how = format!(
            "waits of more than a second for a slot of 50 mixed nodes at {percent} % load, in \
             simulated time: what was predicted on arrival against what came; median of seeds"
        );
        for (name, value) in
            [("error", error), ("foretold_over_waited", ratio), ("forecasts_right", right)]
        {
            let name = format!("wait_{name}_at_{percent}");
            println!(
                "{}",
                serde_json::json!({"name": name, "value": value, "aim": "-", "how": how})
            );
        }
        assert!(error < 0.25 && (0.7..1.4).contains(&ratio), "{percent} %: {error}, {ratio}");
        assert!(right > 0.8, "{percent} %: {right}");
    }
}

/// Seconds of slots that a tenant with answers of 4,000 tokens gets, over those of one with 50. The
/// long ones end like this.
fn compute_ratio(ends: Ends, corrects: bool) -> f64 {
    let long = Tenant { name: "long", answer: 4_000, ends };
    let short = Tenant { name: "short", answer: 50, ends: Ends::Answered };
    let seconds = compute::play(&[long, short], corrects, 40_000.0);
    seconds[0] / seconds[1]
}

#[test]
fn tenants_with_long_and_with_short_answers_get_equal_compute() {
    let how = "seconds of slots of a tenant with answers of 4,000 tokens / of one with 50, both always \
               waiting and no limits told, in simulated time";
    for (name, ends) in [
        ("answered", Ends::Answered),
        ("half_leave", Ends::HalfLeave),
        ("half_retried", Ends::HalfRetried),
    ] {
        let ratio = compute_ratio(ends, true);
        let name = format!("compute_long_over_short_{name}");
        println!(
            "{}",
            serde_json::json!({"name": name, "value": ratio, "aim": "0.9 to 1.1", "how": how})
        );
        assert!((0.9..1.1).contains(&ratio), "{ends:?}: {ratio}");
    }
    let uncorrected = compute_ratio(Ends::Answered, false);
    assert!(uncorrected > 10.0, "the scene would show what is not corrected: {uncorrected}");
}

#[test]
fn fleets_of_any_size_and_load_answer_everybody_once_and_end_empty() {
    for seed in 0..200 {
        let nodes = 1 + (seed * 7 % 40) as usize;
        let load = [0.1, 0.5, 0.9, 1.5][(seed % 4) as usize];
        let policy = Policy::ALL[(seed / 4 % 4) as usize];
        // What must hold is asserted inside.
        let waits = Scene::new(nodes, load, 60.0, seed).play(Router::Flotilla(policy));
        assert!(waits.mean >= 0.0, "seed {seed}: {waits:?}");
    }
}

/// Storms of one run; `FLOTILLA_STORMS` plays more.
const STORMS: u64 = 2_000;
/// Storms after which a bug must have shown.
const STORMS_PER_BUG: u64 = 2_000;

/// What happened, by name.
fn counts(report: &Report) -> [(&'static str, u64); 13] {
    let Counts { resumes, retries, moved, preempted, hedged, refused_retries, outside, paid } =
        report.counts;
    [
        ("complete", report.complete as u64),
        ("failed", report.failed as u64),
        ("refused", report.refused as u64),
        ("left", report.left as u64),
        ("quarantined", report.quarantined as u64),
        ("resumes", resumes),
        ("retries", retries),
        ("moves", moved),
        ("preempted", preempted),
        ("hedges", hedged),
        ("refused retries", refused_retries),
        ("external attempts", outside),
        ("payments", paid),
    ]
}

#[test]
fn storms_harm_nobody() {
    let storms = match std::env::var("FLOTILLA_SEED") {
        Ok(seed) => seed.parse().unwrap()..=seed.parse().unwrap(),
        Err(_) => 1..=std::env::var("FLOTILLA_STORMS").map_or(STORMS, |n| n.parse().unwrap()),
    };
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in storms {
        let report = storm(seed, Bug::None);
        let violations = &report.violations;
        assert!(violations.is_empty(), "FLOTILLA_SEED={seed}: {violations:#?}");
        for (name, count) in counts(&report) {
            *sums.entry(name).or_default() += count;
        }
    }
    eprintln!("{sums:?}");
    if std::env::var("FLOTILLA_SEED").is_err() {
        assert!(sums.values().all(|sum| *sum > 100), "too calm: {sums:?}");
        assert!(sums["complete"] > 5 * sums["failed"], "most are answered: {sums:?}");
    }
}

#[test]
fn every_known_bug_is_noticed() {
    for bug in Bug::ALL {
        let found = (1..=STORMS_PER_BUG).find(|seed| !storm(*seed, bug).violations.is_empty());
        let seed = found.unwrap_or_else(|| panic!("{bug:?} is not noticed"));
        eprintln!("{bug:?}: storm {seed}, {:?}", storm(seed, bug).violations[0]);
    }
}
