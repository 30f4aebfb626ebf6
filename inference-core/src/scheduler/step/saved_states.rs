//! PURE. States of sequences in memory, outside the KV pool: which one a prompt begins with, and
//! which are dropped.

use std::sync::Arc;

use crate::scheduler::saved_prefixes::{Prefix, SavedPrefixes, TOKENS_MIN};
use crate::scheduler::slots::State;
use crate::types::request::{Tenant, Token};

/// Maximum number of states: looking one up compares it with all of its tenant's.
const COUNT_MAX: usize = 256;

/// A saved state.
#[derive(Debug)]
pub(super) struct Saved {
    pub(super) state: State,
    /// True until a prompt has begun with what was read from a file.
    is_fresh: bool,
}

/// A state that a prompt can begin with.
#[derive(Debug)]
pub(super) struct Source {
    /// Tokens of the prompt that it covers.
    pub(super) tokens: u32,
    /// Tokens of the state, which is cut after those of the prompt.
    pub(super) held: Arc<[Token]>,
    pub(super) state: State,
    /// True if this prompt is the first to begin with what was read from a file.
    pub(super) from_disk: bool,
}

/// The saved states.
#[derive(Debug)]
pub(super) struct SavedStates {
    all: SavedPrefixes<Saved>,
    /// True if a restored sequence can lose all but its first tokens.
    can_cut: bool,
    dropped: Vec<Prefix<Saved>>,
}

impl SavedStates {
    pub(super) fn new(bytes_max: u64, can_cut: bool) -> Self {
        Self { all: SavedPrefixes::new(bytes_max, COUNT_MAX), can_cut, dropped: Vec::new() }
    }

    /// Bytes of all states and their tokens.
    pub(super) fn bytes(&self) -> u64 {
        self.all.bytes()
    }

    /// Bytes that a state may have to be saved; 0 if none is.
    pub(super) fn bytes_max(&self) -> usize {
        usize::try_from(self.all.bytes_max()).unwrap_or(usize::MAX)
    }

    /// How many of `tokens` the best state covers.
    pub(super) fn covered(&self, tenant: Tenant, tokens: &[Token]) -> u32 {
        match self.can_cut {
            true => self.all.common(tenant, tokens),
            false => self.all.matching(tenant, tokens),
        }
    }

    /// How many of `tokens` any state has, which may go on differently.
    pub(super) fn common(&self, tenant: Tenant, tokens: &[Token]) -> u32 {
        self.all.common(tenant, tokens)
    }

    /// The state that covers most of `tokens`.
    pub(super) fn source(&mut self, tenant: Tenant, tokens: &[Token]) -> Option<Source> {
        let (covered, found) = match self.can_cut {
            true => self.all.best_common(tenant, tokens)?,
            false => {
                let found = self.all.longest(tenant, tokens)?;
                (found.tokens.len() as u32, found)
            }
        };
        let from_disk = std::mem::take(&mut found.payload.is_fresh);
        let (held, state) = (found.tokens.clone(), found.payload.state.clone());
        Some(Source { tokens: covered, held, state, from_disk })
    }

    /// The state of exactly these tokens.
    pub(super) fn exact(&self, tenant: Tenant, tokens: &[Token]) -> Option<State> {
        Some(self.all.get(tenant, tokens)?.payload.state.clone())
    }

    /// True if a state of these tokens would add little to what is saved. Counts as a use of that.
    pub(super) fn has(&mut self, tenant: Tenant, tokens: &[Token]) -> bool {
        if !self.can_cut {
            return self.all.record_use(tenant, tokens);
        }
        let best = self.all.best_common(tenant, tokens);
        best.is_some_and(|(same, _)| same + TOKENS_MIN > tokens.len() as u32)
    }

    /// Saves a state, in place of those that it continues if it can be cut.
    pub(super) fn insert(&mut self, tenant: Tenant, tokens: Arc<[Token]>, state: Box<[u8]>) {
        self.add(tenant, tokens, state, false);
    }

    /// Saves a state that was read from a file.
    pub(super) fn insert_read(&mut self, tenant: Tenant, tokens: Arc<[Token]>, state: Box<[u8]>) {
        self.all.remove(tenant, &tokens);
        self.add(tenant, tokens, state, true);
    }

    fn add(&mut self, tenant: Tenant, tokens: Arc<[Token]>, state: Box<[u8]>, is_fresh: bool) {
        let bytes = state.len() as u64;
        while self.can_cut && self.all.take_covered(tenant, &tokens).is_some() {}
        let saved = Saved { state: Arc::new(state), is_fresh };
        self.all.insert(Prefix::new(tenant, tokens, saved, bytes), &mut self.dropped);
    }

    /// What was dropped since the last call.
    pub(super) fn take_dropped(&mut self) -> Vec<Prefix<Saved>> {
        std::mem::take(&mut self.dropped)
    }

    /// All states, the most recently used first.
    pub(super) fn by_use(&self) -> Vec<&Prefix<Saved>> {
        self.all.by_use()
    }

    /// Drops a state that cannot be restored.
    pub(super) fn remove(&mut self, tenant: Tenant, tokens: &[Token]) {
        self.all.remove(tenant, tokens);
    }
}
