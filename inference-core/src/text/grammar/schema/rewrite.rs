//! PURE. Rewrites keywords that llguidance does not know, as far as others say the same.
//!
//! zod and pydantic emit them: `propertyNames` with every record, formats beside the pattern that
//! defines them, patterns with look-around. What has no equivalent is left to llguidance, which
//! refuses it by name or, if lenient, ignores it; a pattern that it cannot compile is dropped here
//! if lenient.

use serde_json::{Map, Value, json};

use crate::text::grammar::GrammarError;
use crate::text::grammar::pattern::literal;

/// Formats of zod that only say how the pattern beside them was made.
const PATTERN_FORMATS: [&str; 18] = [
    "base64",
    "base64url",
    "cidrv4",
    "cidrv6",
    "cuid",
    "cuid2",
    "e164",
    "emoji",
    "ends_with",
    "guid",
    "includes",
    "json_string",
    "jwt",
    "ksuid",
    "lowercase",
    "nanoid",
    "regex",
    "starts_with",
];
/// More of them.
const MORE_PATTERN_FORMATS: [&str; 3] = ["ulid", "uppercase", "xid"];
/// Formats that a pattern defines.
const FORMATS: [(&str, &str); 2] = [
    ("base64", "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"),
    ("base64url", "^(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2}(?:==)?|[A-Za-z0-9_-]{3}=?)?$"),
];
/// Keywords that say nothing about a property's name.
const NOTES: [&str; 5] = ["$comment", "description", "title", "default", "examples"];

/// Rewrites one schema, without its subschemas.
pub(super) fn rewrite(map: &mut Map<String, Value>, strict: bool) -> Result<(), GrammarError> {
    rewrite_pattern(map, strict)?;
    rewrite_format(map);
    rewrite_names(map);
    Ok(())
}

fn rewrite_pattern(map: &mut Map<String, Value>, strict: bool) -> Result<(), GrammarError> {
    let Some(text) = map.get("pattern").and_then(Value::as_str) else { return Ok(()) };
    match unsupported_part(text) {
        None => Ok(()),
        Some(part) if strict => Err(GrammarError::Invalid(format!(
            "`pattern`: {text:?} has {part}, which cannot be enforced: rewrite it without, or leave \
             `strict` out to ignore it"
        ))),
        Some(_) => {
            map.remove("pattern");
            Ok(())
        }
    }
}

/// A part of an expression that no automaton can match.
fn unsupported_part(text: &str) -> Option<&'static str> {
    let (mut rest, mut in_class) = (text, false);
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let looks = ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|start| rest.starts_with(start));
        match c {
            '\\' if after.starts_with(|digit| ('1'..='9').contains(&digit)) && !in_class => {
                return Some("a back-reference");
            }
            '\\' => {
                let escaped = after.chars().next().map_or(0, char::len_utf8);
                rest = &after[escaped..];
                continue;
            }
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if looks && !in_class => return Some("look-around"),
            _ => {}
        }
        rest = after;
    }
    None
}

fn rewrite_format(map: &mut Map<String, Value>) {
    let Some(format) = map.get("format").and_then(Value::as_str) else { return };
    if map.contains_key("pattern") {
        if PATTERN_FORMATS.contains(&format) || MORE_PATTERN_FORMATS.contains(&format) {
            map.remove("format");
        }
    } else if let Some((_, pattern)) = FORMATS.iter().find(|(name, _)| *name == format) {
        map.remove("format");
        map.insert("pattern".into(), (*pattern).into());
    }
}

/// `propertyNames` as a pattern of properties.
fn rewrite_names(map: &mut Map<String, Value>) {
    let Some(names) = map.get("propertyNames") else { return };
    let closed = map.get("additionalProperties") == Some(&Value::Bool(false));
    let values = map.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    let has = |key: &str| map.get(key).and_then(Value::as_object).is_some_and(|m| !m.is_empty());
    let (has_properties, has_patterns) = (has("properties"), has("patternProperties"));
    match allowed_names(names) {
        Some(Names::All) => {}
        Some(Names::OneOf(mut listed)) if !has_patterns => {
            if let Some(properties) = map.get("properties").and_then(Value::as_object) {
                if properties.keys().any(|name| !listed.contains(name)) {
                    return;
                }
                listed.retain(|name| !properties.contains_key(name));
            }
            if !closed && !listed.is_empty() {
                // A pattern, because properties come in their order.
                let names: Vec<String> = listed.iter().map(|name| literal(name)).collect();
                let pattern = format!("^(?:{})$", names.join("|"));
                map.insert("patternProperties".into(), json!({ pattern: values }));
            }
            map.insert("additionalProperties".into(), Value::Bool(false));
        }
        Some(Names::Matching(pattern)) if !has_properties && !has_patterns && !closed => {
            map.insert("patternProperties".into(), json!({ pattern: values }));
            map.insert("additionalProperties".into(), Value::Bool(false));
        }
        _ => return,
    }
    map.remove("propertyNames");
}

