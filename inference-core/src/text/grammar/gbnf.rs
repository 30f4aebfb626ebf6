//! PURE. Translates llama.cpp's GBNF to llguidance's Lark.
//!
//! A GBNF grammar consists of characters; llguidance's consist of lexemes, each as long as
//! possible. The translation keeps the language: non-recursive parts become regular expressions,
//! and a lexeme that could match too much is split ([`lexemes`]).

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
    Seq(Vec<Node>),
    Alt(Vec<Node>),
    /// Repetition, with minimum and maximum count.
    Repeat(Box<Node>, u32, Option<u32>),
    /// A reference to the rule with this number.
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
    let facts = rules::RuleFacts::new(&rules)?;
    lexemes::lark(&rules, &facts, root)
}

fn at_line(line: usize, why: impl std::fmt::Display) -> GrammarError {
    GrammarError::Invalid(format!("the grammar, line {line}: {why}"))
}
