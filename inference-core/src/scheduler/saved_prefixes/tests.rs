//! Tests which prefixes are found, and which give way.

use super::*;

const A: Tenant = Tenant(1);
const B: Tenant = Tenant(2);

fn state(bytes: usize) -> Box<[u8]> {
    vec![7; bytes].into()
}

fn tokens(range: std::ops::Range<u32>) -> Vec<Token> {
    range.collect()
}

#[test]
fn the_longest_whole_prefix_is_found_and_only_for_its_tenant() {
    let mut saved = SavedPrefixes::new(10_000);
    saved.insert(A, &tokens(0..10), state(1));
    saved.insert(A, &tokens(0..20), state(2));
    saved.insert(A, &tokens(0..40), state(3));
    let prompt = tokens(0..30);
    assert_eq!(saved.longest(A, &prompt), Some((20, &[7, 7][..])));
    assert_eq!((saved.matching(A, &prompt), saved.common(A, &prompt)), (20, 30));
    assert_eq!(saved.longest(B, &prompt), None);
    assert_eq!((saved.matching(B, &prompt), saved.common(B, &prompt)), (0, 0));
    assert!(saved.record_use(A, &tokens(0..20)) && !saved.record_use(A, &prompt));
    saved.remove(A, &tokens(0..20));
    assert_eq!(saved.matching(A, &prompt), 10);
    assert_eq!(saved.bytes(), 4 * 50 + 4);
}

#[test]
fn what_was_not_used_for_longest_makes_room() {
    let mut saved = SavedPrefixes::new(3 * 140);
    for first in [0, 100, 200] {
        saved.insert(A, &tokens(first..first + 10), state(100));
    }
    assert_eq!(saved.matching(A, &tokens(0..10)), 10);
    assert!(saved.longest(A, &tokens(0..11)).is_some());
    saved.insert(A, &tokens(300..310), state(100));
    let held = |first| saved.matching(A, &tokens(first..first + 10)) > 0;
    assert_eq!([0, 100, 200, 300].map(held), [true, false, true, true]);
    assert_eq!(saved.bytes(), 3 * 140);
}

#[test]
fn a_tenant_with_many_prompts_displaces_its_own() {
    let mut saved = SavedPrefixes::new(4 * 140);
    saved.insert(A, &tokens(0..10), state(100));
    for first in 1..50 {
        saved.insert(B, &tokens(first..first + 10), state(100));
    }
    assert_eq!(saved.matching(A, &tokens(0..10)), 10);
    assert_eq!(saved.matching(B, &tokens(49..59)), 10);
    // The newest finds room even if its tenant then has most.
    saved.insert(A, &tokens(0..20), state(400));
    assert_eq!(saved.matching(A, &tokens(0..20)), 20);
    assert!(saved.bytes() <= 4 * 140);
}

#[test]
fn what_is_too_large_is_not_stored_and_the_number_is_limited() {
    let mut saved = SavedPrefixes::new(100);
    saved.insert(A, &tokens(0..10), state(61));
    assert_eq!(saved.bytes(), 0);
    let mut saved = SavedPrefixes::new(usize::MAX);
    for first in 0..1000 {
        saved.insert(A, &[first], state(1));
    }
    assert_eq!(saved.bytes(), COUNT_MAX * 5);
    let mut none = SavedPrefixes::new(0);
    none.insert(A, &[1], state(0));
    assert_eq!((none.bytes(), none.matching(A, &[1])), (0, 0));
}
