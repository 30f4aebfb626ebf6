//! PURE. Bookkeeping of prefixes saved outside the KV pool: what is held for whom, and what gives
//! way. The payload is a state in memory, or the number of a file.
//!
//! A state of a model whose sequences share KV cells can be cut after it is restored, so any prompt
//! with the same beginning can use it ([`SavedPrefixes::best_common`]). The state of a sliding
//! window or a recurrent model can be restored only where it ended ([`SavedPrefixes::longest`]).
//! The engine therefore saves states of such models where later prompts probably continue: at the
//! end of a response, before the end of a long prompt, and where a prompt departs from one that was
//! saved (Marconi, <https://arxiv.org/abs/2411.19379>).

use std::sync::Arc;

use crate::scheduler::kv_pool::common;
use crate::types::request::{Tenant, Token};

/// A shorter prefix is computed again: its state would take as long to copy.
pub(crate) const TOKENS_MIN: u32 = 64;

/// A state of which most is cut off must cover at least this part of its tokens.
const USED_PART: u32 = 8;

/// True if a state of `held` tokens is worth a copy that spares `gained` tokens.
pub(crate) fn is_worth_a_copy(gained: u32, held: u32) -> bool {
    gained >= held / USED_PART
}

/// A saved prefix.
#[derive(Debug, Clone)]
pub(crate) struct Prefix<P> {
    pub(crate) tenant: Tenant,
    pub(crate) tokens: Arc<[Token]>,
    pub(crate) payload: P,
    /// Bytes of the state, without the tokens.
    state_bytes: u64,
    used_at: u64,
}

impl<P> Prefix<P> {
    /// Creates a prefix whose state has `state_bytes` bytes.
    pub(crate) fn new(
        tenant: Tenant,
        tokens: impl Into<Arc<[Token]>>,
        payload: P,
        state_bytes: u64,
    ) -> Self {
        Self { tenant, tokens: tokens.into(), payload, state_bytes, used_at: 0 }
    }

    /// Bytes of the state and its tokens.
    pub(crate) fn bytes(&self) -> u64 {
        self.state_bytes + size_of_val(&*self.tokens) as u64
    }
}

/// The saved prefixes. No tenant is served from another's.
#[derive(Debug)]
pub(crate) struct SavedPrefixes<P> {
    bytes_max: u64,
    /// Looking one up compares it with all of its tenant's.
    count_max: usize,
    bytes: u64,
    all: Vec<Prefix<P>>,
    now: u64,
}

impl<P> SavedPrefixes<P> {
    /// Creates a store of at most `count_max` prefixes and `bytes_max` bytes; 0 stores nothing.
    pub(crate) fn new(bytes_max: u64, count_max: usize) -> Self {
        Self { bytes_max, count_max, bytes: 0, all: Vec::new(), now: 0 }
    }

    /// Bytes that a state may have to be stored.
    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Bytes of all states and their tokens.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The longest prefix that `tokens` begin with as a whole. Counts as a use.
    pub(crate) fn longest(&mut self, tenant: Tenant, tokens: &[Token]) -> Option<&mut Prefix<P>> {
        self.now += 1;
        let now = self.now;
        let fitting =
            self.all.iter_mut().filter(|s| s.tenant == tenant && tokens.starts_with(&s.tokens));
        let longest = fitting.max_by_key(|saved| saved.tokens.len())?;
        longest.used_at = now;
        Some(longest)
    }

    /// The prefix with most tokens in common with `tokens`, the shortest such one, and that number,
    /// unless it is 0. Counts as a use.
    pub(crate) fn best_common(
        &mut self,
        tenant: Tenant,
        tokens: &[Token],
    ) -> Option<(u32, &mut Prefix<P>)> {
        self.now += 1;
        let now = self.now;
        let own = self.all.iter_mut().filter(|saved| saved.tenant == tenant);
        let counted = own.map(|saved| (common(&saved.tokens, tokens), saved));
        let counted = counted.filter(|(same, _)| *same > 0);
        let (same, best) =
            counted.max_by_key(|(same, saved)| (*same, std::cmp::Reverse(saved.tokens.len())))?;
        best.used_at = now;
        Some((same as u32, best))
    }

    /// Length of the longest prefix that `tokens` begin with as a whole.
    pub(crate) fn matching(&self, tenant: Tenant, tokens: &[Token]) -> u32 {
        let own = self.all.iter().filter(|s| s.tenant == tenant && tokens.starts_with(&s.tokens));
        own.map(|saved| saved.tokens.len() as u32).max().unwrap_or(0)
    }

