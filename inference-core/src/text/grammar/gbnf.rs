//! PURE. llama.cpp's grammar format, translated to llguidance's Lark.
//!
//! A GBNF grammar speaks of characters; llguidance of lexemes, each as long as it can be.
//! The translation keeps the language: what does not recur becomes regular expressions, and
//! where the longest lexeme could be the wrong one, it is taken apart ([`lexemes`]).

mod automaton;
mod charset;
mod lexemes;
mod parse;
mod parts;
mod rules;

#[cfg(test)]
pub(super) mod tests;

use super::GrammarError;
use charset::CharSet;

/// Part of a rule.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    /// One character of a set.
    Set(CharSet),
    /// One after the other.
    Seq(Vec<Node>),
    /// One of these.
    Alt(Vec<Node>),
    /// So many times, at least and at most.
    Repeat(Box<Node>, u32, Option<u32>),
    /// What the rule with this number says.
    Rule(usize),
}

#[derive(Debug, PartialEq)]
struct Rule {
    name: String,
    line: usize,
    body: Node,
}

/// Translates a grammar. Errors name the line.
pub(super) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let (rules, root) = parse::rules(text)?;
    let facts = rules::Facts::new(&rules)?;
    lexemes::lark(&rules, &facts, root)
}

fn at_line(line: usize, why: impl std::fmt::Display) -> GrammarError {
    GrammarError::Invalid(format!("the grammar, line {line}: {why}"))
}
