//! Tests drafts: the same responses in fewer steps.

use super::*;

impl Bench {
    /// With drafts, on a machine whose steps take the same time whatever their rows.
    pub(super) fn drafting(mut self) -> Self {
        self.engine = self.engine.with_speculation(true);
        self.step_time = Duration::from_millis(10);
        self
    }
}

/// A text that repeats itself with changes.
const TEXT: &str = "one two three, one two four, one two three, two four\0";

fn options(sampled: u32) -> Options {
    let stop = if sampled == 2 { vec!["four, one".into()] } else { Vec::new() };
    Options { stop, logprobs: (sampled == 1).then_some(2), ..Options::GREEDY }
}

/// The events of a response without the pieces in which text came, and the steps that it took.
fn response(bench: Bench, options: Options) -> (String, Vec<Token>, Vec<f32>, Event, EngineStats) {
    let mut bench = bench;
    bench.submit_with((Tenant(0), 1), TEXT, options);
    bench.run();
    let mut chunks = bench.events[&1].iter().filter_map(|event| match event {
        Event::Text(chunk) => Some(chunk),
        _ => None,
    });
    let mut tokens: Vec<Token> = chunks.clone().flat_map(|c| c.tokens.clone()).collect();
    let logprobs = chunks.by_ref().flat_map(|c| &c.logprobs).map(|l| l.chosen.logprob).collect();
    let mut last = bench.last(1).clone();
    if let Event::Finished { tokens: held, times, .. } = &mut last {
        tokens.append(held);
        let stats = bench.engine.stats();
        let counted = (u64::from(times.drafted), u64::from(times.accepted));
        assert_eq!(counted, (stats.drafted_tokens, stats.accepted_tokens));
        *times = Default::default();
    }
    (bench.text(1), tokens, logprobs, last, bench.engine.stats())
}

#[test]
fn a_response_with_drafts_is_the_same_in_fewer_steps() {
    for sampled in 0..3 {
        let plain = response(Bench::new(2, 32), options(sampled));
        let drafted = response(Bench::new(2, 32).drafting(), options(sampled));
        assert_eq!(
            (&plain.0, &plain.1, &plain.2, &plain.3),
            (&drafted.0, &drafted.1, &drafted.2, &drafted.3)
        );
        let (plain, drafted) = (plain.4, drafted.4);
        assert!(drafted.steps * 3 < plain.steps * 2, "{} and {} steps", drafted.steps, plain.steps);
        assert!(drafted.accepted_tokens > 0 && drafted.drafted_tokens >= drafted.accepted_tokens);
        assert_eq!(drafted.generated_tokens, plain.generated_tokens);
    }
}

#[test]
fn drafts_never_go_beyond_the_context_or_the_wanted_tokens() {
    for max_tokens in [None, Some(1), Some(2), Some(7), Some(20)] {
        let mut bench = Bench::new(1, 32).drafting();
        // Without an end, it repeats its first token.
        bench.submit_with((Tenant(0), 1), "aaaaaa", Options { max_tokens, ..Options::GREEDY });
        bench.run();
        let expected = max_tokens.unwrap_or(58).min(58) as usize;
        assert_eq!(bench.text(1), "a".repeat(expected));
        let rows = bench.engine.model.batches.iter().map(Vec::len).max();
        assert!(max_tokens.is_some_and(|n| n < 7) || rows > Some(3), "{rows:?} rows");
    }
}

#[test]
fn there_are_no_drafts_beside_a_prompt_or_on_a_model_that_cannot_take_them_back() {
    let mut bench = Bench::on(FakeModel::new(2, 64, 8).without_sharing()).drafting();
    bench.submit(1, "aaaaaa");
    bench.run();
    assert_eq!(bench.engine.stats().drafted_tokens, 0);
    let mut bench = Bench::new(2, 8).drafting();
    bench.submit(1, "aaaaaa");
    (0..6).for_each(|_| bench.step());
    bench.submit(2, &"a long prompt ".repeat(4));
    let before = bench.engine.stats();
    assert!(before.drafted_tokens > 0);
    bench.step();
    let after = bench.engine.stats();
    assert_eq!(after.generated_tokens, before.generated_tokens + 1);
}

#[test]
fn a_response_that_is_canceled_in_the_middle_of_its_drafts_keeps_what_it_had() {
    let mut bench = Bench::new(1, 32).drafting();
    let cancel = bench.submit(1, "aaaaaa");
    (0..4).for_each(|_| bench.step());
    let before = bench.engine.stats();
    bench.step_while(|| cancel.set());
    bench.run();
    assert_eq!(bench.last(1), &Event::Cancelled);
    assert_eq!(bench.engine.stats().generated_tokens, before.generated_tokens);
    let other = "aaaaaa".repeat(2) + "\0";
    bench.submit(2, &other);
    bench.run();
    assert_eq!(bench.text(2), other.trim_end_matches('\0'));
}
