//! PURE. Checks and rewrites JSON schemas before llguidance parses them.
//!
//! Drafts 4 to 2020-12 as far as llguidance supports them; it rejects keywords it cannot enforce by
//! name. This module handles sizes, references as RFC 6901 and RFC 3986 define them, and the
//! whitespace of responses; [`rewrite`] replaces keywords that llguidance does not know.

use serde_json::{Map, Number, Value, json};

mod cost;
mod rewrite;

use cost::Cost;

use super::{GrammarError, limits, pattern};

/// Whitespace between JSON tokens, at most once in each place: a model that prefers blanks must not
/// be able to continue forever. A few spaces, or a line break and its indentation.
const WHITESPACE: &str = r" {1,4}|\t|\r?\n[ \t]{0,64}";
/// The key that sets llguidance's options in a schema. Reserved for us, not for clients.
const OPTIONS: &str = "x-guidance";
/// Key for copies of definitions whose references contain escapes.
const COPIES: &str = "$defs";
/// Keys whose values map names to schemas.
const MAPS: [&str; 6] =
    ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"];
/// Keys whose values are data, not schemas.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];

/// Keys whose values are counts. Some clients write 2.0.
const COUNTS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

/// Maximum bound of a number: the largest integer up to which f64 represents all.
const BOUND_MAX: f64 = 9_007_199_254_740_991.0;

/// The schema of any JSON object.
pub(super) fn any_object() -> Value {
    json!({ "type": "object", OPTIONS: options(true) })
}

/// Parses and checks a schema. With `strict`, rejects keywords that cannot be enforced.
pub(super) fn prepare(text: &str, strict: bool) -> Result<Value, GrammarError> {
    let invalid = |why: String| GrammarError::Invalid(why);
    let read = serde_json::from_str(text);
    let root: Value = read.map_err(|e| invalid(format!("the JSON schema is not JSON: {e}")))?;
    let mut root = match root {
        Value::Object(map) => Value::Object(map),
        Value::Bool(true) => json!({}),
        Value::Bool(false) => return Err(invalid("the JSON schema allows nothing".into())),
        _ => return Err(invalid("the JSON schema must be an object or true".into())),
    };
    if root.get(OPTIONS).is_some() {
        return Err(invalid(format!("the JSON schema must not set `{OPTIONS}`")));
    }
    let mut copies = Map::new();
    let original = root.clone();
    let mut walk = Walk { root: &original, copies: &mut copies, cost: Cost::default(), strict };
    walk.schema(&mut root, 0)?;
    walk.cost.check()?;
    add(&mut root, copies, strict)?;
    Ok(root)
}

fn add(root: &mut Value, copies: Map<String, Value>, strict: bool) -> Result<(), GrammarError> {
    let Some(map) = root.as_object_mut() else { return Ok(()) };
    map.insert(OPTIONS.into(), options(strict));
    if copies.is_empty() {
        return Ok(());
    }
    let definitions = map.entry(COPIES).or_insert_with(|| json!({}));
    let Some(definitions) = definitions.as_object_mut() else {
        return Err(GrammarError::Invalid(format!("`{COPIES}` must be an object")));
    };
    definitions.extend(copies);
    Ok(())
}

fn options(strict: bool) -> Value {
    json!({
        "whitespace_pattern": WHITESPACE,
        // Models write both \u00e9 and é.
        "json_allow_general_unicode_escapes": true,
        "lenient": !strict,
        "coerce_one_of": !strict,
    })
}

struct Walk<'a> {
    root: &'a Value,
    copies: &'a mut Map<String, Value>,
    cost: Cost,
    strict: bool,
}

