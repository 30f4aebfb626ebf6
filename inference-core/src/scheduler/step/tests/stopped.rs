//! Tests batches whose requests are all canceled before they are computed.

use super::*;

#[test]
fn a_canceled_prompt_is_stopped_in_the_middle_of_its_batch() {
    let mut bench = Bench::new(2, 16);
    let cancel = bench.submit(1, &format!("{SYSTEM}\0"));
    bench.step_while(|| cancel.set());
    assert_eq!(bench.last(1), &Event::Cancelled, "in the same step");
    assert!(bench.engine.is_idle());
    assert_eq!((bench.prefilled(), bench.engine.model.cells()), (0, 0));
}

#[test]
fn what_a_stopped_prompt_had_before_is_kept_and_no_more() {
    let mut bench = Bench::new(2, 16);
    let prompt = format!("{SYSTEM}\0");
    let cancel = bench.submit(1, &prompt);
    bench.step();
    bench.step_while(|| cancel.set());
    assert_eq!(bench.last(1), &Event::Cancelled);
    assert_eq!(bench.engine.pool.cells().cached, 16);
    bench.submit(2, &prompt);
    bench.run();
    assert_eq!((bench.cached(2), bench.text(2)), (16, SYSTEM.to_string()));
}

#[test]
fn a_batch_that_somebody_still_wants_is_not_stopped() {
    let mut bench = Bench::new(2, 16);
    bench.submit(1, "a");
    bench.step();
    let cancel = bench.submit(2, "long prompt of one that leaves\0");
    let before = bench.text(1).len();
    bench.step_while(|| cancel.set());
    assert_eq!(bench.text(1).len(), before + 1, "the other one gets its token");
    bench.step();
    assert_eq!(bench.last(2), &Event::Cancelled);
}

#[test]
fn a_model_that_cannot_take_back_its_state_loses_it_with_the_request() {
    let mut bench = Bench::on(FakeModel::new(1, 64, 16).without_sharing());
    let prompt = format!("{SYSTEM}\0");
    let cancel = bench.submit(1, &prompt);
    bench.step();
    bench.step_while(|| cancel.set());
    assert_eq!(bench.engine.pool.cells().free, 64);
    bench.submit(2, &prompt);
    bench.run();
    assert_eq!((bench.cached(2), bench.text(2)), (0, SYSTEM.to_string()));
}

#[test]
fn a_batch_is_not_stopped_if_that_would_break_the_states_of_sequences_that_are_not_in_it() {
    let prompt = format!("{SYSTEM}\0");
    let mut bench = Bench::on(FakeModel::new(2, 64, 8).without_sharing());
    bench.submit(1, &prompt);
    bench.step();
    // A shorter prompt goes first, and takes the whole batch.
    let cancel = bench.submit(2, "12345678\0");
    let before = bench.engine.stats().steps;
    bench.step_while(|| cancel.set());
    assert_eq!(bench.engine.model.batches[before as usize].len(), 8, "it was computed");
    bench.run();
    assert_eq!(bench.last(2), &Event::Cancelled);
    assert_eq!(bench.text(1), SYSTEM);
}

#[test]
fn models_that_share_nothing_answer_park_and_go_on() {
    let model = FakeModel::with_cells(4, 64, 16, 96).without_sharing();
    let mut bench = Bench::on(model);
    let prompt = |id: u64| format!("{}{}\0", char::from(b'a' + id as u8), "bcdefghij".repeat(2));
    (0..8).for_each(|id| drop(bench.submit(id, &prompt(id))));
    bench.run();
    (0..8).for_each(|id| assert_eq!(bench.text(id), prompt(id).trim_end_matches('\0')));
    assert!(bench.engine.stats().preemptions > 0);
    assert_eq!(bench.engine.pool.cells().cached, 0);
}
