//! Tests that random responses under a constraint satisfy it.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::Value;

use super::{Vocabulary, bytes, draw, large, schema};
use crate::types::constraint::Constraint;

/// Schemas of many kinds, using keywords of every type that is enforced.
const SCHEMAS: [&str; 46] = [
    r#"{"type": "object"}"#,
    r#"{"type": "array"}"#,
    r#"{"type": "string"}"#,
    r#"{"type": "integer"}"#,
    r#"{"type": "number"}"#,
    r#"{"type": "boolean"}"#,
    r#"{"type": "null"}"#,
    r#"{}"#,
    r#"true"#,
    r#"{"type": ["string", "null"]}"#,
    r#"{"enum": ["a", 1, null, true, [1], {"b": 2}]}"#,
    r#"{"const": {"a": [1, 2, "x\ny"], "b": null}}"#,
    r#"{"type": "integer", "minimum": -5, "maximum": 1000}"#,
    r#"{"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 17}"#,
    r#"{"type": "number", "minimum": 0, "maximum": 1}"#,
    r#"{"type": "number", "exclusiveMinimum": -2.5, "maximum": 99.75}"#,
    r#"{"type": "integer", "multipleOf": 3}"#,
    r#"{"type": "string", "minLength": 2, "maxLength": 5}"#,
    r#"{"type": "string", "pattern": "^[a-z]{2,4}-[0-9]+$"}"#,
    r#"{"type": "string", "pattern": "[a-m]"}"#,
    r#"{"type": "string", "pattern": "^(\\d{3})?\\s\\w+$", "maxLength": 12}"#,
    r#"{"type": "string", "format": "date"}"#,
    r#"{"type": "string", "format": "date-time"}"#,
    r#"{"type": "string", "format": "time"}"#,
    r#"{"type": "string", "format": "uuid"}"#,
    r#"{"type": "string", "format": "ipv4"}"#,
    r#"{"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}"#,
    r#"{"type": "array", "prefixItems": [{"type": "string"}, {"type": "null"}],
        "items": {"type": "boolean"}, "minItems": 1}"#,
    r#"{"type": "array", "prefixItems": [{"const": 1}], "items": false}"#,
    r#"{"type": "array", "items": {"type": "array", "items": {"enum": [1, 2]}}}"#,
    r#"{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a", "b"], "additionalProperties": false}"#,
    r#"{"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"},
        "c": {"type": "boolean"}}, "required": ["b"], "additionalProperties": false}"#,
    r#"{"type": "object", "properties": {"a": {"type": "integer"}},
        "additionalProperties": {"type": "boolean"}}"#,
    r#"{"type": "object", "patternProperties": {"^x_": {"type": "integer"}},
        "additionalProperties": false}"#,
    r#"{"type": "object", "properties": {"a b\"c\\d": {"type": "null"}, "é": {}},
        "required": ["a b\"c\\d", "é"], "additionalProperties": false}"#,
    r#"{"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}},
        "minProperties": 1, "additionalProperties": false}"#,
    r#"{"type": "object", "additionalProperties": {"type": "null"}, "maxProperties": 2}"#,
    r#"{"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer"},
        {"type": "object", "properties": {"k": {"const": "v"}}, "required": ["k"]}]}"#,
    r#"{"oneOf": [{"type": "integer"}, {"type": "string"}]}"#,
    r#"{"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type":
        "integer"}}, "required": ["kind", "n"]}, {"type": "object", "properties": {"kind":
        {"const": "b"}}, "required": ["kind"]}]}"#,
    r#"{"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}},
        {"properties": {"a": {"minimum": 3}, "b": {"type": "null"}}, "required": ["a"]}]}"#,
    r##"{"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"v":
        {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
        "required": ["v", "next"], "additionalProperties": false}}}"##,
    r##"{"type": "object", "properties": {"all": {"type": "array", "maxItems": 3, "items":
        {"$ref": "#"}}}, "additionalProperties": false}"##,
    r##"{"definitions": {"A<B>": {"enum": ["x", "y"]}}, "type": "array", "items":
        {"$ref": "#/definitions/A%3CB%3E"}, "maxItems": 3}"##,
    r#"{"type": "object", "properties": {"steps": {"type": "array", "items": {"type": "object",
        "properties": {"explanation": {"type": "string"}, "output": {"type": "string"}},
        "required": ["explanation", "output"], "additionalProperties": false}},
        "final_answer": {"type": "string"}}, "required": ["steps", "final_answer"],
        "additionalProperties": false}"#,
    r#"{"type": "object", "properties": {"id": {"type": "string", "format": "uuid"}, "tags":
        {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}, "minItems": 1},
        "price": {"type": "number", "minimum": 0}, "size": {"enum": ["S", "M", "L"]}},
        "required": ["id", "tags", "size"]}"#,
];

