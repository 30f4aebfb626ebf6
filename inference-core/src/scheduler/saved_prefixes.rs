//! PURE. Prefixes saved outside the KV pool, for models whose sequences cannot share its cells.
//!
//! A sliding window drops old cells, and a recurrent state covers all tokens before it, so a
//! sequence of such a model cannot begin in the middle of another one. A copy of a sequence's state
//! can be restored, but only where it ended. The engine therefore saves states where later prompts
//! probably continue: at the end of a response, before the end of a long prompt, and where a prompt
//! departs from one that was saved (Marconi, <https://arxiv.org/abs/2411.19379>).

use crate::scheduler::kv_pool::common;
use crate::types::request::{Tenant, Token};

/// A shorter prefix is computed again: its state would take as long to copy.
pub(crate) const TOKENS_MIN: u32 = 64;
/// Maximum number of prefixes: looking one up compares it with all of its tenant's.
const COUNT_MAX: usize = 256;

#[derive(Debug)]
struct Saved {
    tenant: Tenant,
    tokens: Box<[Token]>,
    state: Box<[u8]>,
    used_at: u64,
}

impl Saved {
    fn bytes(&self) -> usize {
        self.state.len() + size_of_val(&*self.tokens)
    }
}

/// The saved prefixes. No tenant is served from another's.
#[derive(Debug)]
pub(crate) struct SavedPrefixes {
    bytes_max: usize,
    bytes: usize,
    all: Vec<Saved>,
    now: u64,
}

impl SavedPrefixes {
    /// Creates a store of at most `bytes_max` bytes; 0 stores nothing.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, bytes: 0, all: Vec::new(), now: 0 }
    }

    /// Bytes that a state may have to be stored.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Bytes of all states and their tokens.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The longest saved prefix of `tokens`, in tokens, and its state. Counts as a use.
    pub(crate) fn longest(&mut self, tenant: Tenant, tokens: &[Token]) -> Option<(u32, &[u8])> {
        self.now += 1;
        let now = self.now;
        let fitting =
            self.all.iter_mut().filter(|s| s.tenant == tenant && tokens.starts_with(&s.tokens));
        let longest = fitting.max_by_key(|saved| saved.tokens.len())?;
        longest.used_at = now;
        Some((longest.tokens.len() as u32, &longest.state))
    }

    /// Length of the longest saved prefix of `tokens`, in tokens.
    pub(crate) fn matching(&self, tenant: Tenant, tokens: &[Token]) -> u32 {
        let own = self.all.iter().filter(|s| s.tenant == tenant && tokens.starts_with(&s.tokens));
        own.map(|saved| saved.tokens.len() as u32).max().unwrap_or(0)
    }

    /// How many tokens `tokens` has in common with a saved prefix, which may go on differently.
    pub(crate) fn common(&self, tenant: Tenant, tokens: &[Token]) -> u32 {
        let own = self.all.iter().filter(|saved| saved.tenant == tenant);
        own.map(|saved| common(&saved.tokens, tokens) as u32).max().unwrap_or(0)
    }

    /// True if exactly these tokens are saved. Counts as a use.
    pub(crate) fn record_use(&mut self, tenant: Tenant, tokens: &[Token]) -> bool {
        self.now += 1;
        let found = self.all.iter_mut().find(|s| s.tenant == tenant && *s.tokens == *tokens);
        found.map(|saved| saved.used_at = self.now).is_some()
    }

    /// Saves a prefix. Makes room by dropping what was not used for longest of the tenant that has
    /// most, so that one tenant's prompts do not displace all others'.
    pub(crate) fn insert(&mut self, tenant: Tenant, tokens: &[Token], state: Box<[u8]>) {
        self.now += 1;
        let saved = Saved { tenant, tokens: tokens.into(), state, used_at: self.now };
        if saved.bytes() > self.bytes_max {
            return;
        }
        self.bytes += saved.bytes();
        self.all.push(saved);
        while self.bytes > self.bytes_max || self.all.len() > COUNT_MAX {
            let Some(index) = self.least_valuable() else { return };
            self.bytes -= self.all.swap_remove(index).bytes();
        }
    }

    /// Drops a prefix whose state cannot be restored.
    pub(crate) fn remove(&mut self, tenant: Tenant, tokens: &[Token]) {
        self.all.retain(|saved| saved.tenant != tenant || *saved.tokens != *tokens);
        self.bytes = self.all.iter().map(Saved::bytes).sum();
    }

    /// The least recently used prefix of the tenant with most bytes, except for the newest of all.
    fn least_valuable(&self) -> Option<usize> {
        let held = |tenant: Tenant| -> usize {
            self.all.iter().filter(|saved| saved.tenant == tenant).map(Saved::bytes).sum()
        };
        let old = self.all.iter().enumerate().filter(|(_, saved)| saved.used_at < self.now);
        let most = old.clone().map(|(_, saved)| (held(saved.tenant), saved.tenant.0)).max()?.1;
        let of_most = old.filter(|(_, saved)| saved.tenant.0 == most);
        of_most.min_by_key(|(_, saved)| saved.used_at).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests;
