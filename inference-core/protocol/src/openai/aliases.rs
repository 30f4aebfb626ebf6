//! PURE. Other names of fields. A request may set a field by both names, as long as they agree.

use serde_json::Value;

use super::RawField;

/// Other names of fields with the name that we use, sorted.
pub const ALIASES: &[(&str, &str)] = &[
    ("add_special_tokens", "add_special"),
    ("guided_json", "json_schema"),
    ("n_cmpl", "n"),
    ("n_predict", "max_tokens"),
    ("n_probs", "logprobs"),
    ("reasoning_budget_tokens", "reasoning_budget"),
    ("repetition_penalty", "repeat_penalty"),
    ("return_token_strs", "with_pieces"),
    ("thinking_budget_tokens", "reasoning_budget"),
    ("thinking_token_budget", "reasoning_budget"),
    ("typ_p", "typical_p"),
];

fn canonical(name: &str) -> &str {
    let index = ALIASES.binary_search_by(|(alias, _)| (*alias).cmp(name));
    index.ok().and_then(|index| ALIASES.get(index)).map_or(name, |(_, of)| of)
}

/// Another field of `all` that sets the same as `field` by another of the `known` names.
pub(super) fn other<'f, 'a>(
    field: &RawField<'a>,
    all: &'f [RawField<'a>],
    known: &[&str],
) -> Option<&'f RawField<'a>> {
    let name = canonical(&field.name);
    let has_names = ALIASES.iter().any(|(_, of)| *of == name);
    let is_other = |other: &&RawField<'a>| {
        other.name != field.name && canonical(&other.name) == name && known.contains(&&*other.name)
    };
    has_names.then(|| all.iter().find(is_other)).flatten()
}

/// True if `field` adds nothing to the `other` name: it is null, or it repeats its value.
pub(super) fn is_redundant(field: &RawField<'_>, other: &RawField<'_>) -> bool {
    if field.value == "null" {
        // Of two nulls, the alias goes.
        return other.value != "null" || canonical(&field.name) != field.name;
    }
    canonical(&field.name) != field.name && other.value != "null" && is_same(field, other)
}

fn is_same(one: &RawField<'_>, other: &RawField<'_>) -> bool {
    let read = |field: &RawField<'_>| serde_json::from_str::<Value>(field.value).ok();
    match (read(one), read(other)) {
        (Some(one), Some(other)) => {
            one == other || (one.as_f64().is_some() && one.as_f64() == other.as_f64())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::{ParseError, RawObject, RoutingFields, SamplingFields, parse};

    fn read(body: &str) -> Result<SamplingFields, ParseError> {
        RawObject::parse(body.as_bytes())?.read()
    }

    #[test]
    fn the_table_is_sorted_and_no_alias_has_one() {
        assert!(ALIASES.is_sorted_by(|a, b| a.0 < b.0));
        assert!(ALIASES.iter().all(|(_, of)| canonical(of) == *of));
    }

    #[test]
    fn two_names_of_a_field_may_agree_and_null_is_absent() {
        for (body, expected) in [
            (r#"{"repeat_penalty":null,"repetition_penalty":null}"#, None),
            (r#"{"repeat_penalty":null,"repetition_penalty":1.5}"#, Some(1.5)),
            (r#"{"repetition_penalty":null,"repeat_penalty":1.5}"#, Some(1.5)),
            (r#"{"repetition_penalty":2,"repeat_penalty":2.0}"#, Some(2.0)),
        ] {
            assert_eq!(read(body).unwrap().repeat_penalty, expected, "{body}");
        }
        let body = br#"{"model":"m","max_tokens":null,"n_predict":7}"#;
        assert_eq!(
            parse::<RoutingFields>(body).unwrap().text_lengths().unwrap().tokens_max,
            Some(7)
        );
    }

    #[test]
    fn two_names_that_differ_are_refused_by_name() {
        for body in [
            r#"{"repeat_penalty":1.1,"repetition_penalty":1.5}"#,
            r#"{"repetition_penalty":1.5,"repeat_penalty":1.1}"#,
        ] {
            let error = read(body).unwrap_err();
            let said = "repetition_penalty and repeat_penalty are two names of one field, and their \
                        values differ: send one of them";
            assert_eq!(error.message, said);
            assert_eq!(error.param.as_deref(), Some("repetition_penalty"));
        }
    }

    #[test]
    fn one_name_that_occurs_twice_is_refused() {
        for body in [r#"{"n":1,"n":1}"#, r#"{"typ_p":null,"typ_p":null}"#] {
            assert!(read(body).unwrap_err().message.ends_with("occurs twice"));
        }
    }
}