enum Names {
    All,
    OneOf(Vec<String>),
    Matching(String),
}

/// The names that a schema of names allows, if it is simple.
fn allowed_names(names: &Value) -> Option<Names> {
    let map = match names {
        Value::Bool(true) => return Some(Names::All),
        other => other.as_object()?,
    };
    let keys = map.keys().map(String::as_str);
    let mut said: Vec<&str> = keys.filter(|key| !NOTES.contains(key)).collect();
    if map.get("type").is_some_and(|kind| kind == "string") {
        said.retain(|key| *key != "type");
    }
    match said[..] {
        [] => Some(Names::All),
        ["const"] => Some(Names::OneOf(vec![map.get("const")?.as_str()?.into()])),
        ["enum"] => {
            let listed = map.get("enum")?.as_array()?.iter();
            let listed = listed.map(|name| name.as_str().map(String::from));
            Some(Names::OneOf(listed.collect::<Option<_>>()?))
        }
        ["pattern"] => {
            let pattern = map.get("pattern")?.as_str()?;
            let works = unsupported_part(pattern).is_none();
            works.then(|| Names::Matching(pattern.into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(schema: Value, strict: bool) -> Value {
        let Value::Object(mut map) = schema else { panic!() };
        rewrite(&mut map, strict).unwrap();
        map.into()
    }

    #[test]
    fn look_around_and_back_references_are_found_where_they_count() {
        for text in ["^(?!a)b", "a(?=b)", "(?<=a)b", "(?<!a)b"] {
            assert_eq!(unsupported_part(text), Some("look-around"), "{text}");
        }
        assert_eq!(unsupported_part(r"(a)\1"), Some("a back-reference"));
        for text in [r"\(?=a", r"[(?=]", r"(?:a)", r"(?<name>a)", r"\\d", r"[\]\1]", "é(a)"] {
            assert_eq!(unsupported_part(text), None, "{text}");
        }
    }

    #[test]
    fn a_pattern_that_cannot_be_enforced_is_ignored_or_refused_by_name() {
        let schema = || json!({"type": "string", "pattern": "^(?!a)b", "minLength": 2});
        assert_eq!(rewritten(schema(), false), json!({"type": "string", "minLength": 2}));
        let Value::Object(mut map) = schema() else { panic!() };
        let GrammarError::Invalid(why) = rewrite(&mut map, true).unwrap_err() else { panic!() };
        assert!(why.contains("`pattern`") && why.contains("look-around"), "{why}");
    }

    #[test]
    fn a_format_of_zod_leaves_its_pattern() {
        let schema = json!({"type": "string", "format": "starts_with", "pattern": "^a.*"});
        assert_eq!(rewritten(schema, true), json!({"type": "string", "pattern": "^a.*"}));
        let schema = json!({"type": "string", "format": "base64", "contentEncoding": "base64"});
        assert!(rewritten(schema, true)["pattern"].as_str().unwrap().contains("{4}"));
        let schema = json!({"type": "string", "format": "starts_with"});
        assert_eq!(rewritten(schema.clone(), true), schema, "nothing says what it starts with");
    }

    #[test]
    fn names_of_properties_become_a_pattern() {
        let number = json!({"type": "number"});
        for (names, expected) in [
            (json!({"type": "string"}), json!({"type": "object", "additionalProperties": number})),
            (
                json!({"enum": ["a", "b"]}),
                json!({"type": "object", "additionalProperties": false,
                    "patternProperties": {"^(?:a|b)$": number}}),
            ),
            (
                json!({"type": "string", "pattern": "^x"}),
                json!({"type": "object", "additionalProperties": false,
                    "patternProperties": {"^x": number}}),
            ),
        ] {
            let schema =
                json!({"type": "object", "propertyNames": names, "additionalProperties": number});
            assert_eq!(rewritten(schema, true), expected);
        }
        let schema = json!({"propertyNames": {"minLength": 2}});
        assert_eq!(rewritten(schema.clone(), true), schema, "it is left to llguidance");
    }
}
