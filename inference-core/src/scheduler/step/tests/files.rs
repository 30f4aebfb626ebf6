//! Tests saved prefixes in files: they survive the engine, and no request waits for them in vain.

use super::evicted::{about, converse, said};
use super::*;
use crate::scheduler::prefix_disk::folder::tests::Temporary;
use crate::scheduler::prefix_disk::{PrefixDisk, PrefixFolder};

const LIMIT: Duration = Duration::from_secs(30);

/// An engine that keeps prefixes in a folder of at most `bytes` bytes.
fn on_disk(temporary: &Temporary, model: FakeModel, bytes: u64) -> Bench {
    let folder = PrefixFolder::open(&temporary.0).unwrap();
    let mut disk = PrefixDisk::start(folder, [1; 32], bytes, Box::new(|_| {})).unwrap();
    disk.wait_until_listed(LIMIT);
    let mut bench = Bench::on(model);
    bench.engine = bench.engine.with_prefix_disk(disk);
    bench
}

fn sharing() -> FakeModel {
    FakeModel::with_cells(1, 1024, 128, 2048).with_kept(4).saving(100_000)
}

fn lean() -> FakeModel {
    FakeModel::with_cells(1, 1024, 128, 1024).without_sharing().saving(100_000)
}

/// Ends the engine as a clean stop does.
fn stop(mut bench: Bench) {
    bench.engine.finish_writing(&|| Duration::ZERO, LIMIT);
}

#[test]
fn a_conversation_continues_after_a_clean_stop() {
    for model in [sharing, lean] {
        let temporary = Temporary::new();
        let mut bench = on_disk(&temporary, model(), 1_000_000);
        converse(&mut bench, &[(1, about(1, 400)), (2, about(2, 400))]);
        assert_eq!(bench.engine.stats().disk_prefix_bytes, 0, "there is memory for it");
        stop(bench);
        let mut bench = on_disk(&temporary, model(), 1_000_000);
        assert!(bench.engine.stats().disk_prefix_bytes > 0);
        let next = format!("{}{}more", about(1, 400), about(1, 400).trim_end_matches('\0'));
        bench.submit(3, &next);
        bench.run();
        assert!(bench.cached(3) >= 799, "{} tokens", bench.cached(3));
        let stats = bench.engine.stats();
        assert_eq!((stats.disk_prefixes, stats.restored_prefixes), (1, 0));
        assert_eq!(stats.disk_tokens, u64::from(bench.cached(3)));
        // It is in memory, or in the pool.
        converse(&mut bench, &[(4, about(1, 400))]);
        assert!(bench.cached(4) >= 384);
        // Where a state cannot be cut, there is a file for the shorter one as well.
        let read = bench.engine.stats().disk_prefixes;
        assert!(read <= if bench.engine.shape.shares_prefixes { 1 } else { 2 });
    }
}

#[test]
fn an_engine_with_nothing_to_do_writes_what_it_has() {
    for model in [sharing, lean] {
        let temporary = Temporary::new();
        let mut bench = on_disk(&temporary, model(), 1_000_000);
        converse(&mut bench, &[(1, about(1, 400)), (2, about(2, 300))]);
        assert!(!bench.engine.stats().is_written);
        while bench.engine.rest(&|| Duration::ZERO) {}
        assert!(bench.engine.stats().is_written);
        bench.submit(9, "more");
        assert!(!bench.engine.stats().is_written);
        // Dropped without a clean stop.
        drop(bench);
        let mut bench = on_disk(&temporary, model(), 1_000_000);
        converse(&mut bench, &[(3, about(1, 400)), (4, about(2, 300))]);
        assert!(bench.cached(3) >= 384 && bench.cached(4) >= 284);
    }
}

#[test]
fn without_a_clean_stop_only_what_was_not_written_is_computed_again() {
    let temporary = Temporary::new();
    let mut bench = on_disk(&temporary, sharing(), 1_000_000);
    converse(&mut bench, &[(1, about(1, 400))]);
    drop(bench);
    let mut bench = on_disk(&temporary, sharing(), 1_000_000);
    converse(&mut bench, &[(2, about(1, 400))]);
    assert_eq!(bench.cached(2), 0);
}

/// Waits until what memory had no room for is written.
fn settle(bench: &mut Bench) {
    loop {
        bench.engine.take_files(&|| Duration::ZERO);
        let disk = bench.engine.disk.as_mut().unwrap();
        if disk.is_settled() {
            return;
        }
        disk.wait(LIMIT);
    }
}

