//! PURE. Rewrites a template's source for minijinja without changing its meaning:
//!
//! - line ends become `\n`, as in Jinja2's lexer;
//! - Hugging Face's tag `generation`, which marks the assistant's text, becomes a plain block
//!   (`with`): it is a scope, and outputs its contents;
//! - slices `x[a:b:c]` become calls `x.__slice__(a, b, c)`: minijinja's own slices are lazy
//!   sequences instead of lists, and differ from Python's (or panic) for negative steps.

/// Maximum bracket nesting that is rewritten; the parser's limit is lower.
const DEPTH_MAX: usize = 64;

/// Name of the slicing method.
pub(crate) const SLICE: &str = "__slice__";

/// Rewrites a template's source for minijinja.
pub(crate) fn rewrite(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    let mut rest = source.as_str();
    while let Some(at) = next_tag(rest) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        rest = match &rest[..2] {
            "{#" => {
                out.push_str("{#");
                copy_until(&mut out, &rest[2..], "#}")
            }
            "{%" if tag_name(rest) == "raw" => copy_raw(&mut out, rest),
            _ => copy_tag(&mut out, rest),
        };
    }
    out.push_str(rest);
    out
}

fn next_tag(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    (0..bytes.len().saturating_sub(1))
        .find(|i| bytes[*i] == b'{' && matches!(bytes[*i + 1], b'{' | b'%' | b'#'))
}

/// The first word inside a tag.
fn tag_name(tag: &str) -> &str {
    let inside = tag[2..].trim_start_matches(['-', '+']).trim_start();
    let end = inside.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(inside.len());
    &inside[..end]
}

fn copy_until<'a>(out: &mut String, text: &'a str, end: &str) -> &'a str {
    let length = text.find(end).map_or(text.len(), |i| i + end.len());
    out.push_str(&text[..length]);
    &text[length..]
}

fn copy_raw<'a>(out: &mut String, text: &'a str) -> &'a str {
    let is_end = |(i, _): &(usize, &str)| tag_name(&text[*i..]) == "endraw";
    let length = text.match_indices("{%").find(is_end).map_or(text.len(), |(i, _)| i + 2);
    out.push_str(&text[..length]);
    copy_until(out, &text[length..], "%}")
}

/// Copies a code tag; returns the text after it.
fn copy_tag<'a>(out: &mut String, text: &'a str) -> &'a str {
    let end = if text.starts_with("{{") { "}}" } else { "%}" };
    let Some(length) = find_end(&text[2..], end) else {
        out.push_str(text);
        return "";
    };
    let (tag, rest) = text.split_at(2 + length);
    let replaced = match tag_name(tag) {
        _ if end == "}}" => None,
        "generation" => Some(tag.replacen("generation", "with", 1)),
        "endgeneration" => Some(tag.replacen("endgeneration", "endwith", 1)),
        _ => None,
    };
    match replaced {
        Some(tag) => out.push_str(&tag),
        None => rewrite_code(out, tag, 0),
    }
    rest
}

/// Finds `end` outside strings and brackets. Also `None` if brackets do not match or are nested too
/// deeply, so that it always takes linear time.
fn find_end(code: &str, end: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(c) = code[at..].chars().next() {
        if depth == 0 && code[at..].starts_with(end) {
            return Some(at);
        }
        match c {
            '\'' | '"' => at += text_length(&code[at..])?,
            _ => {
                match c {
                    '(' | '[' | '{' if depth < DEPTH_MAX => depth += 1,
                    ')' | ']' | '}' if depth > 0 => depth -= 1,
                    '(' | '[' | '{' | ')' | ']' | '}' => return None,
                    _ => {}
                }
                at += c.len_utf8();
            }
        }
    }
    None
}

/// Length in bytes of the string literal at the start of `code`, including quotes.
fn text_length(code: &str) -> Option<usize> {
    let quote = code.chars().next()?;
    let mut escaped = false;
    for (i, c) in code.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(i + c.len_utf8()),
            _ => {}
        }
    }
    None
}

