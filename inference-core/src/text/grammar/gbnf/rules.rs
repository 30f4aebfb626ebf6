//! PURE. What is known of the rules of a grammar before they are translated.

use super::{GrammarError, Node, Rule, at_line};

/// Longest regular expression that is made of a rule, in bytes. Rules that use each other
/// twice, ten times over, would make one a thousand times as long.
const REGEX_BYTES_MAX: usize = 16 * 1024;

/// Facts about each rule, by its number.
#[derive(Debug)]
pub(super) struct Facts {
    /// It may match nothing at all.
    nullable: Vec<bool>,
    /// Its length as a regular expression, where it can be one.
    regex_bytes: Vec<Option<usize>>,
}

impl Facts {
    /// Fails where a rule begins with itself: llama.cpp refuses that too.
    pub(super) fn new(rules: &[Rule]) -> Result<Self, GrammarError> {
        let mut facts =
            Self { nullable: vec![false; rules.len()], regex_bytes: vec![None; rules.len()] };
        facts.find_nullable(rules);
        facts.refuse_left_recursion(rules)?;
        facts.find_regular(rules);
        Ok(facts)
    }

    /// Whether `node` may match nothing.
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

    /// Whether `node` can be one regular expression.
    pub(super) fn is_regular(&self, node: &Node) -> bool {
        self.bytes(node).is_some()
    }

    /// About how long `node` is as a regular expression.
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

    /// Rules mostly use later ones: from the last to the first it is soon done.
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

    /// Rules that use only regular ones. One that recurs never gets there.
    fn find_regular(&mut self, rules: &[Rule]) {
        let mut seen = vec![false; rules.len()];
        for number in 0..rules.len() {
            self.visit(number, rules, &mut seen);
        }
    }

    /// What it uses comes first; what is still on the way then recurs.
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
        // Takes away rules that begin with none that is left; what stays begins with itself.
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

    /// Whether `from` leads back to itself, and not only to a circle.
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

    /// Rules with which `node` may begin. True if it may match nothing, so that what comes
    /// next begins too.
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