#[test]
fn what_memory_has_no_room_for_is_written_and_read_again() {
    let temporary = Temporary::new();
    // Three quarters of the memory hold one state of 800 tokens.
    let model = FakeModel::with_cells(1, 1024, 128, 1024).with_kept(0).saving(9_000);
    let mut bench = on_disk(&temporary, model, 1_000_000);
    for (round, cached) in [(0, 0), (10, 399), (20, 399)] {
        for topic in 1..=4 {
            converse(&mut bench, &[(round + topic, about(topic, 400))]);
            assert_eq!(bench.cached(round + topic), cached, "topic {topic} in round {round}");
            settle(&mut bench);
        }
    }
    assert!(bench.engine.stats().disk_prefixes >= 4);
}

#[test]
fn others_go_on_while_a_request_waits_for_its_file_and_it_can_be_canceled() {
    let temporary = Temporary::new();
    let mut bench = on_disk(&temporary, sharing(), 1_000_000);
    converse(&mut bench, &[(1, about(1, 400))]);
    stop(bench);
    let mut bench = on_disk(&temporary, sharing(), 1_000_000);
    let waiting = bench.submit(2, &about(1, 400));
    let canceled = bench.submit(3, &about(1, 400));
    bench.submit(4, &about(2, 100));
    bench.step();
    // The only slot is not held by who waits.
    assert!(matches!(bench.events[&4].first(), Some(Event::Started { .. })));
    assert_eq!(bench.engine.stats().queued, 2);
    canceled.set();
    bench.run();
    said(&bench, 2, &about(1, 400));
    said(&bench, 4, &about(2, 100));
    assert_eq!((bench.cached(2), bench.last(3)), (399, &Event::Cancelled));
    drop(waiting);
}

#[test]
fn a_damaged_or_vanished_file_costs_only_its_gain() {
    for vanishes in [false, true] {
        let temporary = Temporary::new();
        let mut bench = on_disk(&temporary, sharing(), 1_000_000);
        converse(&mut bench, &[(1, about(1, 400))]);
        stop(bench);
        let mut bench = on_disk(&temporary, sharing(), 1_000_000);
        let file = &temporary.files()[0];
        match vanishes {
            true => std::fs::remove_file(file).unwrap(),
            false => {
                let mut bytes = std::fs::read(file).unwrap();
                *bytes.last_mut().unwrap() ^= 1;
                std::fs::write(file, bytes).unwrap();
            }
        }
        converse(&mut bench, &[(2, about(1, 400))]);
        assert_eq!(bench.cached(2), 0);
        assert_eq!(bench.engine.stats().disk_prefix_bytes, 0);
    }
}

#[test]
fn a_file_that_takes_too_long_is_not_waited_for() {
    let temporary = Temporary::new();
    let mut bench = on_disk(&temporary, sharing(), 1_000_000);
    converse(&mut bench, &[(1, about(1, 400))]);
    stop(bench);
    let mut bench = on_disk(&temporary, sharing(), 1_000_000);
    // Every look at the clock is an hour later than the last one.
    bench.step_time = Duration::from_secs(3600);
    converse(&mut bench, &[(2, about(1, 400))]);
    assert!(bench.cached(2) == 0 || bench.cached(2) == 399, "in time or not");
}

#[test]
fn a_state_that_cannot_be_restored_is_deleted_and_other_tenants_find_nothing() {
    let temporary = Temporary::new();
    let mut bench = on_disk(&temporary, sharing(), 1_000_000);
    converse(&mut bench, &[(1, about(1, 400))]);
    stop(bench);
    let mut bench = on_disk(&temporary, sharing(), 1_000_000);
    bench.submit_for(Tenant(7), 2, &about(1, 400));
    bench.run();
    assert_eq!(bench.cached(2), 0);
    bench.engine.model.fail_next_restore = true;
    converse(&mut bench, &[(3, about(1, 400))]);
    assert_eq!(bench.cached(3), 0);
    assert_eq!(bench.engine.stats().disk_prefix_bytes, 0);
    drop(bench);
    assert!(temporary.files().is_empty());
}

#[test]
fn small_gains_are_not_worth_a_file() {
    let temporary = Temporary::new();
    let mut bench = on_disk(&temporary, sharing(), 1_000_000);
    converse(&mut bench, &[(1, about(1, 120))]);
    stop(bench);
    let mut bench = on_disk(&temporary, sharing(), 1_000_000);
    converse(&mut bench, &[(2, about(1, 120))]);
    assert_eq!(bench.cached(2), 0);
}
