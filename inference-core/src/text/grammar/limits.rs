//! PURE. How much one constraint may cost. Each is far above what sensible ones need.

use llguidance::api::ParserLimits;

/// Longest constraint, in bytes.
pub const CONSTRAINT_BYTES_MAX: usize = 64 * 1024;
/// Most texts of a choice.
pub const CHOICES_MAX: usize = 1000;
/// Longest regular expression, in bytes: a constraint, or a `pattern` of a schema.
pub(super) const REGEX_BYTES_MAX: usize = 4096;
/// Deepest nesting of brackets in a grammar, and of arrays and objects in a schema.
pub(super) const DEPTH_MAX: usize = 64;
/// Most repetitions that a GBNF rule may ask for by number; llama.cpp's own limit.
pub(super) const REPETITIONS_MAX: u32 = 2000;
/// Most rules of a GBNF grammar.
pub(super) const RULES_MAX: usize = 1000;
/// Longest token that a grammar may choose, in bytes: the trie holds no more than 1024.
pub(super) const TOKEN_BYTES_MAX: usize = 512;
/// Stack of the thread that compiles, in bytes. The deepest path goes through each part of a
/// constraint once: [`CONSTRAINT_BYTES_MAX`] / 6 parts, and about 10 KiB for each.
pub(super) const STACK_BYTES: usize = 256 * 1024 * 1024;
/// Tokens that are checked one by one before a whole mask is computed, which gives the lexer
/// new fuel.
pub(super) const CHECKS_MAX: u32 = 32;
/// Most ways at once in which an answer may go on: 16 KB of memory for each part of it.
pub(super) const ROW_ITEMS_MAX: usize = 2000;

/// What llguidance may spend.
pub(super) fn of_parser() -> ParserLimits {
    ParserLimits {
        max_items_in_row: ROW_ITEMS_MAX,
        // About 10 ms.
        initial_lexer_fuel: 500_000,
        // About 10 ms for one mask.
        step_lexer_fuel: 150_000,
        // About 2.5 ms for one mask.
        step_max_items: 50_000,
        // 1 to 2 KB each.
        max_lexer_states: 20_000,
        max_grammar_size: 100_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}
