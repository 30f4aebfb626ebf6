//! Tests the engine on the fake model: single behaviors, and long simulations with seeds.

use std::cell::Cell;
use std::collections::BTreeMap;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::*;
use crate::scheduler::fake::{FakeModel, FakeTokenizer};
use crate::scheduler::sampler::ResolvedOptions;
use crate::scheduler::sequence::CancelFlag;
use crate::types::model::Tokenizer;
use crate::types::request::{Options, RequestId, Tenant};

mod evicted;
mod files;
mod limits;
mod prompt_logprobs;
mod resume;
mod saving;
mod slots;
mod stopped;

mod drafts;

struct Bench {
    engine: Engine<FakeModel>,
    /// Advances with every look at the clock.
    now: Cell<Duration>,
    /// Seconds that a batch takes.
    step_time: Duration,
    events: BTreeMap<RequestId, Vec<Event>>,
}

impl Bench {
    fn new(slots: u32, batch_rows: u32) -> Self {
        Self::on(FakeModel::new(slots, 64, batch_rows))
    }

    fn on(model: FakeModel) -> Self {
        let engine = Engine::new(model, 8);
        Self { engine, now: Cell::default(), step_time: Duration::ZERO, events: BTreeMap::new() }
    }

    fn submit(&mut self, id: RequestId, prompt: &str) -> CancelFlag {
        self.submit_for(Tenant(0), id, prompt)
    }

    fn submit_for(&mut self, tenant: Tenant, id: RequestId, prompt: &str) -> CancelFlag {
        self.submit_with((tenant, id), prompt, Options::GREEDY)
    }

    fn submit_with(
        &mut self,
        (tenant, id): (Tenant, RequestId),
        prompt: &str,
        options: Options,
    ) -> CancelFlag {
        let cancel = CancelFlag::default();
        let tokens = |text: &str| FakeTokenizer.tokenize(text, false).unwrap();
        let prediction = options.prediction.as_deref().map_or(Vec::new(), tokens).into();
        let job = Job {
            id,
            tenant,
            tokens: tokens(prompt),
            resumed_len: 0,
            options,
            visible: Vec::new(),
            grammar: None,
            in_reasoning: false,
            resolved: ResolvedOptions { prediction, ..Default::default() },
            cancel: cancel.clone(),
        };
        let events = &mut self.events;
        self.engine.submit(job, &mut |id, e| events.entry(id).or_default().push(e));
        cancel
    }

    fn step(&mut self) {
        self.step_while(|| {});
    }

    /// Runs a step and calls `happens` right before its batch.
    fn step_while(&mut self, happens: impl Fn()) {
        let events = &mut self.events;
        let clock = || {
            happens();
            self.now.update(|now| now + self.step_time);
            self.now.get()
        };
        self.engine.step(&clock, &mut |id, e| events.entry(id).or_default().push(e));
        self.check_cells();
    }

    /// Checks that the pool's bookkeeping matches the model.
    fn check_cells(&self) {
        let cells = self.engine.pool.cells();
        assert_eq!(cells.in_use + cells.cached, self.engine.model.cells());
        assert_eq!(cells.free + cells.in_use + cells.cached, self.engine.shape.kv_cells);
    }

    fn run(&mut self) {
        for _ in 0..10_000 {
            if self.engine.is_idle() {
                assert_eq!(self.engine.pool.cells().in_use, 0, "nothing is in use when idle");
                return;
            }
            self.step();
        }
        panic!("the engine never became idle");
    }

    fn text(&self, id: RequestId) -> String {
        let text = |e: &Event| match e {
            Event::Text(shown) => Some(shown.text.clone()),
            _ => None,
        };
        self.events[&id].iter().filter_map(text).collect()
    }

    fn last(&self, id: RequestId) -> &Event {
        let events = &self.events[&id];
        assert_eq!(events.iter().filter(|e| e.is_last()).count(), 1, "one outcome each");
        events.last().unwrap()
    }

    fn cached(&self, id: RequestId) -> u32 {
        match self.last(id) {
            Event::Finished { cached_tokens, .. } => *cached_tokens,
            other => panic!("{other:?}"),
        }
    }

