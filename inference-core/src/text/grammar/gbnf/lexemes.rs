//! PURE. Chooses the lexemes of a grammar and writes it as Lark.
//!
//! llguidance's lexer takes the longest match of all lexemes that may come next. The translation
//! therefore starts with the longest lexemes, the non-recursive parts. As long as some lexeme could
//! match text that belongs to the next one, it splits that lexeme, in the end into single
//! characters, which all have the same length.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write;

use super::automaton::{Automaton, Budget, entangled};
use super::parts::{Order, Part};
use super::rules::RuleFacts;
use super::{GrammarError, Node, Rule};

/// Maximum rounds of splitting: the depth of references between non-recursive rules.
const ROUNDS_MAX: usize = 64;
/// Maximum number of lexemes in a grammar.
const LEXEMES_MAX: usize = 500;

/// Writes the grammar with the start rule `root` as Lark.
pub(super) fn lark(rules: &[Rule], facts: &RuleFacts, root: usize) -> Result<String, GrammarError> {
    let mut budget = Budget::WHOLE;
    let mut split = HashSet::new();
    for _ in 0..ROUNDS_MAX {
        let mut set = LexemeSet::new(rules, facts, &split);
        set.rule(root)?;
        let found = set.ambiguous(root, &mut budget)?;
        if found.is_empty() {
            return Ok(set.write(root));
        }
        split.extend(found);
    }
    Err(entangled())
}

struct LexemeSet<'a> {
    rules: &'a [Rule],
    facts: &'a RuleFacts,
    /// Regular expressions that must not be lexemes.
    split: &'a HashSet<String>,
    lexemes: Vec<Lexeme>,
    known: HashMap<String, usize>,
    bodies: BTreeMap<usize, Part>,
}

struct Lexeme {
    regex: String,
    node: Node,
    nullable: bool,
}

impl<'a> LexemeSet<'a> {
    fn new(rules: &'a [Rule], facts: &'a RuleFacts, split: &'a HashSet<String>) -> Self {
        let (lexemes, known, bodies) = (Vec::new(), HashMap::new(), BTreeMap::new());
        Self { rules, facts, split, lexemes, known, bodies }
    }

    /// Writes the rules that are reachable from `root`.
    fn rule(&mut self, root: usize) -> Result<(), GrammarError> {
        let mut todo = vec![root];
        while let Some(number) = todo.pop() {
            let Some(rule) = self.rules.get(number) else { continue };
            if !self.bodies.contains_key(&number) {
                let body = self.part(&rule.body)?;
                collect_rules(&body, &mut todo);
                self.bodies.insert(number, body);
            }
        }
        Ok(())
    }

    fn part(&mut self, node: &Node) -> Result<Part, GrammarError> {
        let regular = self.facts.is_regular(node);
        if regular || matches!(node, Node::Set(_)) {
            let mut regex = String::new();
            write_regex(node, self.rules, &mut regex);
            if regex.is_empty() {
                return Ok(Part::Seq(Vec::new()));
            }
            if !self.split.contains(&regex) {
                return self.lexeme(regex, node);
            }
        }
        Ok(match node {
            Node::Set(_) | Node::Repeat(_, _, Some(0)) => Part::Seq(Vec::new()),
            Node::Seq(parts) => Part::Seq(self.parts(parts, regular, Node::Seq)?),
            Node::Alt(parts) => Part::Alt(self.parts(parts, regular, Node::Alt)?),
            Node::Repeat(inner, least, most) => {
                Part::Repeat(Box::new(self.part(inner)?), *least, *most)
            }
            Node::Rule(rule) => Part::Rule(*rule),
        })
    }

    /// Joins adjacent regular parts into one lexeme, unless the whole must be split.
    fn parts(
        &mut self,
        nodes: &[Node],
        apart: bool,
        join: fn(Vec<Node>) -> Node,
    ) -> Result<Vec<Part>, GrammarError> {
        let mut parts = Vec::with_capacity(nodes.len());
        let runs =
            nodes.chunk_by(|a, b| !apart && self.facts.is_regular(a) && self.facts.is_regular(b));
        let runs: Vec<&[Node]> = runs.collect();
        for run in runs {
            let joined = join(run.to_vec());
            if run.len() > 1 && self.facts.is_regular(&joined) {
                parts.push(self.part(&joined)?);
                continue;
            }
            for node in run {
                parts.push(self.part(node)?);
            }
        }
        Ok(parts)
    }

