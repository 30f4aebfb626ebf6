//! Tests what the KV pool evicts from models whose sequences share cells: it is saved, and later
//! prompts begin with it.

use super::*;

/// A model that keeps finished sequences in `cells` cells, and saves evicted ones in `bytes`.
fn sharing(slots: u32, cells: u32, bytes: usize) -> FakeModel {
    FakeModel::with_cells(slots, 512, 128, cells).saving(bytes)
}

/// A prompt of `length` tokens that the model repeats, unlike that of any other topic.
pub(super) fn about(topic: u64, length: usize) -> String {
    let text = format!("{topic} is what all of this is about, ");
    text.chars().cycle().take(length - 1).chain(['\0']).collect()
}

pub(super) fn said(bench: &Bench, id: RequestId, prompt: &str) {
    assert_eq!(bench.text(id), prompt.trim_end_matches('\0'), "response {id}");
}

/// Sends prompts one after the other.
pub(super) fn converse(bench: &mut Bench, prompts: &[(RequestId, String)]) {
    for (id, prompt) in prompts {
        bench.submit(*id, prompt);
        bench.run();
        said(bench, *id, prompt);
    }
}

#[test]
fn what_the_pool_evicted_is_not_computed_again() {
    let mut bench = Bench::on(sharing(1, 512, 100_000));
    converse(&mut bench, &[(1, about(1, 200)), (2, about(2, 200))]);
    assert!(bench.engine.stats().evictions > 0);
    assert!(bench.engine.stats().saved_prefix_bytes > 0);
    converse(&mut bench, &[(3, about(1, 200))]);
    assert_eq!(bench.cached(3), 199, "the last token is computed for its logits");
    let stats = bench.engine.stats();
    assert_eq!((stats.restored_prefixes, stats.restored_tokens), (1, 199));
}

#[test]
fn without_memory_for_it_nothing_is_saved() {
    let mut bench = Bench::on(sharing(1, 512, 0));
    converse(&mut bench, &[(1, about(1, 200)), (2, about(2, 200)), (3, about(1, 200))]);
    assert_eq!((bench.cached(3), bench.engine.stats().saved_prefix_bytes), (0, 0));
}

#[test]
fn a_pool_that_evicts_nothing_saves_nothing() {
    let mut bench = Bench::on(sharing(1, 4096, 100_000).with_kept(4));
    converse(&mut bench, &[(1, about(1, 200)), (2, about(2, 200)), (3, about(1, 200))]);
    assert_eq!((bench.cached(3), bench.engine.stats().saved_prefix_bytes), (199, 0));
}

#[test]
fn a_restored_state_is_cut_where_the_prompt_departs() {
    let mut bench = Bench::on(sharing(1, 512, 100_000));
    converse(&mut bench, &[(1, about(1, 200)), (2, about(2, 200))]);
    let other = format!("{}and now else\0", &about(1, 200)[..150]);
    converse(&mut bench, &[(3, other.clone())]);
    assert_eq!(bench.cached(3), 150);
    // What was cut off is still saved.
    converse(&mut bench, &[(4, about(2, 200)), (5, about(1, 200))]);
    assert_eq!([4, 5].map(|id| bench.cached(id)), [199; 2]);
}

#[test]
fn a_sequence_that_loses_its_id_is_saved_as_well() {
    let mut bench = Bench::on(sharing(1, 4096, 100_000).with_kept(0));
    let prompts = [(1, about(1, 200)), (2, about(2, 200)), (3, about(1, 200)), (4, about(2, 200))];
    converse(&mut bench, &prompts);
    assert_eq!([1, 2, 3, 4].map(|id| bench.cached(id)), [0, 0, 199, 199]);
}

#[test]
fn the_end_of_a_sequence_that_another_prompt_takes_over_is_saved() {
    let mut bench = Bench::on(sharing(1, 4096, 100_000).with_kept(0));
    let other = format!("{}but not this\0", &about(1, 200)[..100]);
    converse(&mut bench, &[(1, about(1, 200)), (2, other), (3, about(1, 200))]);
    // The third prompt has more in common with what was saved than with the second.
    assert_eq!([1, 2, 3].map(|id| bench.cached(id)), [0, 100, 199]);
}

#[test]
fn brief_sequences_are_not_saved_and_small_gains_are_not_restored() {
    let mut bench = Bench::on(sharing(1, 4096, 100_000).with_kept(0));
    converse(&mut bench, &[(1, about(1, 25)), (2, about(2, 25)), (3, about(1, 25))]);
    assert_eq!((bench.cached(3), bench.engine.stats().saved_prefix_bytes), (0, 0));
    // 40 tokens more than the pool has are computed again.
    let first = about(4, 200);
    let second = format!("{}x\0", &first[..100]);
    let third = format!("{}y\0", &first[..140]);
    converse(&mut bench, &[(4, first), (5, second), (6, third)]);
    assert_eq!([5, 6].map(|id| bench.cached(id)), [100, 100]);
}

#[test]
fn others_do_not_give_up_their_cells_for_a_small_part_of_a_state() {
    for (cells, cached) in [(2048, 0), (4096, 100)] {
        let model = FakeModel::with_cells(1, 2048, 128, cells).with_kept(1).saving(100_000);
        let mut bench = Bench::on(model);
        // Of 1,399 tokens, another prompt has 100.
        let other = format!("{}and now else\0", &about(1, 700)[..100]);
        let prompts = [(1, about(1, 700)), (2, about(2, 500)), (3, about(3, 500)), (4, other)];
        converse(&mut bench, &prompts);
        assert!(bench.engine.stats().saved_prefix_bytes > 0);
        assert_eq!(bench.cached(4), cached, "in {cells} cells");
    }
}

