//! PURE. Which endpoint takes a request: least connections over capacity.

/// An endpoint that could take the request now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate<I> {
    /// Which endpoint.
    pub id: I,
    /// Slots that are taken.
    pub busy: u32,
    /// Slots in all; more than `busy`.
    pub capacity: u32,
}

/// The candidate with the smallest share of busy slots; equals are drawn by `seed`, so
/// that idle nodes share the load evenly.
pub fn choose<I: Copy>(candidates: &[Candidate<I>], seed: u64) -> Option<I> {
    // Shares are compared as fractions: a/b < c/d is a*d < c*b.
    let share = |a: &Candidate<I>, b: &Candidate<I>| {
        let left = u64::from(a.busy) * u64::from(b.capacity);
        let right = u64::from(b.busy) * u64::from(a.capacity);
        left.cmp(&right)
    };
    let least = candidates.iter().min_by(|a, b| share(a, b))?;
    let equal: Vec<_> = candidates.iter().filter(|c| share(c, least).is_eq()).collect();
    equal.get((seed % equal.len() as u64) as usize).map(|c| c.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(id: u32, busy: u32, capacity: u32) -> Candidate<u32> {
        Candidate { id, busy, capacity }
    }

    #[test]
    fn the_smallest_share_of_busy_slots_wins_not_the_smallest_number() {
        let all = [candidate(1, 1, 2), candidate(2, 3, 8), candidate(3, 2, 4)];
        assert_eq!(choose(&all, 0), Some(2));
    }

    #[test]
    fn equals_are_drawn_evenly() {
        let all = [candidate(1, 0, 4), candidate(2, 0, 4), candidate(3, 1, 4)];
        let ones = (0..100).filter(|seed| choose(&all, *seed) == Some(1)).count();
        assert_eq!(ones, 50);
        assert!((0..100).all(|seed| choose(&all, seed) != Some(3)));
    }

    #[test]
    fn nobody_is_chosen_from_nobody() {
        assert_eq!(choose::<u32>(&[], 7), None);
    }
}
