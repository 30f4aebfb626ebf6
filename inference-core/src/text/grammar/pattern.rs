//! PURE. Checks regular expressions and Lark grammars before llguidance parses them.

use super::{GrammarError, limits};

/// A regular expression that matches only `text`, safe between the slashes of Lark.
pub(super) fn literal(text: &str) -> String {
    text.chars().map(character).collect()
}

/// A character as a regular expression, also valid inside a class.
pub(super) fn character(c: char) -> String {
    if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\x{{{:x}}}", c as u32) }
}

/// A regular expression as Lark writes it between slashes.
pub(super) fn between_slashes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '/' => out.push_str("\\x2f"),
            '\n' => out.push_str("\\n"),
            '\\' => match chars.next() {
                Some('/') => out.push_str("\\x2f"),
                Some('\n') => out.push_str("\\n"),
                Some(escaped) => out.extend([c, escaped]),
                None => out.push(c),
            },
            c => out.push(c),
        }
    }
    out
}

/// Checks a regular expression's size. llguidance checks the rest.
pub(super) fn check_regex(text: &str) -> Result<(), GrammarError> {
    if text.is_empty() {
        return Err(GrammarError::Invalid("the regular expression is empty".into()));
    }
    if text.len() > limits::REGEX_BYTES_MAX {
        let why = format!("a regular expression has more than {} bytes", limits::REGEX_BYTES_MAX);
        return Err(GrammarError::TooComplex(why));
    }
    Ok(())
}

/// True if a Lark grammar may negate expressions and names no control token, such as `<|call|>`.
pub(super) fn only_negates(lark: &str) -> bool {
    lark.contains('~') && !lark.contains('<')
}

/// Checks a Lark grammar's nesting, and that it keeps the output valid UTF-8 unless it negates
/// expressions, which matches any bytes, or names tokens by their numbers.
pub(super) fn check_lark(text: &str) -> Result<(), GrammarError> {
    if text.contains("allow_invalid_utf8") {
        let why = "the grammar must not set allow_invalid_utf8: answers are UTF-8";
        return Err(GrammarError::Invalid(why.into()));
    }
    let mut depth = 0usize;
    let mut bytes = text.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => skip_until(&mut bytes, b'"'),
            b'#' => skip_until(&mut bytes, b'\n'),
            b'/' if bytes.peek() == Some(&b'/') => skip_until(&mut bytes, b'\n'),
            b'/' => skip_until(&mut bytes, b'/'),
            _ => {}
        }
        if depth > limits::DEPTH_MAX {
            let why = format!("the grammar nests deeper than {} brackets", limits::DEPTH_MAX);
            return Err(GrammarError::TooComplex(why));
        }
    }
    Ok(())
}

/// Skips past the next unescaped `end`; none of these spans lines.
fn skip_until(bytes: &mut impl Iterator<Item = u8>, end: u8) {
    while let Some(byte) = bytes.next() {
        if byte == end || byte == b'\n' {
            return;
        }
        if byte == b'\\' && end != b'\n' {
            bytes.next();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_strings_comments_and_expressions_do_not_nest() {
        let rule = r#"a: "(((\"((" | /[(]{3}\/(((/ // ((((
            # ((((
        "#;
        assert_eq!(check_lark(&rule.repeat(20)), Ok(()));
        let nested = format!("a: {}\"x\"{}", "(".repeat(65), ")".repeat(65));
        assert!(matches!(check_lark(&nested), Err(GrammarError::TooComplex(_))));
        let lines = format!("a: {}", "(\n".repeat(65));
        assert!(matches!(check_lark(&lines), Err(GrammarError::TooComplex(_))));
    }

    #[test]
    fn expressions_stay_themselves_between_slashes() {
        assert_eq!(between_slashes(r"a/b\/[/]\d\\"), r"a\x2fb\x2f[\x2f]\d\\");
        assert_eq!(between_slashes("a\nb"), r"a\nb");
    }

    #[test]
    fn literals_are_escaped_for_expressions_and_their_slashes() {
        assert_eq!(literal("a/]é"), r"a\x{2f}\x{5d}\x{e9}");
    }
}
