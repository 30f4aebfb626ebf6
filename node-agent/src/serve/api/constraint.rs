//! Constraints on the response: `response_format` and related fields.

use inference_core::types::constraint::Constraint;
use inference_protocol::openai::{ConstraintFields, ResponseFormat, StructuredOutputs};
use serde_json::Value;

use super::sampling::invalid;
use crate::types::error::Error;

/// A constraint, and the field that has it.
pub(super) type FieldConstraint = (&'static str, Constraint);

/// The constraint of a request, if it has one; two different ones are an error.
pub(super) fn from_fields(fields: ConstraintFields) -> Result<Option<FieldConstraint>, Error> {
    let of_object = fields.structured_outputs.map(from_structured_outputs).transpose()?.flatten();
    let gbnf = |text: Option<String>| text.filter(|g| !g.is_empty()).map(Constraint::Gbnf);
    let found = [
        (
            "response_format",
            fields.response_format.map(from_response_format).transpose()?.flatten(),
        ),
        ("json_schema", fields.json_schema.map(|schema| lenient_schema(&schema))),
        ("grammar", gbnf(fields.grammar)),
        ("ebnf", gbnf(fields.ebnf)),
        ("guided_grammar", fields.guided_grammar.and_then(grammar)),
        ("guided_json_object", json_object(fields.guided_json_object)),
        ("guided_regex", fields.guided_regex.map(Constraint::Regex)),
        ("regex", fields.regex.map(Constraint::Regex)),
        ("guided_choice", fields.guided_choice.map(Constraint::Choice)),
    ];
    let found = found.into_iter().filter_map(|(name, found)| Some((name, found?)));
    only_one(found.chain(of_object), |first, second| {
        let message = format!("{second} cannot be used together with {first}");
        invalid(second, &message)
    })
}

/// vLLM's object holds exactly one constraint.
fn from_structured_outputs(outputs: StructuredOutputs) -> Result<Option<FieldConstraint>, Error> {
    let param = "structured_outputs";
    let unsupported = [
        ("disable_any_whitespace", outputs.disable_any_whitespace == Some(true)),
        ("disable_additional_properties", outputs.disable_additional_properties == Some(true)),
        ("structural_tag", outputs.structural_tag.is_some()),
        ("whitespace_pattern", outputs.whitespace_pattern.is_some()),
    ];
    if let Some((name, _)) = unsupported.into_iter().find(|(_, is_set)| *is_set) {
        let message = format!("{param}.{name} is not supported by this engine: leave it out");
        return Err(invalid(param, &message));
    }
    let found = [
        ("structured_outputs.json", outputs.json.map(|schema| lenient_schema(&schema))),
        ("structured_outputs.json_object", json_object(outputs.json_object)),
        ("structured_outputs.regex", outputs.regex.map(Constraint::Regex)),
        ("structured_outputs.choice", outputs.choice.map(Constraint::Choice)),
        ("structured_outputs.grammar", outputs.grammar.and_then(grammar)),
    ];
    let found = found.into_iter().filter_map(|(name, found)| Some((name, found?)));
    only_one(found, |first, second| {
        invalid(param, &format!("{second} cannot be used together with {first}"))
    })
}

/// One constraint may have several names.
fn only_one(
    mut given: impl Iterator<Item = FieldConstraint>,
    two: impl FnOnce(&'static str, &'static str) -> Error,
) -> Result<Option<FieldConstraint>, Error> {
    let Some((name, constraint)) = given.next() else { return Ok(None) };
    match given.find(|(_, other)| *other != constraint) {
        Some((other, _)) => Err(two(name, other)),
        None => Ok(Some((name, constraint))),
    }
}

/// As vLLM tells them apart (`grammar_is_likely_lark`): GBNF defines rules with `::=`, Lark with a
/// colon.
fn grammar(text: String) -> Option<Constraint> {
    let uncommented = |line: &str| {
        let end = line.find('#').into_iter().chain(line.find("//")).min();
        line.get(..end.unwrap_or(line.len())).is_some_and(|rule| rule.contains("::="))
    };
    match text.lines().any(uncommented) {
        _ if text.is_empty() => None,
        true => Some(Constraint::Gbnf(text)),
        false => Some(Constraint::Lark(text)),
    }
}

fn json_object(is_wanted: Option<bool>) -> Option<Constraint> {
    (is_wanted == Some(true)).then_some(Constraint::JsonObject)
}

/// vLLM and SGLang also take a schema as text.
fn lenient_schema(schema: &Value) -> Constraint {
    Constraint::LenientJsonSchema(schema.as_str().map_or_else(|| schema.to_string(), String::from))
}

fn from_response_format(format: ResponseFormat) -> Result<Option<Constraint>, Error> {
    check_members(&format)?;
    match format.kind.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(match format.schema {
            Some(schema) => Constraint::LenientJsonSchema(schema.to_string()),
            None => Constraint::JsonObject,
        })),
        "json_schema" => {
            let (schema, strict) = match format.json_schema {
                Some(named) => (named.schema, named.strict == Some(true)),
                None => (format.schema, false),
            };
            let Some(schema) = schema.filter(|s| !s.is_null()) else {
                let message = "response_format.json_schema.schema is missing";
                return Err(invalid("response_format", message));
            };
            Ok(Some(schema_constraint(&schema, strict)))
        }
        _ => Err(invalid(
            "response_format",
            "response_format.type must be text, json_object or json_schema",
        )),
    }
}

