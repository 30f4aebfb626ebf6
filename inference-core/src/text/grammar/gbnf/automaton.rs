//! PURE. Finite automata of regular parts, to decide whether one could match further after the
//! other has matched.
//!
//! Glushkov's construction: one state for each character set of the expression, and no others.
//! (Glushkov, "The abstract theory of automata", 1961.)

use std::collections::HashSet;

use super::charset::Bytes;
use super::{CharSet, GrammarError, Node, Rule};

/// Maximum copies of a part for its repetitions; a higher count is treated as unlimited, which can
/// only add matches.
const COPIES_MAX: u32 = 32;
/// Maximum states and edges of one automaton. Larger parts are split.
const EDGES_MAX: usize = 50_000;
/// Edges, pairs of states and parts that one grammar may inspect: some tenths of a second.
const BUDGET: usize = 1_000_000;

/// States are indices of sets; a match starts in one of `first` and ends in one of `last`.
#[derive(Debug)]
pub(super) struct Automaton {
    sets: Vec<CharSet>,
    next: Vec<Vec<u32>>,
    first: Vec<u32>,
    last: Vec<bool>,
    /// First bytes of what may come after each state.
    next_bytes: Vec<Bytes>,
}

struct Part {
    nullable: bool,
    first: Vec<u32>,
    last: Vec<u32>,
}

/// Relation of two automata.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// Both match a common text.
    pub(super) same: bool,
    /// First bytes with which the second continues where the first has ended.
    pub(super) second_goes_on: Bytes,
    /// First bytes with which the first continues where the second has ended.
    pub(super) first_goes_on: Bytes,
}

impl Automaton {
    /// Builds the automaton of a part; `None` if it would be too large.
    pub(super) fn new(
        node: &Node,
        rules: &[Rule],
        budget: &mut Budget,
    ) -> Result<Option<Self>, GrammarError> {
        let mut builder = Builder { rules, sets: Vec::new(), next: Vec::new(), edges: 0 };
        let whole = builder.part(node);
        budget.spend(builder.edges)?;
        Ok(whole.and_then(|whole| Self::built(whole, builder)))
    }

    fn built(whole: Part, builder: Builder<'_>) -> Option<Self> {
        let Builder { sets, mut next, .. } = builder;
        let mut last = vec![false; sets.len()];
        for state in whole.last {
            *last.get_mut(state as usize)? = true;
        }
        for next in &mut next {
            next.sort_unstable();
            next.dedup();
        }
        let bytes: Vec<Bytes> = sets.iter().map(CharSet::first_bytes).collect();
        let next_bytes = next.iter().map(|next| union(next, &bytes)).collect();
        Some(Self { sets, next, first: whole.first, last, next_bytes })
    }

    /// First bytes of its matches.
    pub(super) fn first_bytes(&self) -> Bytes {
        let mut bytes = Bytes::default();
        for state in &self.first {
            if let Some(set) = self.sets.get(*state as usize) {
                bytes.add(set.first_bytes());
            }
        }
        bytes
    }

    /// Follows both through all texts that both accept. `budget` counts pairs of states.
    pub(super) fn compare(
        &self,
        other: &Self,
        budget: &mut Budget,
    ) -> Result<Comparison, GrammarError> {
        let mut found = Comparison::default();
        let mut pairs = Pairs::default();
        pairs.add(self, other, (&self.first, &other.first), budget)?;
        while let Some((mine, theirs)) = pairs.todo.pop() {
            let (a, b) = (mine as usize, theirs as usize);
            let ends = (self.last.get(a) == Some(&true), other.last.get(b) == Some(&true));
            found.same |= ends.0 && ends.1;
            if let (true, Some(bytes)) = (ends.0, other.next_bytes.get(b)) {
                found.second_goes_on.add(*bytes);
            }
            if let (true, Some(bytes)) = (ends.1, self.next_bytes.get(a)) {
                found.first_goes_on.add(*bytes);
            }
            if let (Some(mine), Some(theirs)) = (self.next.get(a), other.next.get(b)) {
                pairs.add(self, other, (mine, theirs), budget)?;
            }
        }
        Ok(found)
    }
}

/// Pairs of states that the same text reaches.
#[derive(Default)]
struct Pairs {
    seen: HashSet<(u32, u32)>,
    todo: Vec<(u32, u32)>,
}