    /// How many tokens `tokens` have in common with a prefix, which may go on differently.
    pub(crate) fn common(&self, tenant: Tenant, tokens: &[Token]) -> u32 {
        let own = self.all.iter().filter(|saved| saved.tenant == tenant);
        own.map(|saved| common(&saved.tokens, tokens) as u32).max().unwrap_or(0)
    }

    /// The prefix of exactly these tokens. Does not count as a use.
    pub(crate) fn get(&self, tenant: Tenant, tokens: &[Token]) -> Option<&Prefix<P>> {
        self.all.iter().find(|saved| saved.tenant == tenant && *saved.tokens == *tokens)
    }

    /// True if exactly these tokens are saved.
    pub(crate) fn contains(&self, tenant: Tenant, tokens: &[Token]) -> bool {
        self.get(tenant, tokens).is_some()
    }

    /// The same, which counts as a use.
    pub(crate) fn record_use(&mut self, tenant: Tenant, tokens: &[Token]) -> bool {
        self.now += 1;
        let found = self.all.iter_mut().find(|s| s.tenant == tenant && *s.tokens == *tokens);
        found.map(|saved| saved.used_at = self.now).is_some()
    }

    /// Saves a prefix, and adds those that make room for it to `dropped`: what was not used for
    /// longest of the tenant that has most, so that one tenant's prompts do not displace all
    /// others'. The prefix itself is dropped if it is too large.
    pub(crate) fn insert(&mut self, mut saved: Prefix<P>, dropped: &mut Vec<Prefix<P>>) {
        self.now += 1;
        saved.used_at = self.now;
        if saved.bytes() > self.bytes_max {
            dropped.push(saved);
            return;
        }
        self.bytes += saved.bytes();
        self.all.push(saved);
        while self.bytes > self.bytes_max || self.all.len() > self.count_max {
            let Some(index) = self.least_valuable() else { return };
            dropped.push(self.take(index));
        }
    }

    /// Makes room for another prefix of `bytes`, and adds what gives way to `dropped`.
    pub(crate) fn make_room(&mut self, bytes: u64, dropped: &mut Vec<Prefix<P>>) {
        // Now there is no newest one.
        self.now += 1;
        while self.bytes.saturating_add(bytes) > self.bytes_max || self.all.len() >= self.count_max
        {
            let Some(index) = self.least_valuable() else { return };
            dropped.push(self.take(index));
        }
    }

    /// All prefixes, the most recently used first.
    pub(crate) fn by_use(&self) -> Vec<&Prefix<P>> {
        let mut all: Vec<&Prefix<P>> = self.all.iter().collect();
        all.sort_by_key(|prefix| std::cmp::Reverse(prefix.used_at));
        all
    }

    /// Removes a prefix, such as one whose state cannot be restored.
    pub(crate) fn remove(&mut self, tenant: Tenant, tokens: &[Token]) -> Option<Prefix<P>> {
        let is_it = |saved: &Prefix<P>| saved.tenant == tenant && *saved.tokens == *tokens;
        let index = self.all.iter().position(is_it)?;
        Some(self.take(index))
    }

    /// Removes a prefix that `tokens` continue, so that a state of these can replace it.
    pub(crate) fn take_covered(&mut self, tenant: Tenant, tokens: &[Token]) -> Option<Prefix<P>> {
        let is_covered = |saved: &Prefix<P>| {
            let (held, more) = (saved.tokens.len(), tokens.len());
            saved.tenant == tenant && held < more && tokens.starts_with(&saved.tokens)
        };
        let index = self.all.iter().position(is_covered)?;
        Some(self.take(index))
    }

    fn take(&mut self, index: usize) -> Prefix<P> {
        let taken = self.all.swap_remove(index);
        self.bytes -= taken.bytes();
        taken
    }

    /// The least recently used prefix of the tenant with most bytes, except for the newest of all.
    fn least_valuable(&self) -> Option<usize> {
        let held = |tenant: Tenant| -> u64 {
            self.all.iter().filter(|saved| saved.tenant == tenant).map(Prefix::bytes).sum()
        };
        let old = self.all.iter().enumerate().filter(|(_, saved)| saved.used_at < self.now);
        let most = old.clone().map(|(_, saved)| (held(saved.tenant), saved.tenant.0)).max()?.1;
        let of_most = old.filter(|(_, saved)| saved.tenant.0 == most);
        of_most.min_by_key(|(_, saved)| saved.used_at).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests;