    fn prefilled(&self) -> u64 {
        self.engine.stats.prompt_tokens
    }
}

#[test]
fn more_requests_than_slots_are_all_answered_and_none_gets_anothers_text() {
    let mut bench = Bench::new(3, 16);
    let prompt = |id| format!("<{}>\0", "xyz".repeat(id as usize + 1));
    (0..8).for_each(|id| drop(bench.submit(id, &prompt(id))));
    bench.run();
    for id in 0..8 {
        assert_eq!(bench.text(id), prompt(id).trim_end_matches('\0'));
        assert!(matches!(bench.last(id), Event::Finished { reason: FinishReason::Stop, .. }));
    }
}

#[test]
fn every_decoding_sequence_advances_in_every_step_whatever_is_prefilled() {
    let mut bench = Bench::new(2, 8);
    bench.submit(1, "a");
    bench.step();
    bench.submit(2, &"long".repeat(10));
    for _ in 0..5 {
        let before = bench.text(1).len();
        bench.step();
        assert_eq!(bench.text(1).len(), before + 1);
    }
}

#[test]
fn a_cancelled_request_gets_no_token_after_the_flag_is_set() {
    let mut bench = Bench::new(1, 8);
    let running = bench.submit(1, "a");
    let queued = bench.submit(2, "b");
    bench.step();
    running.set();
    queued.set();
    let text = bench.text(1);
    bench.run();
    assert_eq!(bench.text(1), text);
    assert_eq!((bench.last(1), bench.last(2)), (&Event::Cancelled, &Event::Cancelled));
    assert_eq!(bench.engine.stats().generated_tokens, text.len() as u64);
}

#[test]
fn a_failed_batch_fails_its_requests_and_no_others() {
    let mut bench = Bench::new(1, 8);
    bench.submit(1, "a\0");
    bench.submit(2, "b\0");
    bench.engine.model.fail_after(0);
    bench.run();
    assert!(matches!(bench.last(1), Event::Failed(Failure::Decode(_))));
    assert_eq!(bench.text(2), "b");
}

#[test]
fn a_full_queue_refuses_and_the_rest_goes_on() {
    let mut bench = Bench::new(1, 8);
    (0..9).for_each(|id| drop(bench.submit(id, "a\0")));
    assert_eq!(bench.last(8), &Event::Failed(Failure::QueueFull));
    bench.run();
    assert!(matches!(bench.last(7), Event::Finished { .. }));
}

#[test]
fn an_endless_answer_ends_with_the_context() {
    let mut bench = Bench::new(1, 8);
    bench.submit(1, "a");
    bench.run();
    let (reason, completion_tokens) = (FinishReason::Length, 63);
    let (tokens, times) = (Vec::new(), Default::default());
    let expected = Event::Finished { reason, completion_tokens, cached_tokens: 0, tokens, times };
    assert_eq!(bench.last(1), &expected);
}

const SYSTEM: &str = "you are a helpful assistant, ";

#[test]
fn a_second_turn_computes_only_what_is_new() {
    let mut bench = Bench::new(2, 16);
    bench.submit(1, "hello\0");
    bench.run();
    let before = bench.prefilled();
    bench.submit(2, "hello\0hello and more\0");
    bench.run();
    // "hello", its end mark and the response are cached; the end token of the response is not.
    assert_eq!(bench.cached(2), 11);
    assert_eq!(bench.prefilled() - before, 10);
}

#[test]
fn prompts_that_begin_alike_are_prefilled_once_even_side_by_side() {
    let mut bench = Bench::new(8, 16);
    let prompt = |id| format!("{SYSTEM}{id}\0");
    (0..8).for_each(|id| drop(bench.submit(id, &prompt(id))));
    bench.run();
    let one = SYSTEM.len() as u64 + 2;
    assert_eq!(bench.prefilled(), one + 7 * 2);
    (0..8).for_each(|id| assert_eq!(bench.text(id), prompt(id).trim_end_matches('\0')));
}

