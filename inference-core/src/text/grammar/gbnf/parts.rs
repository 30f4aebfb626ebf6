//! PURE. A grammar over lexemes: what may come first, what may come next, and which lexemes the
//! lexer may have to distinguish.

use std::collections::{BTreeMap, BTreeSet};

use super::GrammarError;
use super::automaton::{Automaton, Budget};
use super::charset::Bytes;

/// A rule's body, or a part of one.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part {
    /// The lexeme with this number. It never matches the empty text.
    Lexeme(usize),
    Seq(Vec<Part>),
    Alt(Vec<Part>),
    Repeat(Box<Part>, u32, Option<u32>),
    /// A reference to the rule with this number.
    Rule(usize),
}

type Lexemes = BTreeSet<usize>;

/// First and follow sets of a grammar.
#[derive(Debug)]
pub(super) struct Order<'a> {
    rules: &'a BTreeMap<usize, Part>,
    nullable: BTreeMap<usize, bool>,
    first: BTreeMap<usize, Lexemes>,
    after_rule: BTreeMap<usize, Lexemes>,
    /// Lexemes that may come right after each lexeme.
    after: Vec<Lexemes>,
}

impl<'a> Order<'a> {
    /// Computes the order of `lexemes` lexemes in `rules`.
    pub(super) fn new(
        rules: &'a BTreeMap<usize, Part>,
        lexemes: usize,
        budget: &mut Budget,
    ) -> Result<Self, GrammarError> {
        let mut order = Self {
            rules,
            nullable: BTreeMap::new(),
            first: BTreeMap::new(),
            after_rule: BTreeMap::new(),
            after: vec![Lexemes::new(); lexemes],
        };
        while order.find_first(budget)? {}
        while order.find_after(budget)? {}
        Ok(order)
    }

    /// Pairs of lexemes that the lexer may have to choose from but cannot distinguish: the first
    /// has ended, and the second may continue with what may also follow the first. Returns the
    /// numbers of the second ones, which are better split.
    pub(super) fn conflicts(
        &self,
        root: usize,
        automata: &[Automaton],
        budget: &mut Budget,
    ) -> Result<Lexemes, GrammarError> {
        let bytes: Vec<Bytes> = self.after.iter().map(|after| union(after, automata)).collect();
        let after = |lexeme: usize| bytes.get(lexeme).copied().unwrap_or_default();
        let mut found = Lexemes::new();
        let mut pairs = Pairs::default();
        let first = self.first.get(&root).cloned().unwrap_or_default();
        pairs.add(&first, &first, budget)?;
        while let Some((a, b)) = pairs.todo.pop() {
            let (Some(x), Some(y)) = (automata.get(a), automata.get(b)) else { continue };
            let both = x.compare(y, budget)?;
            if both.second_goes_on.meets(after(a)) {
                found.insert(b);
            }
            if both.first_goes_on.meets(after(b)) {
                found.insert(a);
            }
            if let (true, Some(after), Some(others)) =
                (both.same, self.after.get(a), self.after.get(b))
            {
                pairs.add(after, others, budget)?;
                pairs.add(after, after, budget)?;
                pairs.add(others, others, budget)?;
            }
        }
        Ok(found)
    }

    fn find_first(&mut self, budget: &mut Budget) -> Result<bool, GrammarError> {
        let mut changed = false;
        // First sets come from later rules, follow sets from earlier ones.
        for (rule, body) in self.rules.iter().rev() {
            let mut first = Lexemes::new();
            let nullable = self.first_of(body, &mut first, budget)?;
            changed |= self.nullable.insert(*rule, nullable) != Some(nullable);
            changed |= self.first.get(rule) != Some(&first);
            self.first.insert(*rule, first);
        }
        Ok(changed)
    }

    /// Collects the lexemes that `part` may start with; true if it may be empty.
    fn first_of(
        &self,
        part: &Part,
        found: &mut Lexemes,
        budget: &mut Budget,
    ) -> Result<bool, GrammarError> {
        budget.spend(1)?;
        Ok(match part {
            Part::Lexeme(lexeme) => {
                found.insert(*lexeme);
                false
            }
            Part::Seq(parts) => {
                for part in parts {
                    if !self.first_of(part, found, budget)? {
                        return Ok(false);
                    }
                }
                true
            }
            Part::Alt(parts) => {
                let mut nullable = false;
                for part in parts {
                    nullable |= self.first_of(part, found, budget)?;
                }
                nullable
            }
            Part::Repeat(inner, least, _) => self.first_of(inner, found, budget)? || *least == 0,
            Part::Rule(rule) => {
                let first = self.first.get(rule);
                budget.spend(first.map_or(0, Lexemes::len))?;
                found.extend(first.into_iter().flatten());
                self.nullable.get(rule).copied().unwrap_or(false)
            }
        })
    }

    fn find_after(&mut self, budget: &mut Budget) -> Result<bool, GrammarError> {
        let size = |order: &Self| {
            let rules: usize = order.after_rule.values().map(Lexemes::len).sum();
            rules + order.after.iter().map(Lexemes::len).sum::<usize>()
        };
        let before = size(self);
        for (rule, body) in self.rules {
            let after = self.after_rule.get(rule).cloned().unwrap_or_default();
            self.put_after(body, after, budget)?;
        }
        Ok(size(self) != before)
    }

    fn put_after(
        &mut self,
        part: &Part,
        mut after: Lexemes,
        budget: &mut Budget,
    ) -> Result<(), GrammarError> {
        budget.spend(1 + after.len())?;
        match part {
            Part::Lexeme(lexeme) => {
                if let Some(known) = self.after.get_mut(*lexeme) {
                    known.extend(after);
                }
            }
            Part::Rule(rule) => self.after_rule.entry(*rule).or_default().extend(after),
            Part::Alt(parts) => {
                for part in parts {
                    self.put_after(part, after.clone(), budget)?;
                }
            }
            Part::Repeat(inner, _, most) => {
                if *most != Some(1) {
                    self.first_of(inner, &mut after, budget)?;
                }
                self.put_after(inner, after, budget)?;
            }
            Part::Seq(parts) => {
                for part in parts.iter().rev() {
                    self.put_after(part, after.clone(), budget)?;
                    let mut first = Lexemes::new();
                    if !self.first_of(part, &mut first, budget)? {
                        after.clear();
                    }
                    after.extend(first);
                }
            }
        }
        Ok(())
    }
}

fn union(lexemes: &Lexemes, automata: &[Automaton]) -> Bytes {
    let mut bytes = Bytes::default();
    for automaton in lexemes.iter().filter_map(|lexeme| automata.get(*lexeme)) {
        bytes.add(automaton.first_bytes());
    }
    bytes
}

/// Pairs of lexemes that the lexer may have to choose from, the smaller number first.
#[derive(Default)]
struct Pairs {
    seen: BTreeSet<(usize, usize)>,
    todo: Vec<(usize, usize)>,
}

impl Pairs {
    fn add(&mut self, a: &Lexemes, b: &Lexemes, budget: &mut Budget) -> Result<(), GrammarError> {
        for x in a {
            for y in b {
                budget.spend(1)?;
                let pair = (*x.min(y), *x.max(y));
                if self.seen.insert(pair) {
                    self.todo.push(pair);
                }
            }
        }
        Ok(())
    }
}