    fn lexeme(&mut self, regex: String, node: &Node) -> Result<Part, GrammarError> {
        let nullable = self.facts.is_nullable(node);
        let number = match self.known.get(&regex) {
            Some(number) => *number,
            None => {
                let number = self.lexemes.len();
                if number == LEXEMES_MAX {
                    let why = format!("the grammar has more than {LEXEMES_MAX} lexemes");
                    return Err(GrammarError::TooComplex(why));
                }
                self.known.insert(regex.clone(), number);
                self.lexemes.push(Lexeme { regex, node: node.clone(), nullable });
                number
            }
        };
        let lexeme = Part::Lexeme(number);
        Ok(if nullable { Part::Repeat(Box::new(lexeme), 0, Some(1)) } else { lexeme })
    }

    /// Regular expressions that the lexer could match for too long.
    fn ambiguous(&self, root: usize, budget: &mut Budget) -> Result<Vec<String>, GrammarError> {
        if matches!(self.bodies.get(&root), Some(body) if is_lexeme(body)) {
            return Ok(Vec::new());
        }
        let mut automata = Vec::with_capacity(self.lexemes.len());
        let mut found = Vec::new();
        for lexeme in &self.lexemes {
            match Automaton::new(&lexeme.node, self.rules, budget)? {
                Some(automaton) => automata.push(automaton),
                None => found.push(lexeme.regex.clone()),
            }
        }
        if found.is_empty() {
            let order = Order::new(&self.bodies, self.lexemes.len(), budget)?;
            let conflicts = order.conflicts(root, &automata, budget)?;
            let lexemes = conflicts.iter().filter_map(|number| self.lexemes.get(*number));
            found.extend(lexemes.map(|lexeme| lexeme.regex.clone()));
        }
        Ok(found)
    }

    fn write(&self, root: usize) -> String {
        let mut text = format!("start: r{root}\n");
        for (number, body) in &self.bodies {
            let _ = write!(text, "r{number}: ");
            write_part(body, &mut text);
            text.push('\n');
        }
        for (number, Lexeme { regex, nullable, .. }) in self.lexemes.iter().enumerate() {
            let some = if *nullable { " & /(?s:.+)/" } else { "" };
            let _ = writeln!(text, "T{number}: /{regex}/{some}");
        }
        text
    }
}

fn is_lexeme(part: &Part) -> bool {
    match part {
        Part::Lexeme(_) => true,
        Part::Repeat(inner, 0, Some(1)) => is_lexeme(inner),
        _ => false,
    }
}

fn collect_rules(part: &Part, found: &mut Vec<usize>) {
    match part {
        Part::Lexeme(_) => {}
        Part::Seq(parts) | Part::Alt(parts) => {
            parts.iter().for_each(|part| collect_rules(part, found))
        }
        Part::Repeat(inner, ..) => collect_rules(inner, found),
        Part::Rule(rule) => found.push(*rule),
    }
}

/// Writing to a string cannot fail.
fn write_part(part: &Part, out: &mut String) {
    match part {
        Part::Lexeme(number) => drop(write!(out, "T{number}")),
        Part::Rule(number) => drop(write!(out, "r{number}")),
        Part::Seq(parts) if parts.is_empty() => out.push_str("\"\""),
        Part::Seq(parts) => write_parts(parts, " ", out),
        Part::Alt(parts) => write_parts(parts, " | ", out),
        Part::Repeat(inner, least, most) => {
            out.push('(');
            write_part(inner, out);
            out.push(')');
            write_times(*least, *most, out);
        }
    }
}

fn write_parts(parts: &[Part], between: &str, out: &mut String) {
    out.push('(');
    for (i, part) in parts.iter().enumerate() {
        out.push_str(if i == 0 { "" } else { between });
        write_part(part, out);
    }
    out.push(')');
}

fn write_times(least: u32, most: Option<u32>, out: &mut String) {
    match (least, most) {
        (0, None) => out.push('*'),
        (1, None) => out.push('+'),
        (0, Some(1)) => out.push('?'),
        (least, None) => drop(write!(out, "{{{least},}}")),
        (least, Some(most)) => drop(write!(out, "{{{least},{most}}}")),
    }
}

fn write_regex(node: &Node, rules: &[Rule], out: &mut String) {
    match node {
        Node::Set(set) => out.push_str(&set.regex()),
        Node::Seq(parts) => parts.iter().for_each(|part| write_regex(part, rules, out)),
        Node::Alt(parts) => {
            out.push_str("(?:");
            for (i, part) in parts.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { "|" });
                write_regex(part, rules, out);
            }
            out.push(')');
        }
        Node::Repeat(inner, least, most) => {
            out.push_str("(?:");
            write_regex(inner, rules, out);
            out.push(')');
            write_times(*least, *most, out);
        }
        Node::Rule(rule) => {
            if let Some(rule) = rules.get(*rule) {
                write_regex(&rule.body, rules, out);
            }
        }
    }
}
