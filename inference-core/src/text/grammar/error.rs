//! PURE. Errors of constraints.

use std::fmt;

use crate::types::request::Token;

/// Why there is no grammar, or why a response cannot continue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrammarError {
    /// The constraint is invalid, asks for something that cannot be enforced, or reaches a state in
    /// which none of the model's tokens may follow. The client must fix it.
    Invalid(String),
    /// The constraint needs more time or memory than one request may use. The client must fix it.
    TooComplex(String),
    /// The grammar does not allow this token here. The state is unchanged.
    Rejected(Token),
    /// A bug of ours, or an invalid vocabulary.
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

/// Maximum length of an error text in characters: some repeat the whole constraint.
const WHY_CHARS_MAX: usize = 500;

/// What llguidance reports when it reaches one of its limits. It has no error types.
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

/// llguidance's wording that would mean nothing to clients, and ours.
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
    /// Converts an llguidance error from compiling a constraint.
    pub(super) fn compiling(why: &str) -> Self {
        let mut why = brief(why);
        for (theirs, ours) in WORDS {
            why = why.replace(theirs, ours);
        }
        if is_limit(&why) { Self::TooComplex(why) } else { Self::Invalid(why) }
    }

    /// Converts an llguidance error from generating a response.
    pub(super) fn running(why: &str) -> Self {
        let why = brief(why);
        if is_limit(&why) { Self::TooComplex(why) } else { Self::Internal(why) }
    }
}

fn is_limit(why: &str) -> bool {
    LIMIT_WORDS.iter().any(|words| why.contains(words))
}

/// Removes the backtrace and state that llguidance appends, and limits the length.
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
    fn limits_are_distinguished_from_mistakes() {
        let is_too_complex = |e| matches!(e, GrammarError::TooComplex(_));
        assert!(is_too_complex(GrammarError::compiling("grammar too big (limit 3)")));
        assert!(is_too_complex(GrammarError::running("too many states: 3 >= 3")));
        assert!(!is_too_complex(GrammarError::compiling("Unimplemented keys: [\"not\"]")));
    }
}
