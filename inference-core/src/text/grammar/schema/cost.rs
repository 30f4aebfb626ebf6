//! PURE. Estimates what a JSON schema costs llguidance beyond its own limits: it compares property
//! patterns in pairs, again for each part that is joined with another, and builds a state for each
//! remainder of `multipleOf`.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::text::grammar::{GrammarError, limits};

/// Maximum properties of all objects together: llguidance's time grows with their square.
const PROPERTIES_MAX: usize = 1500;
/// Maximum optional properties of one object: any of them may come next, and llguidance uses four
/// items of its row for each, of [`limits::ROW_ITEMS_MAX`].
const OPTIONAL_MAX: usize = limits::ROW_ITEMS_MAX / 4 - 50;
/// Maximum number of different `patternProperties` patterns: 50 make 1225 pairs, about 0.1 ms each.
const PATTERNS_MAX: usize = 50;
/// Maximum alternatives and references next to two or more patterns, if parts are joined: as many
/// joins as 4 alternatives in 4 places cause.
const BRANCHES_MAX: usize = 8;
/// Maximum remainders of all `multipleOf` together: about 10 us each.
const REMAINDERS_MAX: u64 = 20_000;
/// Maximum decimal places of a `multipleOf`.
const DECIMALS_MAX: u32 = 9;
/// Keys that only describe: a schema of them and a reference is not joined.
const NOTES: [&str; 12] = [
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "$anchor",
    "$comment",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
];

/// Totals over the parts of a schema.
#[derive(Debug, Default)]
pub(super) struct Cost {
    /// True if some part is joined with another (`allOf`, or `anyOf` next to other keywords).
    joins: bool,
    branches: usize,
    properties: usize,
    patterns: BTreeSet<String>,
    /// Divisors, with their number of decimals.
    divisors: BTreeSet<(u64, u32)>,
}

impl Cost {
    /// Adds one schema, without its subschemas.
    pub(super) fn add(&mut self, schema: &Map<String, Value>) -> Result<(), GrammarError> {
        let mut choices = 0;
        for (key, value) in schema {
            choices += match (key.as_str(), value) {
                ("allOf", Value::Array(parts)) => {
                    self.joins = true;
                    parts.len()
                }
                ("anyOf" | "oneOf", Value::Array(parts)) => parts.len(),
                ("enum", Value::Array(parts)) => parts.iter().filter(|v| v.is_object()).count(),
                ("const", Value::Object(_)) | ("$ref", _) => 1,
                _ => 0,
            };
            match (key.as_str(), value) {
                ("properties", Value::Object(properties)) => {
                    self.properties += properties.len();
                    check_optional(properties, schema.get("required"))?;
                }
                ("patternProperties", Value::Object(patterns)) => {
                    self.patterns.extend(patterns.keys().cloned());
                }
                ("multipleOf", Value::Number(number)) => {
                    let divisor = number.as_f64().and_then(decimal);
                    self.divisors.insert(divisor.ok_or_else(|| too_fine(value))?);
                }
                _ => {}
            }
        }
        let others = schema.keys().filter(|key| !NOTES.contains(&key.as_str())).count();
        self.joins |= choices > 0 && others > 1;
        self.branches += choices;
        Ok(())
    }

    /// Fails if the total is too high.
    pub(super) fn check(&self) -> Result<(), GrammarError> {
        let too_complex = |why: &str| Err(GrammarError::TooComplex(why.into()));
        if self.properties > PROPERTIES_MAX {
            return too_complex("the JSON schema has too many `properties`");
        }
        if self.patterns.len() > PATTERNS_MAX {
            return too_complex("the JSON schema has too many different `patternProperties`");
        }
        if self.joins && self.patterns.len() > 1 && self.branches > BRANCHES_MAX {
            let why = "the JSON schema has several `patternProperties` beside `allOf`, `anyOf` or \
                       `$ref` with other keywords";
            return too_complex(why);
        }
        let remainders: u64 = self.divisors.iter().map(|(divisor, _)| remainders(*divisor)).sum();
        if remainders > REMAINDERS_MAX || (self.joins && !self.can_join_divisors()) {
            return too_complex("the JSON schema has too large or too many `multipleOf`");
        }
        Ok(())
    }

