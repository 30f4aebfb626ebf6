//! PURE. Methods of `str` that minijinja lacks or implements differently from Python.

use minijinja::value::Tuple;
use minijinja::{Error, Value};

use super::{Args, LENGTH_MAX, invalid};
use crate::text::chat_template::data::list;

/// `str.isspace` of one character: Unicode white space, and the ASCII separators.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Calls a method; `None` if it is not one of these.
pub(crate) fn call(text: &str, name: &str, args: &Args) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "strip" | "lstrip" | "rstrip" => Value::from(strip(text, name, args)?),
        "split" | "rsplit" => split(text, name, args)?,
        "partition" | "rpartition" => partition(text, name, args)?,
        "splitlines" => lines(text, args.given(0, "keepends").is_some_and(|v| v.is_true())),
        "find" | "rfind" | "index" | "rindex" | "count" => search(text, name, args)?,
        "startswith" | "endswith" => Value::from(has_end(text, name, args)?),
        "join" => join(text, args)?,
        "replace" => Value::from(replace(text, args)?),
        "removeprefix" => {
            Value::from(text.strip_prefix(&*args.required(0, "prefix")?).unwrap_or(text))
        }
        "removesuffix" => {
            Value::from(text.strip_suffix(&*args.required(0, "suffix")?).unwrap_or(text))
        }
        "center" | "ljust" | "rjust" | "zfill" => Value::from(pad(text, name, args)?),
        "casefold" => Value::from(text.to_lowercase()),
        "swapcase" => Value::from(text.chars().flat_map(swapped).collect::<String>()),
        "title" => Value::from(title(text)),
        _ => return Ok(is_kind(text, name).map(Value::from)),
    }))
}

fn strip<'a>(text: &'a str, name: &str, args: &Args) -> Result<&'a str, Error> {
    let chars = args.text(0, "chars")?;
    let drops = |c: char| chars.as_ref().map_or_else(|| is_space(c), |chars| chars.contains(c));
    Ok(match name {
        "lstrip" => text.trim_start_matches(drops),
        "rstrip" => text.trim_end_matches(drops),
        _ => text.trim_matches(drops),
    })
}

fn texts<'a>(parts: impl IntoIterator<Item = &'a str>) -> Value {
    list(parts.into_iter().map(Value::from).collect())
}

fn split(text: &str, name: &str, args: &Args) -> Result<Value, Error> {
    let most = args.integer(1, "maxsplit")?.and_then(|n| usize::try_from(n).ok());
    let most = most.map_or(usize::MAX, |n| n.saturating_add(1));
    let from_end = name == "rsplit";
    let Some(separator) = args.text(0, "sep")? else {
        return Ok(texts(split_space(text, most, from_end)));
    };
    if separator.is_empty() {
        return Err(invalid("split: the separator is empty"));
    }
    if !from_end {
        return Ok(texts(text.splitn(most, &*separator)));
    }
    let mut parts: Vec<&str> = text.rsplitn(most, &*separator).collect();
    parts.reverse();
    Ok(texts(parts))
}

fn split_space(text: &str, most: usize, from_end: bool) -> Vec<&str> {
    let mut parts = vec![];
    let mut rest = text.trim_matches(is_space);
    while !rest.is_empty() {
        let cut = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
        let Some(at) = cut.filter(|_| parts.len() + 1 < most) else { break };
        let after = at + rest[at..].chars().next().map_or(0, char::len_utf8);
        let part = if from_end { &rest[after..] } else { &rest[..at] };
        rest = if from_end { &rest[..at] } else { &rest[after..] }.trim_matches(is_space);
        parts.push(part);
    }
    if !rest.is_empty() {
        // The last part keeps the whitespace at its outer end.
        let start = rest.as_ptr() as usize - text.as_ptr() as usize;
        let end = start + rest.len();
        parts.push(match (parts.len() + 1 >= most, from_end) {
            (true, false) => &text[start..],
            (true, true) => &text[..end],
            _ => rest,
        });
    }
    if from_end {
        parts.reverse();
    }
    parts
}