#[test]
fn a_longer_state_replaces_the_one_it_continues() {
    let mut bench = Bench::on(sharing(1, 4096, 100_000).with_kept(0));
    let first = about(1, 100);
    // The next turn has the whole response as well.
    let next = format!("{first}{}{}", first.trim_end_matches('\0'), about(1, 100));
    bench.submit(1, &first);
    bench.run();
    bench.submit(2, &about(2, 100));
    bench.run();
    let before = bench.engine.stats().saved_prefix_bytes;
    bench.submit(3, &next);
    bench.run();
    bench.submit(4, &about(2, 100));
    bench.run();
    assert_eq!((bench.cached(3), bench.cached(4)), (199, 99));
    // Two conversations, each once: the first one, longer now, and the second.
    let held = (bench.engine.stats().saved_prefix_bytes - before) / 8;
    assert!(held < 500, "{held} tokens more");
}

#[test]
fn no_tenant_begins_with_what_another_saved_but_those_of_a_group_do() {
    let mut bench = Bench::on(sharing(1, 512, 100_000));
    let group = |n| Options { prefix_group: Some(Tenant(n)), ..Options::GREEDY };
    let uncached = Options { uses_cache: false, ..Options::GREEDY };
    let asked = [
        (1, 1, about(1, 200), Options::GREEDY),
        (1, 2, about(2, 200), Options::GREEDY),
        (2, 3, about(1, 200), Options::GREEDY),
        (1, 4, about(1, 200), uncached),
        (1, 5, about(1, 200), Options::GREEDY),
        (3, 6, about(3, 200), group(9)),
        (1, 7, about(2, 200), Options::GREEDY),
        (4, 8, about(3, 200), group(9)),
    ];
    for (tenant, id, prompt, options) in asked {
        bench.submit_with((Tenant(tenant), id), &prompt, options);
        bench.run();
        said(&bench, id, &prompt);
    }
    assert_eq!([3, 4].map(|id| bench.cached(id)), [0; 2]);
    assert_eq!([5, 7, 8].map(|id| bench.cached(id)), [199; 3]);
}

#[test]
fn a_state_that_cannot_be_restored_is_dropped_and_the_next_best_prefix_is_used() {
    let mut bench = Bench::on(sharing(1, 4096, 100_000).with_kept(0));
    let other = format!("{}but not this\0", &about(1, 200)[..100]);
    converse(&mut bench, &[(1, about(1, 200)), (2, other)]);
    bench.engine.model.fail_next_restore = true;
    converse(&mut bench, &[(3, about(1, 200))]);
    assert_eq!(bench.cached(3), 100);
}

#[test]
fn a_preempted_response_that_the_pool_evicted_is_not_computed_again() {
    // Together, the three responses need more than twice the cells.
    let mut bench = Bench::on(sharing(3, 600, 100_000));
    (1..=3).for_each(|id| drop(bench.submit(id, &about(id, 200))));
    bench.run();
    (1..=3).for_each(|id| said(&bench, id, &about(id, 200)));
    let stats = bench.engine.stats();
    assert!(stats.preemptions > 0 && stats.restored_prefixes > 0);
    assert_eq!(bench.prefilled(), 600, "nothing is computed twice");
}

/// Simulates random conversations on any kind of model: every response is right. Returns the
/// statistics.
fn conversations(seed: u64) -> EngineStats {
    let mut rng = Pcg64::seed_from_u64(seed);
    let mut pick = move |n: u32| rng.next_u32() % n;
    let slots = 1 + pick(3);
    let cells = 512 + pick(slots * 300);
    let model = FakeModel::with_cells(slots, 512, 128, cells).saving(pick(20_000) as usize);
    let mut bench = Bench::on(match pick(4) {
        0 => model.without_sharing(),
        1 => model.without_sharing().truncating(),
        _ => model.with_kept(pick(5)),
    });
    let mut asked = BTreeMap::new();
    let mut flags = Vec::new();
    for id in 0..60 {
        let beginning = &about(u64::from(pick(3)), 200)[..64 + pick(130) as usize];
        let prompt = format!("{beginning}{}\0", ["", "x", "and more"][pick(3) as usize]);
        flags.push(bench.submit_for(Tenant(u64::from(pick(2))), id, &prompt));
        asked.insert(id, prompt);
        for _ in 0..pick(60) {
            bench.step();
        }
        if pick(5) == 0 {
            flags[pick(flags.len() as u32) as usize].set();
        }
        bench.engine.model.fail_next_restore = pick(20) == 0;
    }
    bench.run();
    for (id, prompt) in asked {
        let (text, full) = (bench.text(id), prompt.trim_end_matches('\0'));
        match bench.last(id) {
            Event::Finished { reason: FinishReason::Stop, .. } => assert_eq!(text, full),
            Event::Cancelled => assert!(full.starts_with(&text), "seed {seed}: {text}"),
            Event::Failed(Failure::QueueFull) => assert_eq!(text, ""),
            other => panic!("seed {seed}: {other:?}"),
        }
    }
    bench.engine.stats()
}

#[test]
fn random_conversations_on_any_model_end_well() {
    let all: Vec<EngineStats> = (0..200).map(conversations).collect();
    let restored: u64 = all.iter().map(|stats| stats.restored_prefixes).sum();
    assert!(restored > 500, "only {restored} states were restored");
}