#[test]
fn those_who_wait_for_a_prefix_go_on_when_its_owner_leaves() {
    let mut bench = Bench::new(3, 4);
    let leader = bench.submit(0, &format!("{SYSTEM}0\0"));
    bench.submit(1, &format!("{SYSTEM}1\0"));
    bench.submit(2, &format!("{SYSTEM}2\0"));
    bench.step();
    bench.step();
    leader.set();
    bench.run();
    assert_eq!(bench.text(1), format!("{SYSTEM}1"));
    assert_eq!(bench.text(2), format!("{SYSTEM}2"));
    assert_eq!(bench.prefilled(), SYSTEM.len() as u64 + 4, "what it had computed is used");
}

#[test]
fn nobody_is_served_from_another_tenants_prefix() {
    let mut bench = Bench::new(2, 16);
    let prompt = format!("{SYSTEM}x\0");
    bench.submit_for(Tenant(1), 1, &prompt);
    bench.run();
    bench.submit_for(Tenant(2), 2, &prompt);
    bench.submit_for(Tenant(1), 3, &prompt);
    bench.run();
    assert_eq!((bench.cached(2), bench.cached(3)), (0, prompt.len() as u32 - 1));
}

#[test]
fn kept_prefixes_make_room_for_the_living_oldest_first() {
    let mut bench = Bench::on(FakeModel::with_cells(1, 64, 16, 64));
    bench.submit(1, &format!("first {SYSTEM}\0"));
    bench.run();
    bench.submit(2, "second\0");
    bench.run();
    let long = "third, which takes the cells\0".to_string();
    bench.submit(3, &long);
    bench.run();
    assert_eq!(bench.text(3), long.trim_end_matches('\0'));
    assert!(bench.engine.stats().evictions >= 1);
}

#[test]
fn too_few_cells_park_the_youngest_and_fail_nobody() {
    // Four responses of up to 64 tokens, and KV cells for one and a half.
    let mut bench = Bench::on(FakeModel::with_cells(4, 64, 16, 96));
    let prompt = |id: u64| format!("{}{}\0", char::from(b'a' + id as u8), "bcdefghij".repeat(2));
    (0..4).for_each(|id| drop(bench.submit(id, &prompt(id))));
    bench.run();
    (0..4).for_each(|id| assert_eq!(bench.text(id), prompt(id).trim_end_matches('\0')));
    assert!(bench.engine.stats().preemptions > 0);
}

#[test]
fn a_request_keeps_the_prefix_that_it_is_about_to_reuse() {
    let beginning = &SYSTEM[..20];
    for kept in 1..4 {
        let mut bench = Bench::on(FakeModel::with_cells(1, 64, 16, 512).with_kept(kept));
        for id in 0..=u64::from(kept) {
            bench.submit(id, &format!("{id}{beginning}\0"));
            bench.run();
        }
        // Every sequence id is taken, and the one with the common prefix is the least recently
        // used.
        bench.submit(9, &format!("0{beginning}and more\0"));
        bench.run();
        assert_eq!((bench.cached(9), bench.engine.stats().evictions), (21, 1), "{kept} kept");
        assert_eq!(bench.text(9), format!("0{beginning}and more"));
    }
}

#[test]
fn the_prefix_of_a_request_that_waits_for_cells_outlives_all_others() {
    let mut bench = Bench::on(FakeModel::with_cells(3, 64, 16, 150));
    for (id, prompt) in [(1, format!("{SYSTEM}\0")), (2, "2-other\0".to_string())] {
        bench.submit(id, &prompt);
        bench.run();
    }
    let leaver = bench.submit(3, "a");
    bench.submit(4, "b");
    while bench.engine.pool.cells().free > 0 {
        bench.step();
    }
    bench.submit(5, &format!("{SYSTEM}{}\0", "y".repeat(32)));
    (0..3).for_each(|_| bench.step());
    assert_eq!(bench.engine.stats().queued, 1, "there are too few cells for it");
    assert_eq!(bench.engine.stats().evictions, 1, "the two before it took some");
    leaver.set();
    bench.run();
    assert_eq!(bench.cached(5), SYSTEM.len() as u32);
}

