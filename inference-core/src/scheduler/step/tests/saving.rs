//! Tests saved prefixes, which models need whose sequences cannot share KV cells.

use super::*;

/// A model that cannot share cells, with contexts that are worth saving.
fn lean(slots: u32, cells: u32) -> FakeModel {
    FakeModel::with_cells(slots, 1024, 128, cells).without_sharing().saving(100_000)
}

fn long(length: usize) -> String {
    "system prompt of an agent, with tools. ".chars().cycle().take(length).collect()
}

/// A prompt of this text, which the model repeats.
fn prompt(text: &str) -> String {
    format!("{text}\0")
}

#[test]
fn the_next_turn_of_a_conversation_begins_where_the_last_response_ended() {
    let mut bench = Bench::on(lean(1, 1024));
    let first = prompt(&long(99));
    bench.submit(1, &first);
    bench.run();
    assert_eq!((bench.cached(1), bench.text(1)), (0, long(99)));
    // Its prompt, its response, and more.
    bench.submit(2, &format!("{first}{}and now this", long(99)));
    (0..3).for_each(|_| bench.step());
    assert_eq!(bench.prefilled(), 100 + 12, "only what is new");
    assert!(bench.engine.stats().saved_prefix_bytes > 0);
}

#[test]
fn the_same_long_prompt_is_computed_once_and_short_ones_are_not_saved() {
    let mut bench = Bench::on(lean(1, 1024));
    for id in [1, 2] {
        bench.submit(id, &prompt(&long(399)));
        bench.run();
        assert_eq!(bench.text(id), long(399));
    }
    assert_eq!(bench.cached(2), 400 - 16, "up to the header of the response");
    let mut bench = Bench::on(lean(1, 1024));
    for id in [1, 2] {
        bench.submit(id, &prompt("brief"));
        bench.run();
    }
    assert_eq!((bench.cached(2), bench.engine.stats().saved_prefix_bytes), (0, 0));
}

#[test]
fn prompts_that_begin_alike_share_what_the_second_one_saved() {
    let mut bench = Bench::on(lean(1, 1024));
    for (id, ending) in [(1, "first question"), (2, "another one"), (3, "third")] {
        bench.submit(id, &prompt(&format!("{}{ending}", long(150))));
        bench.run();
        assert_eq!(bench.text(id), format!("{}{ending}", long(150)));
    }
    assert_eq!([1, 2, 3].map(|id| bench.cached(id)), [0, 0, 150]);
}

#[test]
fn prompts_that_begin_alike_and_arrive_together_wait_for_the_first() {
    let mut bench = Bench::on(lean(4, 4096));
    let text = |id: u64| format!("{}{id}", long(300));
    (1..=4).for_each(|id| drop(bench.submit(id, &prompt(&text(id)))));
    bench.run();
    for id in 1..=4 {
        assert_eq!(bench.text(id), text(id));
        assert_eq!(bench.cached(id), if id == 1 { 0 } else { 300 });
    }
}

#[test]
fn a_leader_that_leaves_does_not_stop_the_others() {
    let mut bench = Bench::on(lean(3, 4096));
    let cancel = bench.submit(1, &prompt(&format!("{}1", long(300))));
    (2..=3).for_each(|id| drop(bench.submit(id, &prompt(&format!("{}{id}", long(300))))));
    (0..3).for_each(|_| bench.step());
    let computed = bench.prefilled() as u32;
    assert!((64..300).contains(&computed));
    cancel.set();
    bench.run();
    (2..=3).for_each(|id| assert_eq!(bench.text(id), format!("{}{id}", long(300))));
    // What the first one had computed is saved when it leaves.
    assert_eq!(bench.cached(2), computed);
}

#[test]
fn other_tenants_and_requests_without_cache_compute_their_prompts_themselves() {
    let mut bench = Bench::on(lean(1, 1024));
    let text = prompt(&long(399));
    let uncached = Options { uses_cache: false, ..Options::GREEDY };
    bench.submit_with((Tenant(1), 0), &text, uncached.clone());
    bench.run();
    assert_eq!(bench.engine.stats().saved_prefix_bytes, 0);
    bench.submit_for(Tenant(1), 1, &text);
    bench.run();
    bench.submit_for(Tenant(2), 2, &text);
    bench.submit_with((Tenant(1), 3), &text, uncached);
    bench.run();
    assert_eq!([1, 2, 3].map(|id| bench.cached(id)), [0; 3]);
}

#[test]
fn tenants_of_a_group_share_what_one_of_them_computed() {
    for model in [lean(1, 1024), FakeModel::new(1, 1024, 128)] {
        let mut bench = Bench::on(model);
        let group = |n| Options { prefix_group: Some(Tenant(n)), ..Options::GREEDY };
        for (tenant, id, options) in
            [(1, 1, group(9)), (2, 2, group(9)), (3, 3, group(8)), (4, 4, Options::GREEDY)]
        {
            bench.submit_with((Tenant(tenant), id), &prompt(&long(399)), options);
            bench.run();
            assert_eq!(bench.text(id), long(399));
        }
        assert!(bench.cached(2) >= 384);
        assert_eq!([1, 3, 4].map(|id| bench.cached(id)), [0; 3]);
    }
}

#[test]
fn a_preempted_response_continues_with_its_saved_state() {
    let mut bench = Bench::on(lean(2, 1024));
    // Together, the responses need 1200 cells.
    let text = |id: u64| format!("{id}{}", long(298));
    (1..=2).for_each(|id| drop(bench.submit(id, &prompt(&text(id)))));
    bench.run();
    (1..=2).for_each(|id| assert_eq!(bench.text(id), text(id)));
    assert!(bench.engine.stats().preemptions > 0);
    assert_eq!(bench.prefilled(), 600, "nothing is computed twice");
}

#[test]
fn a_state_that_cannot_be_restored_is_dropped_and_the_prompt_is_computed() {
    let mut bench = Bench::on(lean(1, 1024));
    for id in [1, 2, 3] {
        bench.engine.model.fail_next_restore = id == 2;
        bench.submit(id, &prompt(&long(399)));
        bench.run();
        assert_eq!(bench.text(id), long(399));
    }
    assert_eq!([1, 2, 3].map(|id| bench.cached(id)), [0, 0, 399]);
}

#[test]
fn a_prompt_whose_batch_is_stopped_is_not_saved_without_its_state() {
    let mut bench = Bench::on(lean(1, 1024));
    let cancel = bench.submit(1, &prompt(&long(399)));
    bench.step();
    bench.step_while(|| cancel.set());
    assert_eq!(bench.engine.stats().saved_prefix_bytes, 0);
    bench.submit(2, &prompt(&long(399)));
    bench.run();
    assert_eq!((bench.cached(2), bench.text(2)), (0, long(399)));
}
