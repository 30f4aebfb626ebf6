//! Request bodies, as clients send them.

use std::fmt::Debug;

use inference_protocol::openai::{
    ALIASES, ChatRequest, CompletionRequest, ConstraintFields, Endpoint, ParseError, RawObject,
    SamplingFields, first_unsupported,
};
use serde::Deserialize;
use serde_json::{Error, Map, Value};

/// A body is its fields: split into them, it has the same values as when it is parsed at once, or
/// both refuse it.
pub fn request(body: &[u8]) {
    let whole: Result<Map<String, Value>, Error> = serde_json::from_slice(body);
    let object = match RawObject::parse(body) {
        Ok(object) => object,
        Err(error) => {
            assert!(whole.is_err(), "{error:?}");
            return;
        }
    };
    let fields: Result<Map<String, Value>, ParseError> = object
        .fields()
        .map(|field| Ok((field.name.to_string(), object.read_field(field)?)))
        .collect();
    match (whole, fields) {
        (Ok(whole), Ok(fields)) => assert_eq!(whole, fields),
        (Ok(_), Err(error)) => panic!("{error:?}"),
        (Err(error), Ok(_)) => assert!(is_too_deep(&error), "{error}"),
        (Err(_), Err(_)) => {}
    }
    check_view::<ChatRequest>(body, &object);
    check_view::<CompletionRequest>(body, &object);
    check_view::<SamplingFields>(body, &object);
    check_view::<ConstraintFields>(body, &object);
    for endpoint in Endpoint::ALL {
        let _ = first_unsupported(endpoint, &object);
    }
}

/// A struct reads the same from the fields as from the whole body, or from neither. The error says
/// where, what is missing, or which fields are one.
fn check_view<'a, T: Deserialize<'a> + Debug>(body: &'a [u8], object: &RawObject<'a>) {
    match (serde_json::from_slice::<T>(body), object.read::<T>()) {
        (Ok(whole), Ok(view)) => assert_eq!(format!("{whole:?}"), format!("{view:?}")),
        (Ok(_), Err(error)) => panic!("{error:?}"),
        (Err(error), Ok(_)) => {
            assert!(is_too_deep(&error) || is_of_two_names(&error, object), "{error}");
        }
        (Err(_), Err(error)) => {
            let places = error.message.contains(" at line ");
            let names = error.message.ends_with(" is missing")
                || error.message.contains(" are two names of one field");
            assert!(places || names, "{}", error.message);
        }
    }
}

/// True if a field is there by two names. Those that agree are one field.
fn is_of_two_names(error: &Error, object: &RawObject<'_>) -> bool {
    let message = error.to_string();
    let field = message.strip_prefix("duplicate field `").and_then(|rest| rest.split('`').next());
    let has = |name: &str| object.fields().any(|field| field.name == name);
    let aliases = ALIASES.iter().filter(|(_, of)| Some(*of) == field).map(|(alias, _)| *alias);
    aliases.chain(field).filter(|name| has(name)).count() > 1
}

/// True if values are nested too deep. A value of its own may have one level more.
fn is_too_deep(error: &Error) -> bool {
    error.to_string().starts_with("recursion limit exceeded")
}
