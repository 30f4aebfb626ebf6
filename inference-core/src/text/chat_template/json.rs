//! PURE. The filter `tojson` as Hugging Face defines it: `json.dumps` with its options.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::control::is_mark;
use super::repr::write_number;

/// Maximum nesting depth.
const DEPTH_MAX: usize = 200;
/// Maximum indentation of one level, in bytes.
const INDENT_MAX: usize = 32;

/// Formatting options of `json.dumps`.
#[derive(Debug)]
pub(crate) struct Style {
    ensure_ascii: bool,
    indent: Option<String>,
    between_items: String,
    after_key: String,
    sort_keys: bool,
}

impl Style {
    /// The default style with `ensure_ascii=False`.
    pub(crate) fn plain() -> Self {
        Self {
            ensure_ascii: false,
            indent: None,
            between_items: ", ".into(),
            after_key: ": ".into(),
            sort_keys: false,
        }
    }

    fn read(rest: &[Value], kwargs: &Kwargs) -> Result<Self, Error> {
        let option = |i: usize, name: &str| -> Result<Value, Error> {
            let named: Option<Value> = kwargs.get(name)?;
            Ok(named.or_else(|| rest.get(i).cloned()).unwrap_or_default())
        };
        let indent = read_indent(&option(1, "indent")?)?;
        let mut style =
            Self { ensure_ascii: option(0, "ensure_ascii")?.is_true(), ..Self::plain() };
        if indent.is_some() {
            style.between_items = ",".into();
        }
        let separators = option(2, "separators")?;
        if !separators.is_undefined() && !separators.is_none() {
            style.between_items = read_text(&separators.get_item_by_index(0)?)?;
            style.after_key = read_text(&separators.get_item_by_index(1)?)?;
        }
        style.indent = indent;
        style.sort_keys = option(3, "sort_keys")?.is_true();
        kwargs.assert_all_used()?;
        Ok(style)
    }
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn read_text(value: &Value) -> Result<String, Error> {
    value.as_str().map(Into::into).ok_or_else(|| invalid("tojson: separators must be two texts"))
}

fn read_indent(value: &Value) -> Result<Option<String>, Error> {
    if value.is_undefined() || value.is_none() {
        return Ok(None);
    }
    let indent = match (value.as_str(), value.as_usize()) {
        (Some(text), _) => text.to_string(),
        (None, Some(width)) => " ".repeat(width.min(INDENT_MAX + 1)),
        _ => return Err(invalid("tojson: indent must be a number or a text")),
    };
    if indent.len() > INDENT_MAX {
        return Err(invalid("tojson: indent is too large"));
    }
    Ok(Some(indent))
}

/// `tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(crate) fn to_json(value: &Value, rest: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    dumps(value, &Style::read(&rest, &kwargs)?)
}

/// `json.dumps(value)` with a style.
pub(crate) fn dumps(value: &Value, style: &Style) -> Result<String, Error> {
    let mut out = String::new();
    write(&mut out, value, style, 0)?;
    Ok(out)
}

fn write(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(invalid("tojson: the value is nested too deeply"));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => write_number(out, value),
        ValueKind::String => write_text(out, value.as_str().unwrap_or_default(), style),
        ValueKind::Seq | ValueKind::Iterable => write_list(out, value, style, depth)?,
        ValueKind::Map => write_dict(out, value, style, depth)?,
        kind => return Err(invalid(format!("tojson: a value of kind {kind} is no JSON"))),
    }
    Ok(())
}

fn write_list(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    let mut items = value.try_iter()?.peekable();
    if items.peek().is_none() {
        out.push_str("[]");
        return Ok(());
    }
    out.push('[');
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push_str(&style.between_items);
        }
        break_line(out, style, depth + 1);
        write(out, &item, style, depth + 1)?;
    }
    break_line(out, style, depth);
    out.push(']');
    Ok(())
}

fn write_dict(out: &mut String, value: &Value, style: &Style, depth: usize) -> Result<(), Error> {
    let mut keys: Vec<Value> = value.try_iter()?.collect();
    if keys.is_empty() {
        out.push_str("{}");
        return Ok(());
    }
    if style.sort_keys {
        keys.sort();
    }
    out.push('{');
    for (i, key) in keys.iter().enumerate() {
        if i > 0 {
            out.push_str(&style.between_items);
        }
        break_line(out, style, depth + 1);
        write_key(out, key, style)?;
        out.push_str(&style.after_key);
        write(out, &value.get_item(key)?, style, depth + 1)?;
    }
    break_line(out, style, depth);
    out.push('}');
    Ok(())
}

fn write_key(out: &mut String, key: &Value, style: &Style) -> Result<(), Error> {
    match key.as_str() {
        Some(text) => write_text(out, text, style),
        None => {
            let mut text = String::new();
            write(&mut text, key, style, DEPTH_MAX)?;
            write_text(out, &text, style);
        }
    }
    Ok(())
}

fn break_line(out: &mut String, style: &Style, depth: usize) {
    if let Some(indent) = &style.indent {
        out.push('\n');
        (0..depth).for_each(|_| out.push_str(indent));
    }
}

fn write_text(out: &mut String, text: &str, style: &Style) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            // A mark is not part of the text.
            c if style.ensure_ascii && !is_mark(c) && !matches!(c, ' '..='~') => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
