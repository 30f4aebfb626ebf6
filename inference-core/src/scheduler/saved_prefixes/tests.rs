//! Tests which prefixes are found, and which give way.

use super::*;

const A: Tenant = Tenant(1);
const B: Tenant = Tenant(2);
const COUNT_MAX: usize = 256;

fn store(bytes_max: u64) -> SavedPrefixes<u64> {
    SavedPrefixes::new(bytes_max, COUNT_MAX)
}

fn tokens(range: std::ops::Range<u32>) -> Vec<Token> {
    range.collect()
}

/// Inserts a prefix whose payload is the size of its state; returns the payloads of the dropped.
fn insert(
    saved: &mut SavedPrefixes<u64>,
    tenant: Tenant,
    tokens: &[Token],
    bytes: u64,
) -> Vec<u64> {
    let mut dropped = Vec::new();
    saved.insert(Prefix::new(tenant, tokens, bytes, bytes), &mut dropped);
    dropped.into_iter().map(|prefix| prefix.payload).collect()
}

#[test]
fn the_longest_whole_prefix_is_found_and_only_for_its_tenant() {
    let mut saved = store(10_000);
    for (length, bytes) in [(10, 1), (20, 2), (40, 3)] {
        assert!(insert(&mut saved, A, &tokens(0..length), bytes).is_empty());
    }
    let prompt = tokens(0..30);
    assert_eq!(saved.longest(A, &prompt).unwrap().payload, 2);
    assert_eq!((saved.matching(A, &prompt), saved.common(A, &prompt)), (20, 30));
    assert!(saved.longest(B, &prompt).is_none());
    assert_eq!((saved.matching(B, &prompt), saved.common(B, &prompt)), (0, 0));
    assert!(saved.record_use(A, &tokens(0..20)) && !saved.record_use(A, &prompt));
    assert_eq!(saved.remove(A, &tokens(0..20)).map(|removed| removed.payload), Some(2));
    assert_eq!(saved.matching(A, &prompt), 10);
    assert_eq!(saved.bytes(), 4 * 50 + 4);
}

#[test]
fn a_state_that_can_be_cut_serves_every_prompt_with_its_beginning() {
    let mut saved = store(10_000);
    for (length, bytes) in [(20, 1), (50, 2), (40, 3)] {
        insert(&mut saved, A, &tokens(0..length), bytes);
    }
    let mut best = |tenant, prompt: &[Token]| {
        saved.best_common(tenant, prompt).map(|(same, found)| (same, found.payload))
    };
    // Of those that begin alike, the shortest is cheapest to restore.
    assert_eq!(best(A, &tokens(0..30)), Some((30, 3)));
    assert_eq!(best(A, &tokens(0..60)), Some((50, 2)));
    assert_eq!(best(A, &tokens(1..9)), None);
    assert_eq!(best(B, &tokens(0..30)), None);
}

#[test]
fn a_longer_state_replaces_those_that_it_continues() {
    let mut saved = store(10_000);
    for (tenant, range) in [(A, 0..20), (A, 0..30), (A, 5..30), (B, 0..20)] {
        insert(&mut saved, tenant, &tokens(range), 1);
    }
    let covered = std::iter::from_fn(|| saved.take_covered(A, &tokens(0..30)));
    assert_eq!(covered.map(|prefix| prefix.tokens.len()).collect::<Vec<_>>(), [20]);
    let covered = std::iter::from_fn(|| saved.take_covered(A, &tokens(0..31)));
    assert_eq!(covered.map(|prefix| prefix.tokens.len()).collect::<Vec<_>>(), [30]);
    assert_eq!(saved.bytes(), 4 * 25 + 1 + 4 * 20 + 1);
}

#[test]
fn what_was_not_used_for_longest_makes_room() {
    let mut saved = store(3 * 140);
    for first in [0, 100, 200] {
        insert(&mut saved, A, &tokens(first..first + 10), 100);
    }
    assert_eq!(saved.matching(A, &tokens(0..10)), 10);
    assert!(saved.longest(A, &tokens(0..11)).is_some());
    assert_eq!(insert(&mut saved, A, &tokens(300..310), 100), [100]);
    let held = |first| saved.matching(A, &tokens(first..first + 10)) > 0;
    assert_eq!([0, 100, 200, 300].map(held), [true, false, true, true]);
    assert_eq!(saved.bytes(), 3 * 140);
}

#[test]
fn a_tenant_with_many_prompts_displaces_its_own() {
    let mut saved = store(4 * 140);
    insert(&mut saved, A, &tokens(0..10), 100);
    for first in 1..50 {
        insert(&mut saved, B, &tokens(first..first + 10), 100);
    }
    assert_eq!(saved.matching(A, &tokens(0..10)), 10);
    assert_eq!(saved.matching(B, &tokens(49..59)), 10);
    // The newest finds room even if its tenant then has most.
    insert(&mut saved, A, &tokens(0..20), 400);
    assert_eq!(saved.matching(A, &tokens(0..20)), 20);
    assert!(saved.bytes() <= 4 * 140);
}

#[test]
fn what_is_too_large_is_not_stored_and_the_number_is_limited() {
    let mut saved = store(100);
    assert_eq!(insert(&mut saved, A, &tokens(0..10), 61), [61]);
    assert_eq!(saved.bytes(), 0);
    let mut saved = store(u64::MAX);
    for first in 0..1000 {
        insert(&mut saved, A, &[first], 1);
    }
    assert_eq!(saved.bytes(), COUNT_MAX as u64 * 5);
    let mut none = store(0);
    assert_eq!(insert(&mut none, A, &[1], 0), [0]);
    assert_eq!((none.bytes(), none.matching(A, &[1])), (0, 0));
}
