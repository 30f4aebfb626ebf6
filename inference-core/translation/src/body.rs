//! Reads the body of a request into its fields, within bounds.

use inference_protocol::openai::ParseError;
use serde_json::Value;

use crate::fault::Fields;

/// Most JSON values of a request. Parsed, each takes some 100 bytes, whatever its length.
const VALUES_MAX: usize = 200_000;

/// Reads the body of a request.
///
/// # Errors
/// It is not a JSON object, or has too many values.
pub(crate) fn read_object(body: &[u8]) -> Result<Fields, ParseError> {
    if count_values(body) > VALUES_MAX {
        let message = format!("the request body has more than {VALUES_MAX} JSON values");
        return Err(ParseError { message, param: None });
    }
    let value: Value = serde_json::from_slice(body).map_err(|e| ParseError {
        message: format!("the request body is not valid JSON: {e}"),
        param: None,
    })?;
    Fields::of(value).map_err(|_| ParseError {
        message: "the request body is not a JSON object".into(),
        param: None,
    })
}

/// Counts the values of a JSON text by what separates them; at least as many as a parser would
/// read.
fn count_values(json: &[u8]) -> usize {
    let (mut values, mut rest) = (0, json);
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'"' => rest = after_string(rest),
            b',' | b'[' | b'{' => values += 1,
            _ => {}
        }
    }
    values
}

/// What follows the string whose beginning was read.
fn after_string(mut rest: &[u8]) -> &[u8] {
    while let Some(at) = memchr::memchr2(b'"', b'\\', rest) {
        let skipped = if rest[at] == b'"' { 1 } else { 2 };
        let is_end = rest[at] == b'"';
        rest = rest.get(at + skipped..).unwrap_or_default();
        if is_end {
            return rest;
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_and_the_contents_of_strings_are_not() {
        assert_eq!(count_values(br#"{"a":[1,2,{"b":3}],"c":"x,y[z\",{\\"}"#), 6);
        assert_eq!(count_values(br#"["unfinished, "#), 1);
        assert_eq!(count_values(b"[\"\\"), 1);
    }

    #[test]
    fn a_small_body_with_a_million_values_is_refused_before_it_is_parsed() {
        let body = format!(r#"{{"messages":[{}0]}}"#, "0,".repeat(1_000_000));
        let error = read_object(body.as_bytes()).unwrap_err();
        assert!(error.message.contains("200000 JSON values"), "{}", error.message);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for body in ["", "{", "[1]", "7", "{}{}", "\u{0}"] {
            assert!(read_object(body.as_bytes()).is_err(), "{body}");
        }
    }
}