fn partition(text: &str, name: &str, args: &Args) -> Result<Value, Error> {
    let separator = args.required(0, "sep")?;
    let found = match name {
        "partition" => text.split_once(&*separator),
        _ => text.rsplit_once(&*separator),
    };
    let parts = match found {
        Some((before, after)) => [before, &separator, after],
        None if name == "partition" => [text, "", ""],
        None => ["", "", text],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

fn lines(text: &str, keep_ends: bool) -> Value {
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut all = vec![];
    let mut rest = text;
    while let Some(at) = rest.find(is_end) {
        let end = if rest[at..].starts_with("\r\n") { 2 } else { 0 };
        let end = at + end.max(rest[at..].chars().next().map_or(0, char::len_utf8));
        all.push(if keep_ends { &rest[..end] } else { &rest[..at] });
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        all.push(rest);
    }
    texts(all)
}

/// The text between two positions, counted in characters, and the number of characters before it.
fn window<'a>(text: &'a str, args: &Args) -> Result<(&'a str, usize), Error> {
    let (start, end) = (args.integer(1, "start")?, args.integer(2, "end")?);
    if start.is_none() && end.is_none() {
        return Ok((text, 0));
    }
    let length = text.chars().count();
    let place = |i: i64| {
        let signed = i64::try_from(length).unwrap_or(i64::MAX);
        let i = if i < 0 { i.saturating_add(signed) } else { i };
        usize::try_from(i.max(0)).unwrap_or(usize::MAX).min(length)
    };
    let (start, end) = (start.map_or(0, place), end.map_or(length, place));
    let byte = |i: usize| text.char_indices().nth(i).map_or(text.len(), |(at, _)| at);
    Ok((text.get(byte(start)..byte(end)).unwrap_or_default(), start))
}

fn search(text: &str, name: &str, args: &Args) -> Result<Value, Error> {
    let wanted = args
        .required(0, "sub")
        .or_else(|e| args.get(0, "sub").and_then(|v| v.as_str().map(String::from)).ok_or(e))?;
    let (part, before) = window(text, args)?;
    if name == "count" {
        return Ok(Value::from(part.matches(&*wanted).count()));
    }
    let found = if name.starts_with('r') { part.rfind(&*wanted) } else { part.find(&*wanted) };
    match found {
        Some(at) => Ok(Value::from(before + part[..at].chars().count())),
        None if name.ends_with("index") => Err(invalid("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn has_end(text: &str, name: &str, args: &Args) -> Result<bool, Error> {
    let (part, _) = window(text, args)?;
    let fits = |end: &Value| {
        let end = end.as_str().ok_or_else(|| invalid(format!("{name}: texts are needed")))?;
        Ok(if name == "startswith" { part.starts_with(end) } else { part.ends_with(end) })
    };
    let ends = args.get(0, "prefix").unwrap_or_default();
    if !ends.is_tuple() {
        return fits(&ends);
    }
    for end in ends.try_iter()? {
        if fits(&end)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn join(separator: &str, args: &Args) -> Result<Value, Error> {
    let mut out = String::new();
    for (i, item) in args.get(0, "iterable").unwrap_or_default().try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        let text = item.as_str();
        out.push_str(text.ok_or_else(|| invalid(format!("join: item {i} is no text")))?);
    }
    Ok(Value::from(out))
}

fn replace(text: &str, args: &Args) -> Result<String, Error> {
    let text_at = |i: usize, name: &str| {
        let value = args.get(i, name).unwrap_or_default();
        let text = value.as_str().map(String::from);
        text.ok_or_else(|| invalid(format!("replace: argument {} must be a text", i + 1)))
    };
    let (old, new) = (text_at(0, "old")?, text_at(1, "new")?);
    let count = args.integer(2, "count")?.and_then(|n| usize::try_from(n).ok());
    Ok(count.map_or_else(|| text.replace(&*old, &new), |n| text.replacen(&*old, &new, n)))
}

fn pad(text: &str, name: &str, args: &Args) -> Result<String, Error> {
    let width = args.integer(0, "width")?.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
    if width > LENGTH_MAX {
        return Err(invalid(format!("{name}: the width is too large")));
    }
    let length = text.chars().count();
    let missing = width.saturating_sub(length);
    let fill = args.text(1, "fillchar")?.unwrap_or_else(|| " ".into());
    Ok(match name {
        "ljust" => text.to_string() + &fill.repeat(missing),
        "rjust" => fill.repeat(missing) + text,
        "zfill" => {
            let digits = text.trim_start_matches(['+', '-']);
            let (sign, digits) = text.split_at(usize::from(digits.len() < text.len()));
            sign.to_string() + &"0".repeat(missing) + digits
        }
        // CPython adds the odd padding character on the left if the width is odd.
        _ => {
            let left = missing / 2 + (missing & width & 1);
            fill.repeat(left) + text + &fill.repeat(missing - left)
        }
    })
}

fn swapped(c: char) -> Vec<char> {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
}

fn title(text: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
        inside = c.is_alphabetic();
    }
    out
}

fn is_kind(text: &str, name: &str) -> Option<bool> {
    let all = |test: fn(char) -> bool| Some(!text.is_empty() && text.chars().all(test));
    match name {
        "isspace" => all(is_space),
        "isdecimal" | "isdigit" => all(|c| c.is_ascii_digit()),
        "isidentifier" => {
            let starts = text.starts_with(|c: char| c.is_alphabetic() || c == '_');
            Some(starts && text.chars().all(|c| c.is_alphanumeric() || c == '_'))
        }
        "istitle" => Some(text.chars().any(char::is_alphabetic) && title(text) == text),
        _ => None,
    }
}
