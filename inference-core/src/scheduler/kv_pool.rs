//! PURE. Bookkeeping of the KV cells: what each holds, and which prompts share a prefix.
//!
//! The pool records cells as runs of tokens in a tree. A sequence (an id in the context, live
//! or kept in the cache) is a path from a root to a run. Two sequences with a common prefix share
//! its runs here, as they share the cells in the context. A run belongs to one tenant: no tenant is
//! served from another's prompts, or can detect them by timing.
//!
//! After every step `free + in use + cached` equals the pool's size.

use crate::types::model::SeqId;
use crate::types::request::{Tenant, Token};

type RunId = usize;

/// KV cells by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CellCounts {
    /// Empty cells.
    pub(crate) free: u32,
    /// Cells that a live sequence needs.
    pub(crate) in_use: u32,
    /// Cells that only kept sequences hold; evicting those frees them.
    pub(crate) cached: u32,
}

/// A kept sequence that was evicted. Until the caller removes it from the context, its state can be
/// saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Evicted {
    pub(crate) seq: SeqId,
    pub(crate) tenant: Tenant,
    pub(crate) tokens: Vec<Token>,
    /// How many of the tokens no other sequence holds.
    pub(crate) lost: u32,
}

/// A newly opened sequence, and the prefix it starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) seq: SeqId,
    /// A sequence id that holds the prefix, and the prefix's length in tokens, to be shared in the
    /// context. It may be the new sequence id itself, which was kept: then the caller truncates it
    /// after that prefix.
    pub(crate) shared: Option<(SeqId, u32)>,
    /// A kept sequence that was evicted to free its id, which is the new sequence's. The caller
    /// removes it from the context first, or truncates it if it holds the prefix.
    pub(crate) evicted: Option<Evicted>,
}

#[derive(Debug)]
struct Run {
    tenant: Tenant,
    parent: Option<RunId>,
    children: Vec<RunId>,
    tokens: Vec<Token>,
    /// Sequences whose path goes through this run.
    seqs: u32,
    /// Of those, the live ones.
    live: u32,
}

#[derive(Debug)]
struct SeqEntry {
    tenant: Tenant,
    /// The run where its path ends; `None` while the sequence is empty.
    leaf: Option<RunId>,
    live: bool,
    used_at: u64,
}

/// The pool's bookkeeping. See the module.
#[derive(Debug)]
pub(crate) struct KvPool {
    cells: u32,
    runs: Vec<Option<Run>>,
    roots: Vec<RunId>,
    seqs: Vec<Option<SeqEntry>>,
    /// True if sequences may share cells.
    shares: bool,
    now: u64,
}

impl KvPool {
    /// Creates a pool of `cells` cells and `seqs` sequence ids. With `shares`, a prompt may start
    /// with the cells of other sequences, and finished sequences are kept for that.
    pub(crate) fn new(cells: u32, seqs: u32, shares: bool) -> Self {
        Self {
            cells,
            runs: Vec::new(),
            roots: Vec::new(),
            seqs: (0..seqs).map(|_| None).collect(),
            shares,
            now: 0,
        }
    }

    /// Counts the cells by use.
    pub(crate) fn cells(&self) -> CellCounts {
        let (mut in_use, mut cached) = (0, 0);
        for run in self.runs.iter().flatten() {
            let part = if run.live > 0 { &mut in_use } else { &mut cached };
            *part += run.tokens.len() as u32;
        }
        CellCounts { free: self.cells - in_use - cached, in_use, cached }
    }

