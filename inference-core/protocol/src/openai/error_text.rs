//! PURE. Serde's errors in the words of JSON: no names of Rust types.

/// Rewrites an error of serde without its position, such as ``invalid type: string "a", expected
/// f32``: what was expected, and what there was instead.
pub(super) fn plain(error: &str) -> String {
    let parts = ["invalid type: ", "invalid value: ", "invalid length "];
    let found = parts.iter().find_map(|start| error.strip_prefix(start));
    if let Some((found, expected)) = found.and_then(|rest| rest.rsplit_once(", expected ")) {
        return format!("expected {}, not {}", expected_text(expected), found_text(found));
    }
    if let Some(name) = named(error, "missing field ") {
        return format!("the field '{name}' is missing");
    }
    if let Some(name) = named(error, "duplicate field ") {
        return format!("the field '{name}' occurs twice");
    }
    error.into()
}

/// The name in backquotes after `start`.
pub(super) fn named<'e>(error: &'e str, start: &str) -> Option<&'e str> {
    error.strip_prefix(start)?.strip_prefix('`')?.strip_suffix('`')
}

fn expected_text(expected: &str) -> &str {
    match expected {
        "f32" | "f64" => "a number",
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, at least 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        "option" | "unit" => "null",
        _ if expected.starts_with("struct ") => "an object",
        _ if expected.starts_with("a tuple ") || expected.starts_with("tuple ") => "a list",
        other => other,
    }
}

fn found_text(found: &str) -> String {
    match found {
        "sequence" => "a list".into(),
        "map" => "an object".into(),
        "null" => "null".into(),
        _ => match found.split_once(' ') {
            Some(("string", text)) => format!("the string {text}"),
            Some(("integer" | "boolean", value)) => value.trim_matches('`').into(),
            Some(("floating", value)) => {
                value.trim_start_matches("point ").trim_matches('`').into()
            }
            _ => found.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_json_that_is_expected_and_found() {
        for (error, text) in [
            (
                r#"invalid type: string "hot", expected f32"#,
                r#"expected a number, not the string "hot""#,
            ),
            (
                "invalid value: integer `-1`, expected u32",
                "expected a whole number, at least 0, not -1",
            ),
            (
                "invalid type: floating point `1.5`, expected i64",
                "expected a whole number, not 1.5",
            ),
            ("invalid type: map, expected a sequence", "expected a list, not an object"),
            ("invalid type: sequence, expected a map", "expected an object, not a list"),
            ("invalid type: null, expected struct ResponseFormat", "expected an object, not null"),
            ("invalid type: boolean `true`, expected a string", "expected a string, not true"),
            (
                r#"invalid type: string ", expected u8", expected a boolean"#,
                r#"expected true or false, not the string ", expected u8""#,
            ),
            ("missing field `type`", "the field 'type' is missing"),
            ("duplicate field `n`", "the field 'n' occurs twice"),
            ("number out of range", "number out of range"),
        ] {
            assert_eq!(plain(error), text);
        }
    }
}