    /// True if the divisors could be joined into their product.
    fn can_join_divisors(&self) -> bool {
        let decimals = self.divisors.iter().map(|(_, decimals)| *decimals).max().unwrap_or(0);
        let whole = |(divisor, own): &(u64, u32)| divisor.checked_mul(10u64.pow(decimals - own));
        let mut product = 1u64;
        for divisor in &self.divisors {
            match whole(divisor).and_then(|divisor| product.checked_mul(divisor)) {
                Some(larger) => product = larger,
                None => return false,
            }
        }
        self.divisors.len() < 2
            || (product < u64::from(u32::MAX) && remainders(product) <= REMAINDERS_MAX)
    }
}

/// Rejects at once an object that would otherwise fail only after the response has started.
fn check_optional(
    properties: &Map<String, Value>,
    required: Option<&Value>,
) -> Result<(), GrammarError> {
    let required = required.and_then(Value::as_array);
    let required: BTreeSet<&str> =
        required.into_iter().flatten().filter_map(Value::as_str).collect();
    let optional = properties.keys().filter(|name| !required.contains(name.as_str())).count();
    if optional > OPTIONAL_MAX {
        let why = format!(
            "an object of the JSON schema has {optional} `properties` that are not `required`, \
             at most {OPTIONAL_MAX} can be"
        );
        return Err(GrammarError::TooComplex(why));
    }
    Ok(())
}

/// Converts to an integer, and the number of times it was multiplied by 10.
fn decimal(number: f64) -> Option<(u64, u32)> {
    let mut number = number.abs();
    for decimals in 0..=DECIMALS_MAX {
        if number.fract() == 0.0 {
            return (number < 1e8).then_some((number as u64, decimals));
        }
        number *= 10.0;
    }
    None
}

fn too_fine(value: &Value) -> GrammarError {
    GrammarError::TooComplex(format!("`multipleOf`: {value} has too many digits"))
}

/// Number of remainders: only the divisor's factors that 10 does not have need to be tracked.
fn remainders(mut divisor: u64) -> u64 {
    for factor in [2, 5] {
        while divisor > 0 && divisor.is_multiple_of(factor) {
            divisor /= factor;
        }
    }
    divisor
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schemas: &[Value]) -> Result<(), GrammarError> {
        let mut cost = Cost::default();
        for schema in schemas {
            cost.add(schema.as_object().unwrap())?;
        }
        cost.check()
    }

    #[test]
    fn divisors_may_be_round_or_small_but_not_both_large_and_odd() {
        let divisor = |n: f64| serde_json::json!({ "multipleOf": n });
        for fine in [0.0, 3.0, 0.01, 0.25, 9973.0, 100_000.0, 86_400.0, 0.000_5] {
            assert_eq!(check(&[divisor(fine)]), Ok(()), "{fine}");
        }
        for bad in [99_991.0, 1e9, 1e-10, 0.123_456_789_1] {
            assert!(check(&[divisor(bad)]).is_err(), "{bad}");
        }
        let primes = [divisor(101.0), divisor(103.0), divisor(107.0)];
        assert_eq!(check(&primes), Ok(()));
        let joined = serde_json::json!({ "allOf": [] });
        assert!(check(&[&primes[..], &[joined]].concat()).is_err());
    }

    #[test]
    fn an_object_has_few_properties_that_need_not_be_there() {
        let object = |optional: usize| {
            let names: Vec<String> = (0..optional + 900).map(|i| format!("p{i}")).collect();
            let properties: Map<String, Value> =
                names.iter().map(|name| (name.clone(), Value::Bool(true))).collect();
            serde_json::json!({ "properties": properties, "required": names[optional..] })
        };
        assert_eq!(check(&[object(OPTIONAL_MAX)]), Ok(()));
        let Err(GrammarError::TooComplex(why)) = check(&[object(OPTIONAL_MAX + 1)]) else {
            panic!("it was let through");
        };
        assert!(why.contains("not `required`") && why.contains("450"), "{why}");
    }

    #[test]
    fn patterns_are_few_where_parts_are_joined() {
        let patterns = serde_json::json!({ "patternProperties": {"a": {}, "b": {}} });
        let reference = serde_json::json!({ "$ref": "#", "description": "" });
        let joined = serde_json::json!({ "$ref": "#", "type": "object" });
        let many = |schema: &Value| vec![schema.clone(); 9];
        assert_eq!(check(&[vec![patterns.clone()], many(&reference)].concat()), Ok(()));
        assert!(check(&[vec![patterns], many(&joined)].concat()).is_err());
    }
}