fn rewrite_code(out: &mut String, code: &str, depth: usize) {
    if depth > DEPTH_MAX {
        out.push_str(code);
        return;
    }
    let mut at = 0;
    while let Some(c) = code[at..].chars().next() {
        let rest = &code[at..];
        let length = match c {
            '\'' | '"' => text_length(rest).unwrap_or(rest.len()),
            '[' => find_end(&rest[1..], "]").map_or(1, |inside| inside + 2),
            c => c.len_utf8(),
        };
        match length {
            2.. if c == '[' => rewrite_brackets(out, &rest[1..length - 1], depth),
            _ => out.push_str(&rest[..length]),
        }
        at += length;
    }
}

/// Rewrites the text between `[` and `]`: a list, an index or a slice.
fn rewrite_brackets(out: &mut String, inside: &str, depth: usize) {
    let mut parts = vec![];
    let mut rest = inside;
    while let Some(at) = find_end(rest, ":") {
        parts.push(&rest[..at]);
        rest = &rest[at + 1..];
    }
    parts.push(rest);
    if !(2..=3).contains(&parts.len()) {
        out.push('[');
        rewrite_code(out, inside, depth + 1);
        out.push(']');
        return;
    }
    out.push('.');
    out.push_str(SLICE);
    for (i, part) in parts.iter().enumerate() {
        out.push_str(if i == 0 { "(" } else { ", " });
        match part.trim() {
            "" => out.push_str("none"),
            _ => rewrite_code(out, part, depth + 1),
        }
    }
    out.push(')');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slices_become_calls() {
        for (source, expected) in [
            ("{{ m[1:] }}", "{{ m.__slice__(1, none) }}"),
            ("{{ m[::-1][0] }}", "{{ m.__slice__(none, none, -1)[0] }}"),
            (
                "{% for x in m[a[0:1][0]:n|length] %}",
                "{% for x in m.__slice__(a.__slice__(0, 1)[0], n|length) %}",
            ),
            ("{{ [1, {'a:b': [2]}['x:y']] }}", "{{ [1, {'a:b': [2]}['x:y']] }}"),
            ("{{ '[1:]' ~ \"\\\"[2:]\" }}[3:]", "{{ '[1:]' ~ \"\\\"[2:]\" }}[3:]"),
            (
                "{# m[1:] #}{% raw %}{{ m[1:] }}{% endraw %}",
                "{# m[1:] #}{% raw %}{{ m[1:] }}{% endraw %}",
            ),
            ("{{ {'a': {}} }}{{ m[:1] }}", "{{ {'a': {}} }}{{ m.__slice__(none, 1) }}"),
        ] {
            assert_eq!(rewrite(source), expected);
        }
    }

    proptest! {
        #[test]
        fn any_source_is_rewritten_without_panic(
            parts in prop::collection::vec(prop::sample::select(&PARTS[..]), 0..24)
        ) {
            let source = parts.concat();
            let rewritten = rewrite(&source);
            // Rewriting removes nothing but the brackets of slices.
            let letters = |text: &str| text.matches('é').count();
            prop_assert_eq!(letters(&rewritten), letters(&source));
            prop_assert_eq!(rewrite(&rewritten), rewritten);
        }
    }

    const PARTS: [&str; 20] = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "[",
        "]",
        ":",
        "'",
        "\"",
        "\\",
        "é",
        "raw",
        "endraw",
        "generation",
        "(",
        "}",
        " ",
        "-",
    ];

    #[test]
    fn generation_is_a_block() {
        let source = "{%- generation -%}a{% endgeneration +%}{{ generation }}\r\n";
        assert_eq!(rewrite(source), "{%- with -%}a{% endwith +%}{{ generation }}\n");
    }

    #[test]
    fn broken_templates_stay_broken_and_nothing_panics() {
        for source in
            ["{", "{{", "{% '", "{{ m[1: }}", "{# ", "{% raw %}{{", "{{ é[", "{%raw", "{{ \"\\"]
        {
            assert_eq!(rewrite(source), source);
        }
        let deep = format!("{{{{ {} }}}}", "[".repeat(10_000));
        assert_eq!(rewrite(&deep), deep);
    }
}