/// A schema that its type does not use would be silently ignored.
fn check_members(format: &ResponseFormat) -> Result<(), Error> {
    let named = format.json_schema.as_ref().is_some_and(|named| named.schema.is_some());
    let message = match format.kind.as_str() {
        "text" if named || format.schema.is_some() => {
            "response_format has a schema; set its type to json_schema"
        }
        "json_object" if named => {
            "response_format.json_schema needs the type json_schema, not json_object"
        }
        "json_schema" if named && format.schema.is_some() => {
            "response_format has two schemas; give one, as json_schema.schema"
        }
        _ => return Ok(()),
    };
    Err(invalid("response_format", message))
}

fn schema_constraint(schema: &Value, strict: bool) -> Constraint {
    match strict {
        true => Constraint::JsonSchema(schema.to_string()),
        false => Constraint::LenientJsonSchema(schema.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inference_protocol::openai::parse;

    fn read_json(json: &str) -> Result<Option<FieldConstraint>, Error> {
        from_fields(parse(json.as_bytes())?)
    }

    #[test]
    fn every_way_to_ask_for_a_form_is_known() {
        let lenient = || Some(Constraint::LenientJsonSchema(r#"{"type":"array"}"#.into()));
        for (json, expected) in [
            ("{}", None),
            (r#"{"response_format":null,"grammar":""}"#, None),
            (r#"{"response_format":{"type":"text"}}"#, None),
            (r#"{"response_format":{"type":"json_object"}}"#, Some(Constraint::JsonObject)),
            (
                r#"{"response_format":{"type":"json_schema","json_schema":{"name":"x",
                    "strict":true,"schema":{"type":"array"}}}}"#,
                Some(Constraint::JsonSchema(r#"{"type":"array"}"#.into())),
            ),
            (r#"{"response_format":{"type":"json_object","schema":{"type":"array"}}}"#, lenient()),
            (r#"{"guided_json":{"type":"array"}}"#, lenient()),
            (r#"{"grammar":"root ::= [a]"}"#, Some(Constraint::Gbnf("root ::= [a]".into()))),
            (r#"{"guided_regex":"a+"}"#, Some(Constraint::Regex("a+".into()))),
            (r#"{"guided_choice":["a"]}"#, Some(Constraint::Choice(vec!["a".into()]))),
            (r#"{"guided_json":"{\"type\":\"array\"}"}"#, lenient()),
            (r#"{"guided_json_object":true}"#, Some(Constraint::JsonObject)),
            (r#"{"guided_json_object":false,"guided_grammar":""}"#, None),
            (r#"{"regex":"a+"}"#, Some(Constraint::Regex("a+".into()))),
            (r#"{"ebnf":"root ::= [a]"}"#, Some(Constraint::Gbnf("root ::= [a]".into()))),
            (
                r##"{"guided_grammar":"# a ::= b\nstart: \"a\""}"##,
                Some(Constraint::Lark("# a ::= b\nstart: \"a\"".into())),
            ),
            (
                r#"{"structured_outputs":{"grammar":"root ::= [a]","json":null}}"#,
                Some(Constraint::Gbnf("root ::= [a]".into())),
            ),
            (r#"{"structured_outputs":{"json":{"type":"array"}}}"#, lenient()),
            (r#"{"structured_outputs":{"json_object":true}}"#, Some(Constraint::JsonObject)),
            (
                r#"{"structured_outputs":{"choice":["a"],"disable_any_whitespace":false}}"#,
                Some(Constraint::Choice(vec!["a".into()])),
            ),
            (r#"{"structured_outputs":{}}"#, None),
        ] {
            let read = read_json(json).unwrap();
            assert_eq!(read.map(|(_, constraint)| constraint), expected, "{json}");
        }
    }

    #[test]
    fn a_constraint_has_the_name_of_its_field_and_may_have_several() {
        for (json, name) in [
            (r#"{"guided_regex":"a"}"#, "guided_regex"),
            (r#"{"guided_regex":"a","regex":"a"}"#, "guided_regex"),
            (r#"{"grammar":"root ::= [a]","ebnf":"root ::= [a]"}"#, "grammar"),
            (r#"{"structured_outputs":{"choice":["a"]}}"#, "structured_outputs.choice"),
        ] {
            assert_eq!(read_json(json).unwrap().unwrap().0, name, "{json}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_name() {
        for (json, param) in [
            (r#"{"response_format":{"type":"yaml"}}"#, "response_format"),
            (r#"{"response_format":{"type":"json_schema"}}"#, "response_format"),
            (r#"{"response_format":{"type":"text","schema":{}}}"#, "response_format"),
            (
                r#"{"response_format":{"type":"json_object","json_schema":{"schema":{}}}}"#,
                "response_format",
            ),
            (
                r#"{"response_format":{"type":"json_schema","schema":{},"json_schema":{"schema":{}}}}"#,
                "response_format",
            ),
            (r#"{"grammar":"x","json_schema":{}}"#, "grammar"),
            (r#"{"response_format":{}}"#, "response_format"),
            (r#"{"guided_regex":"a","regex":"b"}"#, "regex"),
            (r#"{"structured_outputs":{"json":{},"regex":"a"}}"#, "structured_outputs"),
            (r#"{"structured_outputs":{"structural_tag":{}}}"#, "structured_outputs"),
            (r#"{"structured_outputs":{"whitespace_pattern":"a"}}"#, "structured_outputs"),
            (
                r#"{"structured_outputs":{"regex":"a"},"json_schema":{}}"#,
                "structured_outputs.regex",
            ),
        ] {
            let error = read_json(json).unwrap_err();
            assert_eq!(error.param().as_deref(), Some(param), "{json}: {error}");
        }
    }
}
