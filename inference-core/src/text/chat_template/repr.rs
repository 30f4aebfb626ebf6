//! PURE. Prints values as Python does: `str(x)` and `repr(x)`.

use minijinja::Value;
use minijinja::value::ValueKind;

use super::control::is_mark;

/// Maximum nesting depth; deeper values print as `...`.
const DEPTH_MAX: usize = 200;

/// Appends `str(value)`; undefined is empty, as in Jinja.
pub(crate) fn write_str(out: &mut String, value: &Value) {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None if value.is_undefined() => {}
        None => write_repr(out, value),
    }
}

/// `str(value)`.
pub(crate) fn to_str(value: &Value) -> String {
    let mut out = String::new();
    write_str(&mut out, value);
    out
}

/// Appends `repr(value)`.
pub(crate) fn write_repr(out: &mut String, value: &Value) {
    write_nested(out, value, 0);
}

fn write_nested(out: &mut String, value: &Value, depth: usize) {
    if depth > DEPTH_MAX {
        out.push_str("...");
        return;
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => write_quoted(out, value.as_str().unwrap_or_default()),
        ValueKind::Number => write_number(out, value),
        ValueKind::Seq | ValueKind::Iterable => write_list(out, value, depth),
        ValueKind::Map => write_dict(out, value, depth),
        _ => out.push_str(&value.to_string()),
    }
}

fn write_list(out: &mut String, value: &Value, depth: usize) {
    let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
    out.push(open);
    let mut length = 0;
    for item in value.try_iter().into_iter().flatten() {
        if length > 0 {
            out.push_str(", ");
        }
        write_nested(out, &item, depth + 1);
        length += 1;
    }
    if value.is_tuple() && length == 1 {
        out.push(',');
    }
    out.push(close);
}

fn write_dict(out: &mut String, value: &Value, depth: usize) {
    out.push('{');
    for (i, key) in value.try_iter().into_iter().flatten().enumerate() {
        if i > 0 {
            out.push_str(", ");
        }
        write_nested(out, &key, depth + 1);
        out.push_str(": ");
        write_nested(out, &value.get_item(&key).unwrap_or_default(), depth + 1);
    }
    out.push('}');
}

/// Appends a number: integers as they are, floats as `float.__repr__` does.
pub(crate) fn write_number(out: &mut String, value: &Value) {
    match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => out.push_str(&float_repr(float)),
        _ => out.push_str(&value.to_string()),
    }
}

/// The shortest decimal that parses to the same number, with an exponent below 1e-4 and from 1e16
/// (Python's `float_repr_style` "short").
pub(crate) fn float_repr(float: f64) -> String {
    if !float.is_finite() {
        return if float.is_nan() { "nan".into() } else { float.to_string() };
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let fixed = float.to_string();
        return if fixed.contains('.') { fixed } else { fixed + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if is_mark(c) || is_printable(c) => out.push(c),
            c => out.push_str(&escaped(c)),
        }
    }
    out.push(quote);
}

fn escaped(c: char) -> String {
    match u32::from(c) {
        code @ ..0x100 => format!("\\x{code:02x}"),
        code @ ..0x10000 => format!("\\u{code:04x}"),
        code => format!("\\U{code:08x}"),
    }
}

/// `str.isprintable` of one character. Rust's own escaping follows the same definition, except for
/// quotes, the backslash, and combining marks, which it escapes only at the start of a text.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return !c.is_ascii_control();
    }
    let mut text = String::from("a");
    text.push(c);
    text.escape_debug().nth(1) == Some(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_read_as_in_python() {
        let cases = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e-7, "1.5e-07"),
            (0.0001, "0.0001"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "inf"),
        ];
        for (float, text) in cases {
            assert_eq!(float_repr(float), text);
        }
    }

    #[test]
    fn texts_in_lists_are_quoted_as_in_python() {
        let mut out = String::new();
        write_repr(&mut out, &Value::from(vec!["it's", "a\"'b", "é\u{301}\u{200b}\u{a0}\n"]));
        assert_eq!(out, "[\"it's\", 'a\"\\'b', 'é\u{301}\\u200b\\xa0\\n']");
    }
}