/// Simulates a day of random requests: every response is right, every cell is recorded, nothing is
/// left. Returns the statistics of the engine.
fn day(seed: u64) -> EngineStats {
    let mut rng = Pcg64::seed_from_u64(seed);
    let mut pick = move |n: u32| rng.next_u32() % n;
    let (slots, batch_rows) = (1 + pick(6), 4 + pick(30));
    let cells = 64 + pick(slots * 64);
    let model = FakeModel::with_cells(slots, 64, batch_rows, cells).outputting_states();
    let mut bench = Bench::on(match pick(8) {
        0 => model.without_sharing(),
        // Room for about ten prefixes of the length of SYSTEM.
        4 => model.without_sharing().saving(pick(4000) as usize),
        5 => model.without_sharing().truncating().saving(pick(4000) as usize),
        6 => model.without_sharing().returning().saving(pick(4000) as usize),
        7 => model.without_sharing().returning(),
        1 => model.with_kept(pick(3)),
        _ => model,
    });
    bench = match pick(7) {
        0 => bench.drafting(),
        3 | 4 => {
            let (lanes, mistakes) = (1 + pick(4), pick(5));
            bench.with_mtp_head(lanes, mistakes)
        }
        1 => {
            let mistakes = pick(5);
            bench.with_draft_model(mistakes)
        }
        2 => {
            let mistakes = pick(5);
            bench.with_recurrent_draft_model(mistakes)
        }
        _ => bench,
    };
    let mut asked = BTreeMap::new();
    let mut flags = Vec::new();
    for id in 0..120 {
        let beginning = &SYSTEM[..pick(SYSTEM.len() as u32) as usize];
        let own = ["", "x", "tell me", "count to ten"][pick(4) as usize];
        let prompt = format!("{beginning}{own}{}\0", pick(3));
        flags.push(bench.submit_for(Tenant(u64::from(pick(2))), id, &prompt));
        asked.insert(id, prompt);
        for _ in 0..pick(12) {
            bench.step();
        }
        let leaver = &flags[pick(flags.len() as u32) as usize];
        match pick(10) {
            0 => leaver.set(),
            1 => bench.step_while(|| leaver.set()),
            _ => {}
        }
    }
    bench.run();
    for (id, prompt) in asked {
        let (said, full) = (bench.text(id), prompt.trim_end_matches('\0'));
        match bench.last(id) {
            Event::Finished { reason: FinishReason::Stop, .. } => assert_eq!(said, full),
            Event::Finished { reason: FinishReason::Length, .. } | Event::Cancelled => {
                assert!(full.starts_with(&said), "seed {seed}: {said:?} for {full:?}");
            }
            Event::Failed(Failure::QueueFull) => assert_eq!(said, ""),
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    bench.engine.stats()
}

#[test]
fn days_with_random_requests_end_well() {
    let days: Vec<EngineStats> = (0..300).map(day).collect();
    let preemptions: u64 = days.iter().map(|day| day.preemptions).sum();
    assert!(preemptions > 100, "only {preemptions} preemptions put the days to work");
    let drafted: u64 = days.iter().map(|day| day.drafted_tokens).sum();
    let accepted: u64 = days.iter().map(|day| day.accepted_tokens).sum();
    assert!(
        accepted > 100 && drafted > accepted + 100,
        "{accepted} of {drafted} drafts were right"
    );
}

#[test]
fn a_prefill_is_reported_from_its_start_to_its_end_and_before_any_text() {
    let mut bench = Bench::new(2, 8);
    let options = Options { reports_prefill: true, ..Options::GREEDY };
    let prompt = format!("{}\0", "long".repeat(9));
    for id in [1, 2] {
        bench.submit_with((Tenant(0), id), &prompt, options.clone());
        bench.run();
    }
    let reports = |bench: &Bench, id| {
        let report = |event: &Event| match event {
            Event::Prefilled { tokens, cached_tokens, .. } => Some((*tokens, *cached_tokens)),
            _ => None,
        };
        bench.events[&id].iter().filter_map(report).collect::<Vec<_>>()
    };
    // All steps take no time, so only the first and the last count.
    assert_eq!(reports(&bench, 1), [(0, 0), (37, 0)]);
    assert_eq!(reports(&bench, 2), [(36, 36), (37, 36)]);
    let events = &bench.events[&1];
    let last = events.iter().rposition(|event| matches!(event, Event::Prefilled { .. }));
    assert!(last < events.iter().position(|event| matches!(event, Event::Text(_))));
}