impl Pairs {
    fn add(
        &mut self,
        a: &Automaton,
        b: &Automaton,
        (mine, theirs): (&[u32], &[u32]),
        budget: &mut Budget,
    ) -> Result<(), GrammarError> {
        for x in mine {
            for y in theirs {
                budget.spend(1)?;
                let sets = (a.sets.get(*x as usize), b.sets.get(*y as usize));
                let (Some(one), Some(two)) = sets else { continue };
                if !self.seen.contains(&(*x, *y)) && one.meets(two) {
                    self.seen.insert((*x, *y));
                    self.todo.push((*x, *y));
                }
            }
        }
        Ok(())
    }
}

/// Remaining cost of comparisons.
#[derive(Debug)]
pub(super) struct Budget(usize);

impl Budget {
    pub(super) const WHOLE: Self = Self(BUDGET);

    pub(super) fn spend(&mut self, cost: usize) -> Result<(), GrammarError> {
        match self.0.checked_sub(cost) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => Err(entangled()),
        }
    }
}

/// The grammar's lexemes cannot be distinguished in time.
pub(super) fn entangled() -> GrammarError {
    GrammarError::TooComplex("the grammar's rules are too entangled".into())
}

fn union(states: &[u32], bytes: &[Bytes]) -> Bytes {
    let mut all = Bytes::default();
    for state in states {
        all.add(bytes.get(*state as usize).copied().unwrap_or_default());
    }
    all
}

struct Builder<'a> {
    rules: &'a [Rule],
    sets: Vec<CharSet>,
    next: Vec<Vec<u32>>,
    edges: usize,
}

impl Builder<'_> {
    fn part(&mut self, node: &Node) -> Option<Part> {
        let nothing = || Part { nullable: true, first: Vec::new(), last: Vec::new() };
        match node {
            Node::Set(set) => {
                let state = u32::try_from(self.sets.len()).ok()?;
                self.count(1)?;
                self.sets.push(set.clone());
                self.next.push(Vec::new());
                Some(Part { nullable: false, first: vec![state], last: vec![state] })
            }
            Node::Seq(parts) => {
                let mut all = nothing();
                for part in parts {
                    let part = self.part(part)?;
                    all = self.then(all, part)?;
                }
                Some(all)
            }
            Node::Alt(parts) => {
                let mut all = Part { nullable: false, ..nothing() };
                for part in parts {
                    let part = self.part(part)?;
                    all.nullable |= part.nullable;
                    all.first.extend(part.first);
                    all.last.extend(part.last);
                }
                Some(all)
            }
            Node::Repeat(inner, least, most) => self.repeat(inner, *least, *most),
            Node::Rule(rule) => self.part(&self.rules.get(*rule)?.body),
        }
    }

    /// Each copy follows the one before it. Skipping an optional copy skips all later ones: it
    /// makes no difference which of them are used.
    fn repeat(&mut self, inner: &Node, least: u32, most: Option<u32>) -> Option<Part> {
        let mut all = Part { nullable: least == 0, first: Vec::new(), last: Vec::new() };
        let exact = most.filter(|most| *most <= COPIES_MAX);
        let copies = exact.unwrap_or_else(|| least.clamp(1, COPIES_MAX));
        let mut before: Vec<u32> = Vec::new();
        for copy in 1..=copies {
            let part = self.part(inner)?;
            self.join(&before, &part.first)?;
            if exact.is_none() && copy == copies {
                self.join(&part.last, &part.first)?;
            }
            if copy == 1 {
                all.nullable |= part.nullable;
                all.first = part.first;
            }
            if copy >= least.min(COPIES_MAX) || part.nullable {
                all.last.extend(&part.last);
            }
            before = part.last;
        }
        all.nullable |= copies == 0;
        Some(all)
    }

    fn then(&mut self, before: Part, after: Part) -> Option<Part> {
        self.join(&before.last, &after.first)?;
        let mut first = before.first;
        if before.nullable {
            first.extend(&after.first);
        }
        let mut last = after.last;
        if after.nullable {
            last.extend(&before.last);
        }
        self.count(first.len() + last.len())?;
        Some(Part { nullable: before.nullable && after.nullable, first, last })
    }

    fn join(&mut self, from: &[u32], to: &[u32]) -> Option<()> {
        self.count(from.len().checked_mul(to.len())?)?;
        for state in from {
            self.next.get_mut(*state as usize)?.extend(to);
        }
        Some(())
    }

    fn count(&mut self, edges: usize) -> Option<()> {
        self.edges += edges;
        (self.edges <= EDGES_MAX).then_some(())
    }
}
