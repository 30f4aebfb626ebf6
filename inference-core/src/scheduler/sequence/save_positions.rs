//! PURE. Positions of a prompt at which its state is saved.

/// Each position ends a batch early, and copies a state.
const COUNT_MAX: usize = 4;

/// Positions in ascending order.
#[derive(Debug, Default)]
pub(crate) struct SavePositions(Vec<u32>);

impl SavePositions {
    /// Adds a position. Returns false if there are too many.
    pub(crate) fn add(&mut self, position: u32) -> bool {
        match self.0.binary_search(&position) {
            Ok(_) => true,
            Err(_) if self.0.len() >= COUNT_MAX => false,
            Err(index) => {
                self.0.insert(index, position);
                true
            }
        }
    }

    /// Tokens from `position` to the next one that it has not reached.
    pub(crate) fn distance(&self, position: u32) -> Option<u32> {
        self.0.iter().find(|next| **next > position).map(|next| next - position)
    }

    /// True if the state at `position` is to be saved; forgets the positions up to there.
    pub(crate) fn take(&mut self, position: u32) -> bool {
        let is_due = self.0.contains(&position);
        self.0.retain(|next| *next > position);
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_taken_once_in_order_and_limited_in_number() {
        let mut positions = SavePositions::default();
        assert!([50, 20, 50, 90, 70].into_iter().all(|position| positions.add(position)));
        assert!(!positions.add(60) && positions.add(20));
        assert_eq!(positions.distance(0), Some(20));
        assert!(!positions.take(10) && positions.take(20) && !positions.take(20));
        assert_eq!(positions.distance(20), Some(30));
        assert!(positions.take(90));
        assert_eq!(positions.distance(0), None);
    }
}
