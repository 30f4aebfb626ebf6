//! Tests what the pool reports after each operation.

use super::*;

const T: Tenant = Tenant(1);

fn pool() -> KvPool {
    KvPool::new(100, 3, true)
}

fn opened(pool: &mut KvPool, tokens: &[Token]) -> (SeqId, u32) {
    let opened = pool.open(T, tokens).unwrap();
    let shared = opened.shared.map_or(0, |(_, tokens)| tokens);
    pool.append(opened.seq, &tokens[shared as usize..]);
    (opened.seq, shared)
}

fn closed(pool: &mut KvPool, seq: SeqId) -> Vec<SeqId> {
    let mut removed = Vec::new();
    pool.close(seq, &mut removed);
    removed
}

fn evicted(pool: &mut KvPool) -> Option<SeqId> {
    pool.evict().map(|evicted| evicted.seq)
}

#[test]
fn a_prompt_shares_the_longest_beginning_but_never_its_last_token() {
    let mut pool = pool();
    let (a, shared) = opened(&mut pool, &[1, 2, 3, 4]);
    assert_eq!(shared, 0);
    assert_eq!(pool.matching(T, &[1, 2, 3, 4]), 3);
    assert_eq!(pool.matching(T, &[1, 2, 9]), 2);
    assert_eq!(pool.matching(Tenant(2), &[1, 2, 9]), 0);
    let (_, shared) = opened(&mut pool, &[1, 2, 9, 9]);
    assert_eq!(shared, 2);
    assert_eq!(pool.cells(), CellCounts { free: 94, in_use: 6, cached: 0 });
    assert!(closed(&mut pool, a).is_empty());
    assert_eq!(pool.cells(), CellCounts { free: 94, in_use: 4, cached: 2 });
}

#[test]
fn what_another_sequence_holds_whole_is_not_kept_twice() {
    let mut pool = pool();
    let (a, _) = opened(&mut pool, &[1, 2, 3]);
    let (b, _) = opened(&mut pool, &[1, 2, 3, 4, 5]);
    assert_eq!(closed(&mut pool, a), [a]);
    let (c, shared) = opened(&mut pool, &[1, 2, 3, 4, 5, 6]);
    assert_eq!(shared, 5);
    assert_eq!(closed(&mut pool, b), [b]);
    assert!(closed(&mut pool, c).is_empty());
    assert_eq!(pool.cells().in_use, 0);
}

#[test]
fn the_sequence_that_was_used_least_recently_is_evicted_first() {
    let mut pool = pool();
    let (a, _) = opened(&mut pool, &[1, 1]);
    closed(&mut pool, a);
    let (b, _) = opened(&mut pool, &[2, 2]);
    closed(&mut pool, b);
    // A sequence that leaves nothing of its own uses the first one again.
    let (c, shared) = opened(&mut pool, &[1, 3]);
    assert_eq!(shared, 1);
    pool.discard(c);
    assert_eq!(evicted(&mut pool), Some(b));
    assert_eq!(evicted(&mut pool), Some(a));
    assert_eq!(evicted(&mut pool), None);
    assert_eq!(pool.cells().free, 100);
}

#[test]
fn a_kept_sequence_gives_up_its_id_to_a_live_one() {
    let mut pool = pool();
    let (a, _) = opened(&mut pool, &[1, 1]);
    closed(&mut pool, a);
    opened(&mut pool, &[2, 2]);
    opened(&mut pool, &[3, 3]);
    let fourth = pool.open(T, &[4, 4]).unwrap();
    assert_eq!((fourth.seq, fourth.evicted.unwrap().seq), (a, a));
    assert_eq!(pool.open(T, &[5, 5]), None, "all are live");
}

#[test]
fn a_request_evicts_any_other_sequence_before_the_one_that_it_begins_with() {
    let mut pool = pool();
    for first in 1..=3 {
        let (seq, _) = opened(&mut pool, &[first, 7, 8, 9]);
        closed(&mut pool, seq);
    }
    // The oldest is the one whose prefix it shares.
    let new = pool.open(T, &[1, 7, 8, 5, 5]).unwrap();
    assert_eq!((new.seq, new.evicted.unwrap().seq, new.shared), (1, 1, Some((0, 3))));
    pool.append(new.seq, &[5, 5]);
    assert_eq!(pool.cells(), CellCounts { free: 90, in_use: 5, cached: 5 });
}

#[test]
fn the_only_kept_sequence_is_taken_over_by_the_request_that_begins_like_it() {
    let mut pool = KvPool::new(100, 2, true);
    let (kept, _) = opened(&mut pool, &[1, 2, 3, 4, 5]);
    closed(&mut pool, kept);
    opened(&mut pool, &[9, 9]);
    let new = pool.open(T, &[1, 2, 3, 8, 8]).unwrap();
    assert_eq!((new.seq, new.shared), (kept, Some((kept, 3))));
    let lost = Evicted { seq: kept, tenant: T, tokens: vec![1, 2, 3, 4, 5], lost: 2 };
    assert_eq!(new.evicted, Some(lost));
    assert_eq!(pool.cells(), CellCounts { free: 95, in_use: 5, cached: 0 });
    pool.append(kept, &[8, 8]);
    assert_eq!(pool.matching(T, &[1, 2, 3, 4, 5]), 3, "what it had after that is gone");
    pool.discard(kept);
    assert_eq!(pool.cells(), CellCounts { free: 98, in_use: 2, cached: 0 });
}

#[test]
fn what_a_waiting_request_begins_with_is_evicted_last() {
    let mut pool = pool();
    for first in 1..=3 {
        let (seq, _) = opened(&mut pool, &[first, 7, 8]);
        closed(&mut pool, seq);
    }
    pool.protect(T, &[1, 7, 8, 9]);
    pool.protect(T, &[5, 5]);
    assert_eq!([(); 3].map(|()| evicted(&mut pool)), [Some(1), Some(2), Some(0)]);
}

#[test]
fn a_beginning_that_only_kept_sequences_have_is_counted_among_the_cells_it_would_use() {
    let mut pool = pool();
    let (a, _) = opened(&mut pool, &[1, 2, 3, 4]);
    assert_eq!(pool.matching_cached(T, &[1, 2, 3, 4]), 0, "a live one has it");
    closed(&mut pool, a);
    assert_eq!(pool.matching_cached(T, &[1, 2, 9]), 2);
    opened(&mut pool, &[1, 2, 9]);
    assert_eq!(pool.matching_cached(T, &[1, 2, 3, 4, 5]), 2, "the rest is in use now");
}

#[test]
fn without_sharing_nothing_is_kept() {
    let mut pool = KvPool::new(10, 2, false);
    let (a, _) = opened(&mut pool, &[1, 2, 3]);
    assert_eq!(pool.matching(T, &[1, 2, 3]), 0);
    assert_eq!(closed(&mut pool, a), [a]);
    assert_eq!(pool.cells().free, 10);
}

#[test]
fn an_evicted_sequence_tells_its_tokens_and_how_many_are_lost() {
    let mut pool = pool();
    let (a, _) = opened(&mut pool, &[1, 2, 3, 4]);
    closed(&mut pool, a);
    let (b, shared) = opened(&mut pool, &[1, 2, 5, 6]);
    assert_eq!(shared, 2);
    let first = pool.evict().unwrap();
    assert_eq!((first.seq, first.tokens, first.lost), (a, vec![1, 2, 3, 4], 2));
    closed(&mut pool, b);
    let second = pool.evict().unwrap();
    assert_eq!((second.tenant, second.tokens, second.lost), (T, vec![1, 2, 5, 6], 4));
}