    /// Opens a live sequence for `tokens`. It starts with the longest prefix that any sequence
    /// already has, except for the last token, because the caller needs its logits. If every
    /// sequence id is taken, this evicts the least recently used kept sequence, and the one that
    /// holds the prefix only if there is no other. Returns `None` if live sequences hold every id.
    pub(crate) fn open(&mut self, tenant: Tenant, tokens: &[Token]) -> Option<Opened> {
        self.now += 1;
        let wanted = &tokens[..tokens.len().saturating_sub(1)];
        let (run, depth) = self.longest_match(tenant, wanted);
        let shared = run.and_then(|run| {
            let run = self.split(run, depth);
            self.seq_through(run).map(|from| (run, from, depth))
        });
        let (leaf, donor) = shared.map(|(run, from, _)| (run, from)).unzip();
        let free = self.seqs.iter().position(Option::is_none).map(|i| i as SeqId);
        let taken = match free {
            Some(_) => None,
            None => Some(self.oldest_kept(donor).or_else(|| self.oldest_kept(None))?),
        };
        // Recorded before anything is evicted, so that the prefix stays whichever sequence goes.
        self.along(leaf, |run| {
            run.seqs += 1;
            run.live += 1;
        });
        self.record_use(donor);
        let evicted = taken.and_then(|taken| self.evict_seq(taken));
        let seq = free.or(taken)?;
        self.seqs[seq as usize] = Some(SeqEntry { tenant, leaf, live: true, used_at: self.now });
        Some(Opened { seq, shared: shared.map(|(_, from, depth)| (from, depth)), evicted })
    }

    /// Sequence ids that no sequence has.
    pub(crate) fn unused(&self) -> impl Iterator<Item = SeqId> {
        (0..).zip(&self.seqs).filter(|(_, entry)| entry.is_none()).map(|(seq, _)| seq)
    }

    /// Length of the cached prefix that a new sequence for `tokens` would start with.
    pub(crate) fn matching(&self, tenant: Tenant, tokens: &[Token]) -> u32 {
        self.longest_match(tenant, &tokens[..tokens.len().saturating_sub(1)]).1
    }

    /// How many cells of that prefix only kept sequences hold: they count as cached now and would
    /// become in use.
    pub(crate) fn matching_cached(&self, tenant: Tenant, tokens: &[Token]) -> u32 {
        let wanted = &tokens[..tokens.len().saturating_sub(1)];
        let (mut at, mut left) = self.longest_match(tenant, wanted);
        let mut path = Vec::new();
        while let Some(run) = at.and_then(|id| self.runs[id].as_ref()) {
            path.push(run);
            at = run.parent;
        }
        let mut cached = 0;
        // From the root: the match may end in the middle of its last run.
        for run in path.iter().rev() {
            let tokens = left.min(run.tokens.len() as u32);
            left -= tokens;
            cached += if run.live == 0 { tokens } else { 0 };
        }
        cached
    }

    /// Protects the cached prefix of a queued request: its cells are evicted after all others.
    pub(crate) fn protect(&mut self, tenant: Tenant, tokens: &[Token]) {
        self.now += 1;
        let wanted = &tokens[..tokens.len().saturating_sub(1)];
        let (run, _) = self.longest_match(tenant, wanted);
        let seq = run.and_then(|run| self.seq_through(run));
        self.record_use(seq);
    }

    fn record_use(&mut self, seq: Option<SeqId>) {
        if let Some(Some(seq)) = seq.and_then(|seq| self.seqs.get_mut(seq as usize)) {
            seq.used_at = self.now;
        }
    }

    /// Records cells for `tokens` at the end of a live sequence.
    pub(crate) fn append(&mut self, seq: SeqId, tokens: &[Token]) {
        let Some(entry) = &self.seqs[seq as usize] else { return };
        let (tenant, leaf) = (entry.tenant, entry.leaf);
        let own = leaf.and_then(|leaf| self.runs[leaf].as_mut());
        if let Some(run) = own
            && run.seqs == 1
            && run.children.is_empty()
        {
            run.tokens.extend_from_slice(tokens);
            return;
        }
        let run = Run {
            tenant,
            parent: leaf,
            children: Vec::new(),
            tokens: tokens.to_vec(),
            seqs: 1,
            live: 1,
        };
        let id = self.add(run);
        if let Some(entry) = &mut self.seqs[seq as usize] {
            entry.leaf = Some(id);
        }
    }

    /// Removes the last cells of a live sequence, which it shares with no other.
    pub(crate) fn shorten(&mut self, seq: SeqId, cells: u32) {
        let leaf = self.leaf(seq).and_then(|leaf| self.runs[leaf].as_mut());
        if let Some(run) = leaf {
            debug_assert!(run.seqs == 1 && run.children.is_empty());
            run.tokens.truncate(run.tokens.len().saturating_sub(cells as usize));
        }
    }

