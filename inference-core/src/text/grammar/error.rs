//! PURE. What goes wrong with constraints.

use std::fmt;

use crate::types::request::Token;

/// Why there is no grammar, or why an answer cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrammarError {
    /// The constraint is wrong, asks for what cannot be enforced, or leads to where none of the
    /// model's tokens may follow: the client's to mend.
    Invalid(String),
    /// The constraint needs more time or memory than one request may have: the client's too.
    TooComplex(String),
    /// The grammar does not allow this token here. The state is as it was.
    Rejected(Token),
    /// A fault of ours, or a vocabulary that is none.
    Internal(String),
}

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) => write!(f, "{why}"),
            Self::TooComplex(why) => write!(f, "too complex: {why}"),
            Self::Rejected(token) => write!(f, "the grammar does not allow token {token} here"),
            Self::Internal(why) => write!(f, "the grammar engine failed: {why}"),
        }
    }
}

impl std::error::Error for GrammarError {}

/// Longest error text that is passed on, in characters: some repeat the whole constraint.
const WHY_CHARS_MAX: usize = 500;

/// What llguidance says when one of its limits is reached. It has no types for its errors.
const LIMIT_WORDS: [&str; 14] = [
    "too big",
    "too large",
    "too many",
    "Too many",
    "fuel exhausted",
    "precomputation failed",
    "stack level exceeded",
    "Current row has",
    "Unable to determine if regex is empty",
    "can't determine",
    "exceeds size limit",
    "nest limit",
    "exceeds the supported range",
    "TooComplex",
];

/// Words of llguidance that would mean nothing to clients.
const WORDS: [(&str, &str); 2] = [
    ("Unimplemented keys:", "the JSON schema has keywords that cannot be enforced:"),
    (
        "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf \
         with anyOf",
        "`oneOf` cannot be enforced where its schemas do not exclude each other by their types \
         or by a `const` of a required property; `anyOf` can",
    ),
];

impl GrammarError {
    /// An error of llguidance while it compiles a constraint.
    pub(super) fn compiling(why: &str) -> Self {
        let mut why = brief(why);
        for (theirs, ours) in WORDS {
            why = why.replace(theirs, ours);
        }
        if is_limit(&why) { Self::TooComplex(why) } else { Self::Invalid(why) }
    }

    /// An error of llguidance while an answer is written.
    pub(super) fn running(why: &str) -> Self {
        let why = brief(why);
        if is_limit(&why) { Self::TooComplex(why) } else { Self::Internal(why) }
    }
}

fn is_limit(why: &str) -> bool {
    LIMIT_WORDS.iter().any(|words| why.contains(words))
}

/// Without the backtrace and state that llguidance appends, and not too long.
fn brief(why: &str) -> String {
    let end = ["\n<backtrace>", "\n<non-verbose", "\n<state>"].iter();
    let end = end.filter_map(|mark| why.find(mark)).min().unwrap_or(why.len());
    let why = why.get(..end).unwrap_or(why).trim();
    match why.char_indices().nth(WHY_CHARS_MAX) {
        Some((at, _)) => format!("{} ...", why.get(..at).unwrap_or_default()),
        None => why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_lose_their_backtraces_and_keep_whole_characters() {
        assert_eq!(brief("panic: no\n<backtrace>\n0: main"), "panic: no");
        assert_eq!(brief("no\n<non-verbose/>"), "no");
        let long = brief(&"ä".repeat(WHY_CHARS_MAX + 1));
        assert_eq!(long.chars().count(), WHY_CHARS_MAX + 4);
    }

    #[test]
    fn limits_are_told_from_mistakes() {
        let is_too_complex = |e| matches!(e, GrammarError::TooComplex(_));
        assert!(is_too_complex(GrammarError::compiling("grammar too big (limit 3)")));
        assert!(is_too_complex(GrammarError::running("too many states: 3 >= 3")));
        assert!(!is_too_complex(GrammarError::compiling("Unimplemented keys: [\"not\"]")));
    }
}
