//! PURE. Properties of the rules of a grammar, computed before the translation.

use super::{GrammarError, Node, Rule, at_line};

/// Maximum length in bytes of a regular expression made from a rule. Ten rules that each use the
/// next one twice would make one a thousand times as long.
const REGEX_BYTES_MAX: usize = 16 * 1024;

/// Properties of each rule, by number.
#[derive(Debug)]
pub(super) struct RuleFacts {
    /// True if the rule may match the empty text.
    nullable: Vec<bool>,
    /// Its length as a regular expression, if it can be one.
    regex_bytes: Vec<Option<usize>>,
}

impl RuleFacts {
    /// Fails if a rule is left-recursive, which llama.cpp rejects as well.
    pub(super) fn new(rules: &[Rule]) -> Result<Self, GrammarError> {
        let mut facts =
            Self { nullable: vec![false; rules.len()], regex_bytes: vec![None; rules.len()] };
        facts.find_nullable(rules);
        facts.refuse_left_recursion(rules)?;
        facts.find_regular(rules);
        Ok(facts)
    }

    /// True if `node` may match the empty text.
    pub(super) fn is_nullable(&self, node: &Node) -> bool {
        match node {
            Node::Set(_) => false,
            Node::Seq(parts) => parts.iter().all(|part| self.is_nullable(part)),
            Node::Alt(parts) => parts.iter().any(|part| self.is_nullable(part)),
            Node::Repeat(inner, least, most) => {
                *least == 0 || *most == Some(0) || self.is_nullable(inner)
            }
            Node::Rule(rule) => self.nullable.get(*rule).copied().unwrap_or(false),
        }
    }

    /// True if `node` can be one regular expression.
    pub(super) fn is_regular(&self, node: &Node) -> bool {
        self.bytes(node).is_some()
    }

    /// Approximate length of `node` as a regular expression; `None` if it is not regular.
    fn bytes(&self, node: &Node) -> Option<usize> {
        let sum = |parts: &[Node]| {
            let mut sum = 4usize;
            for part in parts {
                sum = sum.checked_add(self.bytes(part)? + 1)?;
            }
            Some(sum)
        };
        let bytes = match node {
            Node::Set(set) => set.regex().len(),
            Node::Seq(parts) | Node::Alt(parts) => sum(parts)?,
            Node::Repeat(inner, ..) => self.bytes(inner)?.checked_add(16)?,
            Node::Rule(rule) => (*self.regex_bytes.get(*rule)?)?,
        };
        (bytes <= REGEX_BYTES_MAX).then_some(bytes)
    }

    /// Iterates from the last rule to the first, which converges fast because most rules use later
    /// ones.
    fn find_nullable(&mut self, rules: &[Rule]) {
        let mut changed = true;
        while changed {
            changed = false;
            for (number, rule) in rules.iter().enumerate().rev() {
                let nullable = self.is_nullable(&rule.body);
                if let Some(known) = self.nullable.get_mut(number) {
                    changed |= *known != nullable;
                    *known = nullable;
                }
            }
        }
    }

    /// Marks rules that use only regular ones. A recursive rule never qualifies.
    fn find_regular(&mut self, rules: &[Rule]) {
        let mut seen = vec![false; rules.len()];
        for number in 0..rules.len() {
            self.visit(number, rules, &mut seen);
        }
    }

    /// Visits the rules it uses first; one that is still being visited is recursive.
    fn visit(&mut self, number: usize, rules: &[Rule], seen: &mut [bool]) {
        let new = seen.get_mut(number).is_some_and(|seen| !std::mem::replace(seen, true));
        let Some(rule) = rules.get(number).filter(|_| new) else { return };
        let mut uses = Vec::new();
        all_rules(&rule.body, &mut uses);
        for used in uses {
            self.visit(used, rules, seen);
        }
        let bytes = self.bytes(&rule.body);
        if let Some(known) = self.regex_bytes.get_mut(number) {
            *known = bytes;
        }
    }

    fn refuse_left_recursion(&self, rules: &[Rule]) -> Result<(), GrammarError> {
        let mut begins: Vec<Vec<usize>> = Vec::with_capacity(rules.len());
        for rule in rules {
            let mut first = Vec::new();
            self.first_rules(&rule.body, &mut first);
            first.sort_unstable();
            first.dedup();
            begins.push(first);
        }
        // Removes rules that start with none of the remaining rules; those that stay start with
        // themselves.
        let mut left: Vec<bool> = vec![true; rules.len()];
        loop {
            let is_left = |rule: &usize| left.get(*rule).copied().unwrap_or(false);
            let free =
                |(rule, first): &(usize, &Vec<usize>)| is_left(rule) && !first.iter().any(is_left);
            let freed: Vec<usize> =
                begins.iter().enumerate().filter(free).map(|(rule, _)| rule).collect();
            if freed.is_empty() {
                break;
            }
            for rule in freed {
                if let Some(left) = left.get_mut(rule) {
                    *left = false;
                }
            }
        }
        let stays = |from: usize| self.on_cycle(&begins, &left, from);
        match (0..rules.len()).find(|rule| stays(*rule)).and_then(|rule| rules.get(rule)) {
            None => Ok(()),
            Some(rule) => {
                let why = format!("`{}` begins with itself (left recursion)", rule.name);
                Err(at_line(rule.line, why))
            }
        }
    }

    /// True if `from` leads back to itself, and not only to another cycle.
    fn on_cycle(&self, begins: &[Vec<usize>], left: &[bool], from: usize) -> bool {
        let is_left = |rule: usize| left.get(rule).copied().unwrap_or(false);
        if !is_left(from) {
            return false;
        }
        let mut seen = vec![false; begins.len()];
        let mut todo = vec![from];
        while let Some(rule) = todo.pop() {
            for next in begins.get(rule).into_iter().flatten().copied() {
                if next == from {
                    return true;
                }
                let new = seen.get_mut(next).is_some_and(|s| !std::mem::replace(s, true));
                if new && is_left(next) {
                    todo.push(next);
                }
            }
        }
        false
    }

    /// Collects the rules that `node` may start with. True if it may match the empty text, so that
    /// what follows may come first as well.
    fn first_rules(&self, node: &Node, found: &mut Vec<usize>) -> bool {
        match node {
            Node::Set(_) => {}
            Node::Seq(parts) => {
                for part in parts {
                    if !self.first_rules(part, found) {
                        break;
                    }
                }
            }
            Node::Alt(parts) => {
                for part in parts {
                    self.first_rules(part, found);
                }
            }
            Node::Repeat(inner, ..) => {
                self.first_rules(inner, found);
            }
            Node::Rule(rule) => found.push(*rule),
        }
        self.is_nullable(node)
    }
}

fn all_rules(node: &Node, found: &mut Vec<usize>) {
    match node {
        Node::Set(_) => {}
        Node::Seq(parts) | Node::Alt(parts) => {
            parts.iter().for_each(|part| all_rules(part, found));
        }
        Node::Repeat(inner, ..) => all_rules(inner, found),
        Node::Rule(rule) => found.push(*rule),
    }
}