    /// Closes a live sequence and keeps it in the cache, unless another sequence holds all of its
    /// tokens. Sequence ids that the caller must remove from the context, this one or those it
    /// makes redundant, are added to `removed`.
    pub(crate) fn close(&mut self, seq: SeqId, removed: &mut Vec<SeqId>) {
        self.now += 1;
        let Some(entry) = &mut self.seqs[seq as usize] else { return };
        entry.live = false;
        entry.used_at = self.now;
        let leaf = entry.leaf;
        self.along(leaf, |run| run.live -= 1);
        let superfluous = match leaf.and_then(|leaf| self.runs[leaf].as_ref()) {
            None => true,
            // Another sequence holds all of its tokens.
            Some(run) => run.seqs > 1,
        };
        if superfluous || !self.shares {
            self.remove(seq);
            removed.push(seq);
            return;
        }
        for other in self.kept() {
            if other != seq && self.is_on_path(self.leaf(other), leaf) {
                self.remove(other);
                removed.push(other);
            }
        }
    }

    /// Removes a live sequence at once, because it was preempted or failed and its cells are
    /// needed.
    pub(crate) fn discard(&mut self, seq: SeqId) {
        let Some(entry) = &mut self.seqs[seq as usize] else { return };
        let was_live = std::mem::replace(&mut entry.live, false);
        let leaf = entry.leaf;
        if was_live {
            self.along(leaf, |run| run.live -= 1);
        }
        self.remove(seq);
    }

    /// Evicts the least recently used kept sequence.
    pub(crate) fn evict(&mut self) -> Option<Evicted> {
        let oldest = self.oldest_kept(None)?;
        self.evict_seq(oldest)
    }

    /// The kept sequences, as they would be evicted, the most recently used first.
    pub(crate) fn kept_sequences(&self) -> Vec<Evicted> {
        let mut kept = self.kept();
        kept.sort_by_key(|seq| std::cmp::Reverse(self.used_at(*seq)));
        kept.into_iter().filter_map(|seq| self.describe(seq)).collect()
    }

    fn evict_seq(&mut self, seq: SeqId) -> Option<Evicted> {
        let evicted = self.describe(seq);
        self.remove(seq);
        evicted
    }

    fn describe(&self, seq: SeqId) -> Option<Evicted> {
        let tenant = self.seqs[seq as usize].as_ref()?.tenant;
        let path = self.path(seq);
        let lost = path.iter().filter(|run| run.seqs == 1).map(|run| run.tokens.len() as u32);
        let (lost, tokens) = (lost.sum(), path.iter().flat_map(|run| &run.tokens));
        Some(Evicted { seq, tenant, tokens: tokens.copied().collect(), lost })
    }

    /// The runs of a sequence, from the root.
    fn path(&self, seq: SeqId) -> Vec<&Run> {
        let mut path = Vec::new();
        let mut at = self.leaf(seq);
        while let Some(run) = at.and_then(|id| self.runs[id].as_ref()) {
            path.push(run);
            at = run.parent;
        }
        path.reverse();
        path
    }

    fn kept(&self) -> Vec<SeqId> {
        let kept =
            |(i, t): (usize, &Option<SeqEntry>)| t.as_ref().filter(|t| !t.live).map(|_| i as SeqId);
        self.seqs.iter().enumerate().filter_map(kept).collect()
    }

    fn oldest_kept(&self, except: Option<SeqId>) -> Option<SeqId> {
        let used_at = |seq: &SeqId| self.used_at(*seq);
        self.kept().into_iter().filter(|t| Some(*t) != except).min_by_key(used_at)
    }

    fn used_at(&self, seq: SeqId) -> Option<u64> {
        self.seqs[seq as usize].as_ref().map(|seq| seq.used_at)
    }

    fn leaf(&self, seq: SeqId) -> Option<RunId> {
        self.seqs[seq as usize].as_ref()?.leaf
    }

