//! Constraints on the response: `response_format` and related fields.

use inference_core::types::constraint::Constraint;
use inference_protocol::openai::{ConstraintFields, ResponseFormat};
use serde_json::Value;

use super::sampling::invalid;
use crate::types::error::Error;

/// The constraint of a request, if it has one; two of them are an error.
pub(super) fn from_fields(fields: ConstraintFields) -> Result<Option<Constraint>, Error> {
    let found = [
        (
            "response_format",
            fields.response_format.map(from_response_format).transpose()?.flatten(),
        ),
        ("json_schema", fields.json_schema.map(|s| Constraint::LenientJsonSchema(s.to_string()))),
        ("grammar", fields.grammar.filter(|g| !g.is_empty()).map(Constraint::Gbnf)),
        ("guided_regex", fields.guided_regex.map(Constraint::Regex)),
        ("guided_choice", fields.guided_choice.map(Constraint::Choice)),
    ];
    let mut given = found.into_iter().filter_map(|(name, found)| Some((name, found?)));
    let first = given.next();
    match (first, given.next()) {
        (Some((first, _)), Some((second, _))) => {
            let message = format!("{second} cannot be used together with {first}");
            Err(invalid(second, &message))
        }
        (first, _) => Ok(first.map(|(_, constraint)| constraint)),
    }
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

    fn read_json(json: &str) -> Result<Option<Constraint>, Error> {
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
        ] {
            assert_eq!(read_json(json).unwrap(), expected, "{json}");
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
        ] {
            let error = read_json(json).unwrap_err();
            assert_eq!(error.param().as_deref(), Some(param), "{json}: {error}");
        }
    }
}
