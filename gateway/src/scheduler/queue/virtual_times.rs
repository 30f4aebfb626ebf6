//! PURE. Fair turns by work: self-clocked fair queueing (Golestani, 1994).
//!
//! Each key has a virtual time that advances by the work done for it, divided by its weight. The
//! key whose next piece of work would finish first in virtual time is next, so small pieces go
//! before large ones. A key earns no credit while it is away, and cannot shed its debt by leaving
//! for a moment. Between two keys that always wait, the work done differs by at most the largest
//! piece of each. Work is charged as an estimate; when it is done,
//! [`VirtualTimes::correct`] settles the difference.

use std::borrow::Borrow;
use std::collections::BTreeMap;

/// Below this many entries, no cleanup runs.
const TIDY_AT: usize = 64;

/// Most keys that are remembered because they are ahead of the clock.
const AHEAD_MAX: usize = 16_384;

/// Virtual times by key.
#[derive(Debug, Clone)]
pub(super) struct VirtualTimes<K> {
    /// Virtual time at which the last piece finished.
    now: f64,
    times: BTreeMap<K, Entry>,
    /// Number of entries that triggers the next cleanup.
    tidy_at: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    time: f64,
    /// Virtual time of the last arrival. Corrections of earlier charges cannot go below it.
    floor: f64,
    waits: bool,
}

impl<K> Default for VirtualTimes<K> {
    fn default() -> Self {
        Self { now: 0.0, times: BTreeMap::new(), tidy_at: TIDY_AT }
    }
}

impl<K: Ord> VirtualTimes<K> {
    /// Adds `key` to those that wait.
    pub(super) fn arrive<Q>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
        Q: Ord + ToOwned<Owned = K> + ?Sized,
    {
        self.drop_idle();
        let now = self.now;
        match self.times.get_mut(key) {
            Some(standing) => {
                let time = standing.time.max(now);
                *standing = Entry { time, floor: now, waits: true };
            }
            None => {
                self.times.insert(key.to_owned(), Entry { time: now, floor: now, waits: true });
            }
        }
    }