    /// Removes a sequence from its path, and the runs that no other sequence needs.
    fn remove(&mut self, seq: SeqId) {
        let Some(seq) = self.seqs[seq as usize].take() else { return };
        let mut at = seq.leaf;
        while let Some(id) = at {
            let Some(run) = &mut self.runs[id] else { return };
            at = run.parent;
            run.seqs -= 1;
            if run.seqs == 0 {
                let siblings = match at.and_then(|p| self.runs[p].as_mut()) {
                    Some(parent) => &mut parent.children,
                    None => &mut self.roots,
                };
                siblings.retain(|r| *r != id);
                self.runs[id] = None;
            }
        }
    }

    fn add(&mut self, run: Run) -> RunId {
        let parent = run.parent;
        let id = match self.runs.iter().position(Option::is_none) {
            Some(id) => id,
            None => {
                self.runs.push(None);
                self.runs.len() - 1
            }
        };
        self.runs[id] = Some(run);
        match parent.and_then(|p| self.runs[p].as_mut()) {
            Some(parent) => parent.children.push(id),
            None => self.roots.push(id),
        }
        id
    }

    fn along(&mut self, leaf: Option<RunId>, mut change: impl FnMut(&mut Run)) {
        let mut at = leaf;
        while let Some(run) = at.and_then(|id| self.runs[id].as_mut()) {
            change(run);
            at = run.parent;
        }
    }

    fn is_on_path(&self, run: Option<RunId>, leaf: Option<RunId>) -> bool {
        let mut at = leaf;
        while at.is_some() && at != run {
            at = at.and_then(|id| self.runs[id].as_ref()).and_then(|run| run.parent);
        }
        at.is_some()
    }

    /// A sequence that holds all of a run: a live one if there is one, else the most recently used.
    fn seq_through(&self, run: RunId) -> Option<SeqId> {
        let through = |(_, seq): &(usize, &Option<SeqEntry>)| {
            seq.as_ref().is_some_and(|t| self.is_on_path(Some(run), t.leaf))
        };
        let last =
            |(_, seq): &(usize, &Option<SeqEntry>)| seq.as_ref().map(|t| (t.live, t.used_at));
        let found = self.seqs.iter().enumerate().filter(through).max_by_key(last);
        found.map(|(i, _)| i as SeqId)
    }

    /// The run in which the longest match ends, and the length of the match in tokens.
    fn longest_match(&self, tenant: Tenant, tokens: &[Token]) -> (Option<RunId>, u32) {
        let (mut best, mut longest) = (None, 0);
        if !self.shares {
            return (None, 0);
        }
        // (run, tokens before it)
        let mut open: Vec<(RunId, usize)> = self.roots.iter().map(|r| (*r, 0)).collect();
        while let Some((id, before)) = open.pop() {
            let Some(run) = &self.runs[id] else { continue };
            if run.tenant != tenant {
                continue;
            }
            let same = common(&run.tokens, &tokens[before..]);
            let depth = before + same;
            if depth > longest {
                (best, longest) = (Some(id), depth);
            }
            if same == run.tokens.len() {
                open.extend(run.children.iter().map(|child| (*child, depth)));
            }
        }
        (best, longest as u32)
    }

    /// Splits a run so that it ends at `depth` tokens from the root; returns it.
    fn split(&mut self, id: RunId, depth: u32) -> RunId {
        let mut before = 0;
        let mut at = self.runs[id].as_ref().and_then(|run| run.parent);
        while let Some(run) = at.and_then(|id| self.runs[id].as_ref()) {
            before += run.tokens.len();
            at = run.parent;
        }
        let Some(run) = &mut self.runs[id] else { return id };
        let kept = depth as usize - before;
        if kept == run.tokens.len() {
            return id;
        }
        let rest = run.tokens.split_off(kept);
        let tail = Run {
            tenant: run.tenant,
            parent: Some(id),
            children: std::mem::take(&mut run.children),
            tokens: rest,
            seqs: run.seqs,
            live: run.live,
        };
        let tail = self.add(tail);
        let moved = self.runs[tail].as_ref().map_or(Vec::new(), |t| t.children.clone());
        for child in moved {
            if let Some(child) = &mut self.runs[child] {
                child.parent = Some(tail);
            }
        }
        for seq in self.seqs.iter_mut().flatten() {
            if seq.leaf == Some(id) {
                seq.leaf = Some(tail);
            }
        }
        id
    }
}

/// Length of the common prefix in tokens.
pub(crate) fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
