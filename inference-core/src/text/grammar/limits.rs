//! PURE. Limits on the cost of a constraint. Each is far above what sensible constraints need.

use llguidance::api::ParserLimits;

/// Maximum length of a constraint in bytes.
pub(crate) const CONSTRAINT_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of texts in a choice.
pub(crate) const CHOICES_MAX: usize = 1000;
/// Maximum length in bytes of a regular expression: a constraint, or a `pattern` of a schema.
pub(super) const REGEX_BYTES_MAX: usize = 4096;
/// Maximum nesting of brackets in a grammar, and of arrays and objects in a schema.
pub(super) const DEPTH_MAX: usize = 64;
/// Maximum repetition count in a GBNF rule; the same as llama.cpp's limit.
pub(super) const REPETITIONS_MAX: u32 = 2000;
/// Maximum number of rules in a GBNF grammar.
pub(super) const RULES_MAX: usize = 1000;
/// Maximum length in bytes of a token that a grammar may choose: the trie holds at most 1024.
pub(super) const TOKEN_BYTES_MAX: usize = 512;
/// Stack size of the compiler thread in bytes. The deepest path goes through each part of a
/// constraint once: [`CONSTRAINT_BYTES_MAX`] / 6 parts, and about 10 KiB for each.
pub(super) const STACK_BYTES: usize = 256 * 1024 * 1024;
/// Tokens that are checked one by one before a whole mask is computed, which refills the lexer's
/// fuel.
pub(super) const CHECKS_MAX: u32 = 32;
/// Maximum number of simultaneous Earley items per row: 16 KB of memory for each part of the
/// response.
pub(super) const ROW_ITEMS_MAX: usize = 2000;

/// llguidance's limits.
pub(super) fn of_parser() -> ParserLimits {
    ParserLimits {
        max_items_in_row: ROW_ITEMS_MAX,
        // About 10 ms.
        initial_lexer_fuel: 500_000,
        // About 10 ms per mask.
        step_lexer_fuel: 150_000,
        // About 2.5 ms per mask.
        step_max_items: 50_000,
        // 1 to 2 KB each.
        max_lexer_states: 20_000,
        max_grammar_size: 100_000,
        precompute_large_lexemes: true,
        verbose_errors: false,
    }
}
