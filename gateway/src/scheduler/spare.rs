//! PURE. How many slots batches may take: those that are free, but for a few that they keep free
//! for requests that people wait for, if more urgent requests cannot take their slots. A batch of
//! such lines that took the last one would make the next chat wait until a line has ended, which
//! takes a CPU many seconds.

use std::time::Duration;

use super::Scheduler;
use super::fleet::Room;

/// Others count as present for so long after their last request.
const PRESENT: Duration = Duration::from_secs(60);
/// One of so many slots stays free while others are present, and at least one.
const KEPT_FREE: u64 = 20;

/// How many of these slots batches may take. `keeps`: some stay free. `None` if nothing serves the
/// model now.
fn spare(room: Room, keeps: bool) -> Option<u64> {
    let Room { slots, free } = room;
    // A single slot is for everybody.
    let kept = if keeps && slots > 1 { slots.div_ceil(KEPT_FREE) } else { 0 };
    (slots > 0).then(|| free.saturating_sub(kept))
}

impl<L> Scheduler<L> {
    /// How many slots of a model batches may take now. `are_preemptible`: more urgent requests can
    /// take them. `None` if nothing serves it.
    pub(crate) fn spare_slots(
        &self,
        model: &str,
        are_preemptible: bool,
        now: Duration,
    ) -> Option<u64> {
        let others_are_present = self.others_at.is_some_and(|at| now.saturating_sub(at) < PRESENT);
        spare(self.fleet.room_of(model), others_are_present && !are_preemptible)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_slots_stay_free_while_others_are_present() {
        for (slots, free, present, may_take) in [
            (0, 0, true, None),
            (1, 1, true, Some(1)),
            (2, 2, true, Some(1)),
            (2, 1, true, Some(0)),
            (2, 1, false, Some(1)),
            (32, 8, true, Some(6)),
            (32, 2, true, Some(0)),
            (32, 2, false, Some(2)),
            (1000, 1000, true, Some(950)),
        ] {
            assert_eq!(spare(Room { slots, free }, present), may_take, "{slots} {free} {present}");
        }
    }
}