/// Draws until `answers` responses have ended by themselves, and checks them.
fn check(vocabulary: &Vocabulary, text: &str, seed: u64, answers: usize) {
    let value: Value = serde_json::from_str(text).unwrap();
    let validator = jsonschema::options().should_validate_formats(true).build(&value).unwrap();
    let grammar = vocabulary.grammars.compile(&schema(text));
    let grammar = grammar.unwrap_or_else(|e| panic!("{text}: {e}"));
    let mut ended = 0;
    for attempt in 0..answers as u64 * 10 {
        let Some(answer) = draw(vocabulary, grammar.clone(), seed + attempt, 400) else { continue };
        let read: Value = serde_json::from_str(&answer)
            .unwrap_or_else(|e| panic!("{text}: {answer} is no JSON: {e}"));
        let errors: Vec<String> = validator.iter_errors(&read).map(|e| e.to_string()).collect();
        // Leap seconds are allowed in every minute, as in the grammar of RFC 3339.
        let leap = text.contains("time") && answer.contains(":60");
        assert!(errors.is_empty() || leap, "{text}: {answer}: {errors:?}");
        ended += 1;
        if ended == answers {
            return;
        }
    }
    panic!("{text}: only {ended} answers of {answers} came to an end");
}

#[test]
fn what_is_drawn_from_bytes_is_valid() {
    for text in SCHEMAS {
        check(bytes(), text, 1, 12);
    }
}

#[test]
fn what_is_drawn_from_a_large_vocabulary_is_valid() {
    for text in SCHEMAS {
        check(large(), text, 2, 2);
    }
}

#[test]
fn any_object_is_an_object() {
    let vocabulary = bytes();
    let grammar = vocabulary.grammars.compile(&Constraint::JsonObject).unwrap();
    let ended = (0..60).filter_map(|seed| draw(vocabulary, grammar.clone(), seed, 400));
    let objects = ended.map(|text| serde_json::from_str::<Value>(&text).unwrap().is_object());
    let objects: Vec<bool> = objects.collect();
    assert!(objects.len() > 20 && objects.iter().all(|is| *is));
}

/// Random schemas of any nesting.
fn any_schema() -> impl Strategy<Value = Value> {
    use serde_json::json;
    let leaf = prop_oneof![
        Just(json!({"type": "boolean"})),
        Just(json!({"type": "null"})),
        (-50i64..50, 0i64..50)
            .prop_map(|(a, n)| json!({"type": "integer", "minimum": a, "maximum": a + n})),
        (0u32..4, 0u32..4)
            .prop_map(|(a, n)| json!({"type": "string", "minLength": a, "maxLength": a + n})),
        prop::collection::vec("[a-c\"\\\\é]{0,4}", 1..4).prop_map(|texts| json!({"enum": texts})),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let members = prop::collection::vec(("[a-d]{1,2}", inner.clone(), any::<bool>()), 0..4);
        prop_oneof![
            (inner.clone(), 0usize..3, 0usize..3).prop_map(|(items, least, more)| json!({
                "type": "array", "items": items, "minItems": least, "maxItems": least + more
            })),
            prop::collection::vec(inner, 1..4).prop_map(|any| json!({"anyOf": any})),
            members.prop_map(|members| {
                // A name that is drawn twice is one member.
                let required: BTreeSet<&String> =
                    members.iter().filter(|(_, _, r)| *r).map(|(name, ..)| name).collect();
                let properties: serde_json::Map<String, Value> =
                    members.iter().map(|(name, s, _)| (name.clone(), s.clone())).collect();
                json!({"type": "object", "properties": properties, "required": required,
                    "additionalProperties": false})
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn what_is_drawn_under_any_schema_is_valid(schema in any_schema(), seed: u32) {
        check(bytes(), &schema.to_string(), u64::from(seed), 2);
    }
}
