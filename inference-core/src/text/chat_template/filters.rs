//! PURE. Jinja2 filters and tests that minijinja lacks or implements differently.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, Value};

use super::methods::{Args, LENGTH_MAX, invalid, is_space, view};
use super::repr::to_str;

/// `length`: 0 for undefined.
pub(crate) fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    let message = || invalid(format!("a value of kind {} has no length", value.kind()));
    value.len().ok_or_else(message)
}

/// `trim(chars=None)`.
pub(crate) fn trim(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let chars = Args::of(&args, named).text(0, "chars")?;
    let text = to_str(value);
    Ok(match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).to_string(),
        None => text.trim_matches(is_space).to_string(),
    })
}

/// `default(default_value='', boolean=False)`.
pub(crate) fn default(value: Value, args: Rest<Value>, named: Kwargs) -> Value {
    let args = Args::of(&args, named);
    let boolean = args.get(1, "boolean").is_some_and(|v| v.is_true());
    if value.is_undefined() || (boolean && !value.is_true()) {
        return args.get(0, "default_value").unwrap_or_else(|| Value::from(""));
    }
    value
}

/// `replace(old, new, count=None)`.
pub(crate) fn replace(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let args = Args::of(&args, named);
    let part = |i, name| args.get(i, name).map(|v| to_str(&v));
    let (Some(old), Some(new)) = (part(0, "old"), part(1, "new")) else {
        return Err(invalid("replace: two arguments are needed"));
    };
    let count = args.integer(2, "count")?.and_then(|n| usize::try_from(n).ok());
    let text = to_str(value);
    Ok(count.map_or_else(|| text.replace(&old, &new), |n| text.replacen(&old, &new, n)))
}

/// `join(d='', attribute=None)`.
pub(crate) fn join(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let args = Args::of(&args, named);
    let separator = args.get(0, "d").map(|v| to_str(&v)).unwrap_or_default();
    let attribute = args.given(1, "attribute");
    let mut out = String::new();
    for (i, item) in value.try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(&separator);
        }
        match &attribute {
            Some(key) => out.push_str(&to_str(&item.get_item(key)?)),
            None => out.push_str(&to_str(&item)),
        }
    }
    Ok(out)
}

/// `string`.
pub(crate) fn string(value: &Value) -> String {
    to_str(value)
}

/// `items`: empty for undefined.
pub(crate) fn items(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        ValueKind::Map => view(value, "items"),
        kind => Err(invalid(format!("items: a value of kind {kind} is no mapping"))),
    }
}

/// `dictsort(case_sensitive=False, by='key', reverse=False)`.
pub(crate) fn dictsort(
    value: &Value,
    args: Rest<Value>,
    named: Kwargs,
) -> Result<Vec<Value>, Error> {
    if value.kind() != ValueKind::Map {
        return Err(invalid("dictsort: a mapping is needed"));
    }
    let args = Args::of(&args, named);
    let flag = |i, name| args.get(i, name).is_some_and(|v: Value| v.is_true());
    let (exact, reverse) = (flag(0, "case_sensitive"), flag(2, "reverse"));
    let place = usize::from(args.text(1, "by")?.as_deref() == Some("value"));
    let mut pairs: Vec<Value> = view(value, "items")?.try_iter()?.collect();
    pairs.sort_by_cached_key(|pair| {
        let key = pair.get_item_by_index(place).unwrap_or_default();
        match key.as_str() {
            Some(text) if !exact => Value::from(text.to_lowercase()),
            _ => key,
        }
    });
    if reverse {
        pairs.reverse();
    }
    Ok(pairs)
}

