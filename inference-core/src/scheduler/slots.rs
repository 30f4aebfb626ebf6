//! PURE. What slots hold, so that it can be saved by a slot's number, and orders about it. Files
//! are [`SlotFolder`](crate::scheduler::prefix_disk::SlotFolder)'s.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::types::request::{Tenant, Token};

/// Maximum slots of all tenants that are remembered; the oldest ones are forgotten.
const COUNT_MAX: usize = 64;

/// A state, shared by the code that restores it and the code that writes it to a file.
pub type State = Arc<Box<[u8]>>;

/// An order to the engine about what a slot holds.
#[derive(Debug)]
pub struct SlotOrder {
    /// Whose prompts may begin with it.
    pub owner: Tenant,
    /// The slot.
    pub slot: u32,
    /// What to do.
    pub act: SlotAct,
}

/// What to do with what a slot holds.
#[derive(Debug)]
pub enum SlotAct {
    /// Return its tokens and their state.
    Copy,
    /// Let it hold these tokens, whose state this is.
    Fill(Arc<[Token]>, Box<[u8]>),
    /// Forget it.
    Erase,
}

/// What a slot holds.
#[derive(Debug)]
pub struct SlotContent {
    /// Tokens of a prompt and of its response.
    pub tokens: Arc<[Token]>,
    /// Their state, if it was asked for.
    pub state: Option<State>,
}

#[derive(Debug)]
struct Held {
    owner: Tenant,
    slot: u32,
    tokens: Arc<[Token]>,
}

/// Tokens by owner and slot.
#[derive(Debug, Default)]
pub(crate) struct HeldSlots(VecDeque<Held>);

impl HeldSlots {
    /// Records what a slot holds now.
    pub(crate) fn record(&mut self, owner: Tenant, slot: u32, tokens: Arc<[Token]>) {
        self.take(owner, slot);
        self.0.truncate(COUNT_MAX - 1);
        self.0.push_front(Held { owner, slot, tokens });
    }

    /// What a slot holds.
    pub(crate) fn of(&self, owner: Tenant, slot: u32) -> Option<Arc<[Token]>> {
        Some(self.0.get(self.index(owner, slot)?)?.tokens.clone())
    }

    /// Forgets what a slot holds.
    pub(crate) fn take(&mut self, owner: Tenant, slot: u32) -> Option<Arc<[Token]>> {
        Some(self.0.remove(self.index(owner, slot)?)?.tokens)
    }

    fn index(&self, owner: Tenant, slot: u32) -> Option<usize> {
        self.0.iter().position(|held| held.owner == owner && held.slot == slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_what_came_last_for_each_owner() {
        let (ada, bob, mut held) = (Tenant(1), Tenant(2), HeldSlots::default());
        held.record(ada, 0, [1, 2].into());
        held.record(bob, 0, [3].into());
        held.record(ada, 0, [4].into());
        assert_eq!(held.of(ada, 0).as_deref(), Some(&[4][..]));
        assert_eq!(held.of(bob, 0).as_deref(), Some(&[3][..]));
        assert_eq!(held.of(ada, 1), None);
        assert_eq!(held.take(ada, 0).as_deref(), Some(&[4][..]));
        assert_eq!((held.of(ada, 0), held.0.len()), (None, 1));
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut held = HeldSlots::default();
        (0..200).for_each(|owner| held.record(Tenant(owner), 0, [1].into()));
        assert_eq!(held.0.len(), COUNT_MAX);
        assert!(held.of(Tenant(199), 0).is_some() && held.of(Tenant(0), 0).is_none());
    }
}