    /// Removes `key` from those that wait; its virtual time stays.
    pub(super) fn leave<Q: Ord + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        if let Some(standing) = self.times.get_mut(key) {
            standing.waits = false;
        }
    }

    /// Virtual time at which `work` for `key` would finish; the smallest is next.
    pub(super) fn finish_time<Q: Ord + ?Sized>(&self, key: &Q, work: f64) -> f64
    where
        K: Borrow<Q>,
    {
        self.times.get(key).map_or(self.now, |standing| standing.time) + work
    }

    /// Charges `key` for work that is done in its turn.
    pub(super) fn charge<Q: Ord + ?Sized>(&mut self, key: &Q, work: f64)
    where
        K: Borrow<Q>,
    {
        let finish = self.finish_time(key, work);
        self.now = self.now.max(finish);
        if let Some(standing) = self.times.get_mut(key) {
            standing.time = finish;
        }
    }

    /// Charges `key` for work that did not wait in line, whether `key` waits for other work or not.
    pub(super) fn charge_unqueued<Q>(&mut self, key: &Q, work: f64)
    where
        K: Borrow<Q>,
        Q: Ord + ToOwned<Owned = K> + ?Sized,
    {
        let waits = self.times.get(key).is_some_and(|standing| standing.waits);
        if !waits {
            self.arrive(key);
        }
        self.charge(key, work);
        if !waits {
            self.leave(key);
        }
    }

    /// Corrects the charge of `key` by `more`, which may be negative. Returns by how much its
    /// virtual time moved: nothing charged before the last arrival is credited.
    pub(super) fn correct<Q>(&mut self, key: &Q, more: f64) -> f64
    where
        K: Borrow<Q>,
        Q: Ord + ToOwned<Owned = K> + ?Sized,
    {
        let now = self.now;
        match self.times.get_mut(key) {
            Some(standing) => {
                let before = standing.time;
                standing.time = (before + more).max(standing.floor);
                standing.time - before
            }
            None if more > 0.0 => {
                self.drop_idle();
                let standing = Entry { time: now + more, floor: now, waits: false };
                self.times.insert(key.to_owned(), standing);
                more
            }
            None => 0.0,
        }
    }

    /// Number of keys that are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.times.len()
    }

    /// True if every key is equivalent to a new one.
    pub(super) fn is_settled(&self) -> bool {
        !self.times.values().any(|standing| standing.waits || standing.time > self.now)
    }

    /// Drops keys that do not wait and are not ahead of the clock: they are equivalent to new ones.
    /// If too many are ahead, drops those as well. A client that invents keys gains nothing by it,
    /// because a new key is not ahead either.
    fn drop_idle(&mut self) {
        if self.times.len() >= self.tidy_at {
            let now = self.now;
            self.times.retain(|_, standing| standing.waits || standing.time > now);
            if self.times.len() >= AHEAD_MAX {
                self.times.retain(|_, standing| standing.waits);
            }
            self.tidy_at = (2 * self.times.len()).max(TIDY_AT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Does the next piece of work and returns its key.
    fn next(turns: &mut VirtualTimes<u32>, waiting: &[(u32, f64)]) -> u32 {
        let finish =
            |turns: &VirtualTimes<u32>, (key, work): &(u32, f64)| turns.finish_time(key, *work);
        let least = waiting.iter().min_by(|a, b| finish(turns, a).total_cmp(&finish(turns, b)));
        let (key, work) = *least.unwrap();
        turns.charge(&key, work);
        key
    }

    proptest! {
        #[test]
        fn those_who_always_wait_get_the_same_to_within_their_largest_pieces(
            works in prop::collection::vec(prop::collection::vec(0.1f64..50.0, 20), 2..6),
        ) {
            let mut turns = VirtualTimes::default();
            (0..works.len() as u32).for_each(|key| turns.arrive(&key));
            let mut done = vec![0.0; works.len()];
            let mut pieces = vec![0; works.len()];
            for _ in 0..200 {
                let waiting: Vec<(u32, f64)> =
                    (0..).zip(works.iter().zip(&pieces).map(|(w, i)| w[i % 20])).collect();
                let key = next(&mut turns, &waiting) as usize;
                done[key] += works[key][pieces[key] % 20];
                pieces[key] += 1;
                let least = done.iter().copied().fold(f64::MAX, f64::min);
                let most = done.iter().copied().fold(0.0, f64::max);
                prop_assert!(most - least <= 100.0, "{done:?}");
            }
        }
    }

    #[test]
    fn who_was_away_is_not_owed() {
        let mut turns = VirtualTimes::default();
        [1, 2].iter().for_each(|key| turns.arrive(key));
        (0..100).for_each(|_| _ = next(&mut turns, &[(1, 10.0), (2, 10.0)]));
        turns.arrive(&3);
        let served: Vec<u32> =
            (0..9).map(|_| next(&mut turns, &[(1, 10.0), (2, 10.0), (3, 10.0)])).collect();
        let threes = served.iter().filter(|key| **key == 3).count();
        assert!((2..=4).contains(&threes), "{served:?}");
    }

    #[test]
    fn who_took_much_does_not_get_away_from_it_by_leaving() {
        let mut turns = VirtualTimes::default();
        [1, 2].iter().for_each(|key| turns.arrive(key));
        turns.charge(&1, 10.0);
        // The second key gets a long piece, then leaves for a moment.
        turns.charge(&2, 100.0);
        turns.leave(&2);
        turns.arrive(&2);
        let served: Vec<u32> = (0..9).map(|_| next(&mut turns, &[(1, 10.0), (2, 10.0)])).collect();
        assert_eq!(served, [1; 9]);
    }

    #[test]
    fn work_that_was_larger_than_its_estimate_is_settled_when_it_is_done() {
        let mut turns = VirtualTimes::default();
        [1, 2].iter().for_each(|key| turns.arrive(key));
        let mut done = [0.0; 2];
        for _ in 0..1_000 {
            let key = next(&mut turns, &[(1, 10.0), (2, 10.0)]);
            let work = if key == 1 { 400.0 } else { 5.0 };
            turns.correct(&key, work - 10.0);
            done[key as usize - 1] += work;
        }
        assert!((done[0] - done[1]).abs() <= 400.0, "{done:?}");
    }

    #[test]
    fn a_correction_gives_no_credit_for_a_time_away() {
        let mut turns = VirtualTimes::default();
        [1, 2].iter().for_each(|key| turns.arrive(key));
        turns.charge(&1, 100.0);
        turns.leave(&1);
        turns.charge(&2, 1_000.0);
        turns.arrive(&1);
        assert_eq!(turns.correct(&1, -90.0), 0.0, "it begins where the others are");
        turns.charge(&1, 50.0);
        assert_eq!(turns.correct(&1, -40.0), -40.0);
        assert_eq!((turns.correct(&3, -5.0), turns.correct(&4, 5.0)), (0.0, 5.0));
    }

    #[test]
    fn a_small_piece_goes_before_a_large_one() {
        let mut turns = VirtualTimes::default();
        [1, 2].iter().for_each(|key| turns.arrive(key));
        assert_eq!(next(&mut turns, &[(1, 50.0), (2, 5.0)]), 2);
    }

    #[test]
    fn nobody_is_remembered_for_ever() {
        let mut turns = VirtualTimes::default();
        turns.arrive(&0);
        for key in 1..10_000u32 {
            turns.arrive(&key);
            turns.charge(&key, 1.0);
            turns.leave(&key);
            turns.charge(&0, 1.0);
        }
        assert!(turns.times.len() <= 2 * TIDY_AT, "{}", turns.times.len());
    }

    #[test]
    fn a_million_keys_that_used_more_than_estimated_stay_within_the_bound() {
        let mut turns = VirtualTimes::default();
        turns.arrive(&0);
        for key in 1..1_000_000u32 {
            turns.charge_unqueued(&key, 1e-6);
            turns.correct(&key, 1e6);
            assert!(turns.times.len() <= 2 * AHEAD_MAX, "{}", turns.times.len());
        }
        assert!(turns.times.contains_key(&0), "who waits is kept");
        assert!(!turns.is_settled());
    }
}