/// `indent(width=4, first=False, blank=False)`.
pub(crate) fn indent(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let args = Args::of(&args, named);
    let width = args.given(0, "width").unwrap_or_else(|| Value::from(4));
    let indent = match (width.as_str(), width.as_usize()) {
        (Some(text), _) => text.to_string(),
        (None, Some(width)) if width <= LENGTH_MAX => " ".repeat(width),
        _ => return Err(invalid("indent: the width is no number, or too large")),
    };
    let flag = |i, name| args.get(i, name).is_some_and(|v: Value| v.is_true());
    let (first, blank) = (flag(1, "first"), flag(2, "blank"));
    let text = to_str(value);
    let mut out = String::new();
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        // Jinja2 indents a first line even if it is empty.
        let wanted = if i == 0 { first } else { blank || !line.is_empty() };
        if wanted {
            out.push_str(&indent);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// `int(default=0, base=10)`.
pub(crate) fn int(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let args = Args::of(&args, named);
    let default = args.get(0, "default").unwrap_or_else(|| Value::from(0));
    let base = args.integer(1, "base")?.and_then(|b| u32::try_from(b).ok()).unwrap_or(10);
    if let Some(number) = value.as_i64() {
        return Ok(Value::from(number));
    }
    let Some(text) = value.as_str() else {
        let float = f64::try_from(value.clone()).ok().filter(|f| f.is_finite());
        return Ok(float.map_or(default, |f| Value::from(f.trunc() as i64)));
    };
    let digits = text.trim_matches(is_space).replace('_', "");
    let digits = match base {
        2 => digits.trim_start_matches("0b"),
        8 => digits.trim_start_matches("0o"),
        16 => digits.trim_start_matches("0x"),
        _ => &digits,
    };
    let number = (2..=36).contains(&base).then(|| i64::from_str_radix(digits, base).ok()).flatten();
    let truncated =
        || digits.parse::<f64>().ok().filter(|f| f.is_finite()).map(|f| f.trunc() as i64);
    Ok(number.or_else(truncated).map_or(default, Value::from))
}

/// `float(default=0.0)`.
pub(crate) fn float(value: &Value, args: Rest<Value>, named: Kwargs) -> Value {
    let default = Args::of(&args, named).get(0, "default").unwrap_or_else(|| Value::from(0.0));
    let number = match value.as_str() {
        Some(text) => text.trim_matches(is_space).parse().ok(),
        None => f64::try_from(value.clone()).ok(),
    };
    number.map_or(default, Value::from)
}

/// `round(precision=0, method='common')`, with Python's rounding of halves to even.
pub(crate) fn round(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let args = Args::of(&args, named);
    let digits = args.integer(0, "precision")?.unwrap_or(0).clamp(0, 17);
    let method = args.text(1, "method")?.unwrap_or_else(|| "common".into());
    if value.is_integer() && method == "common" {
        return Ok(value.clone());
    }
    let float = f64::try_from(value.clone())?;
    let scale = 10_f64.powi(digits as i32);
    let rounded = match method.as_str() {
        "ceil" => (float * scale).ceil() / scale,
        "floor" => (float * scale).floor() / scale,
        _ => format!("{float:.*}", digits as usize).parse().unwrap_or(float),
    };
    Ok(Value::from(rounded))
}

/// `escape`, as markupsafe does it.
pub(crate) fn escape(value: &Value) -> String {
    let mut out = String::new();
    for c in to_str(value).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// `center(width=80)`.
pub(crate) fn center(value: &Value, args: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let width = Args::of(&args, named).integer(0, "width")?.unwrap_or(80);
    let width = usize::try_from(width).unwrap_or(0);
    if width > LENGTH_MAX {
        return Err(invalid("center: the width is too large"));
    }
    let text = to_str(value);
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    Ok(" ".repeat(left) + &text + &" ".repeat(missing - left))
}

/// `wordcount`: counts runs of letters, digits and underscores.
pub(crate) fn wordcount(value: &Value) -> usize {
    let text = to_str(value);
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
}

/// The test `sequence`: true for values with a length and items, including strings and dicts.
pub(crate) fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Iterable => value.len().is_some(),
        kind => matches!(
            kind,
            ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map
        ),
    }
}

/// The test `iterable`.
pub(crate) fn is_iterable(value: &Value) -> bool {
    value.kind() == ValueKind::Iterable || is_sequence(value)
}

/// The test `callable`.
pub(crate) fn is_callable(value: &Value) -> bool {
    value.kind() == ValueKind::Plain || value.to_string().starts_with("<macro ")
}