impl Walk<'_> {
    /// Walks a schema, in which keys are keywords.
    fn schema(&mut self, value: &mut Value, depth: usize) -> Result<(), GrammarError> {
        check_depth(depth)?;
        match value {
            Value::Array(items) => {
                items.iter_mut().try_for_each(|item| self.schema(item, depth + 1))
            }
            Value::Object(map) => {
                rewrite::rewrite(map, self.strict)?;
                self.cost.add(map)?;
                for (key, value) in map.iter_mut() {
                    self.keyword(key, value, depth)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn keyword(&mut self, key: &str, value: &mut Value, depth: usize) -> Result<(), GrammarError> {
        match (key, value) {
            (key, value) if DATA.contains(&key) => check_data(value, depth),
            (key, Value::Object(names)) if MAPS.contains(&key) => {
                if key == "patternProperties" {
                    names.keys().try_for_each(|text| check_pattern(text))?;
                }
                names.values_mut().try_for_each(|schema| self.schema(schema, depth + 2))
            }
            (key, value) if COUNTS.contains(&key) => {
                write_as_integer(value);
                Ok(())
            }
            ("maximum" | "exclusiveMaximum", Value::Number(bound)) => within(bound, 1.0),
            ("minimum" | "exclusiveMinimum", Value::Number(bound)) => within(bound, -1.0),
            ("pattern", Value::String(text)) => check_pattern(text),
            ("$ref", Value::String(reference)) => self.reference(reference),
            (_, value) => self.schema(value, depth + 1),
        }
    }

    /// Checks that a reference resolves. llguidance compares its parts literally; one with escapes
    /// gets a copy under a plain name.
    fn reference(&mut self, reference: &mut String) -> Result<(), GrammarError> {
        if reference == "#" {
            return Ok(());
        }
        let unknown = || {
            let known = "only `#` and `#/...` that lead to a part of the schema are known";
            GrammarError::Invalid(format!("`$ref`: {reference:?}: {known}"))
        };
        let pointer = reference.strip_prefix('#').filter(|p| p.starts_with('/'));
        let pointer = percent_decoded(pointer.ok_or_else(unknown)?).ok_or_else(unknown)?;
        let target = self.root.pointer(&pointer).ok_or_else(unknown)?;
        if !reference.contains(['~', '%']) {
            return Ok(());
        }
        let name = format!("copy of {}", pointer.replace(['~', '/'], " "));
        let known = self.copies.contains_key(&name);
        *reference = format!("#/{COPIES}/{name}");
        if !known {
            let mut copy = target.clone();
            // Inserted before it is walked, so that it may refer to itself.
            self.copies.insert(name.clone(), Value::Null);
            self.schema(&mut copy, 0)?;
            self.copies.insert(name, copy);
        }
        Ok(())
    }
}

fn check_depth(depth: usize) -> Result<(), GrammarError> {
    if depth > limits::DEPTH_MAX {
        let why = format!("the JSON schema nests deeper than {}", limits::DEPTH_MAX);
        return Err(GrammarError::TooComplex(why));
    }
    Ok(())
}

fn check_data(value: &Value, depth: usize) -> Result<(), GrammarError> {
    check_depth(depth)?;
    match value {
        Value::Array(items) => items.iter().try_for_each(|v| check_data(v, depth + 1)),
        Value::Object(map) => map.values().try_for_each(|v| check_data(v, depth + 1)),
        _ => Ok(()),
    }
}

fn write_as_integer(count: &mut Value) {
    let whole = |n: &f64| n.fract() == 0.0 && (0.0..f64::from(u32::MAX)).contains(n);
    if let Some(number) = count.as_f64().filter(whole) {
        *count = Value::from(number as u64);
    }
}

/// Moves a bound closer to 0 if llguidance's arithmetic would overflow: `sign` is 1 for upper
/// bounds, -1 for lower ones. On the other side of 0, that would widen the bounds, so it fails
/// there.
fn within(bound: &mut Number, sign: f64) -> Result<(), GrammarError> {
    let number = bound.as_f64().unwrap_or(f64::INFINITY) * sign;
    if number < -BOUND_MAX {
        let why = format!("the JSON schema has a bound of {bound} that leaves only huge numbers");
        return Err(GrammarError::Invalid(why));
    }
    if number > BOUND_MAX {
        *bound = Number::from_f64(BOUND_MAX * sign).unwrap_or_else(|| Number::from(0));
    }
    Ok(())
}

fn check_pattern(text: &str) -> Result<(), GrammarError> {
    if text.is_empty() { Ok(()) } else { pattern::check_regex(text) }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => hex(rest.next()?)? * 16 + hex(rest.next()?)?,
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|d| u8::try_from(d).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_resolved_through_both_kinds_of_escapes() {
        let schema = r##"{"$ref": "#/$defs/List%3Ca~1b%3E", "$defs": {"List<a/b>":
            {"items": {"$ref": "#/$defs/List%3Ca~1b%3E"}}}}"##;
        let schema = prepare(schema, true).unwrap();
        let reference = schema["$ref"].as_str().unwrap();
        let copy = &schema.pointer(&reference[1..]).unwrap()["items"]["$ref"];
        assert_eq!(copy, reference);
    }

    #[test]
    fn references_that_lead_nowhere_are_named() {
        for reference in ["#/$defs/a", "http://x.y/z", "#anchor", "#/%ff", "#/%4", "other"] {
            let schema = format!(r#"{{"items": {{"$ref": "{reference}"}}}}"#);
            let Err(GrammarError::Invalid(why)) = prepare(&schema, true) else { panic!() };
            assert!(why.contains(reference), "{why}");
        }
    }

    #[test]
    fn names_of_properties_and_data_are_not_keywords() {
        let schema = r##"{"properties": {"$ref": {"type": "string"}, "pattern": {}},
            "const": {"$ref": "#/nowhere"}}"##;
        assert!(prepare(schema, true).is_ok());
    }

    #[test]
    fn huge_bounds_are_taken_nearer_and_never_wider() {
        let schema = r#"{"maximum": 18446744073709551615, "exclusiveMinimum": -1e300}"#;
        let schema = prepare(schema, true).unwrap();
        assert_eq!(schema["maximum"], BOUND_MAX);
        assert_eq!(schema["exclusiveMinimum"], -BOUND_MAX);
        assert!(prepare(r#"{"minimum": 1e300}"#, true).is_err());
        assert!(prepare(r#"{"maximum": -1e300}"#, true).is_err());
    }

    #[test]
    fn clients_cannot_set_options() {
        let Err(GrammarError::Invalid(why)) = prepare(r#"{"x-guidance": {}}"#, true) else {
            panic!()
        };
        assert!(why.contains("x-guidance"));
    }
}
