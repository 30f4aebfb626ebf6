//! Tests of [`super`]: errors and values are those of a parse of the whole body.

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::*;
use crate::openai::{
    ChatRequest, CompletionRequest, ConstraintFields, EmbeddingsRequest, SamplingFields,
};

/// The error of one parse of the whole body, as serde_path_to_error finds it.
fn whole_error<T: for<'a> Deserialize<'a>>(body: &str) -> (Option<String>, String) {
    let mut reader = serde_json::Deserializer::from_str(body);
    let error = serde_path_to_error::deserialize::<_, T>(&mut reader).err().unwrap();
    let path = error.path().to_string();
    let param = (path != ".").then_some(path);
    let position = format!(" at line {} column {}", error.inner().line(), error.inner().column());
    let text = error.inner().to_string();
    let what = text.strip_suffix(&position).unwrap();
    (param, error_text::plain(what) + &position)
}

fn assert_same_error<T: for<'a> Deserialize<'a>>(body: &str) {
    let (param, message) = whole_error::<T>(body);
    let read = RawObject::parse(body.as_bytes()).and_then(|object| object.read::<T>());
    let error = read.err().unwrap();
    assert_eq!(error.param, param, "{body}");
    assert!(error.message.ends_with(&format!(": {message}")), "{body}: {}", error.message);
}

#[test]
fn an_error_is_that_of_a_parse_of_the_whole_body() {
    for body in [
        r#"{"model":"m","messages":[{}, 7]}"#,
        "{\"model\":\"m\",\n \"messages\" : [{},\n  7], \"n\":1}",
        "\n\n  {\"messages\":7,\"model\":\"m\"}\n",
        r#"{"messages":[],"tools":{"a":1}}"#,
        r#"{"messages":[],"chat_template_kwargs":[1]}"#,
        r#"{"messages":[],"stream_options":{"include_usage":"yes"}}"#,
        r#"{"messages":[],"stream":1}"#,
        r#"{"messages":[],"top_logprobs":-1}"#,
        r#"{"messages":[],"top_logprobs":1.5 }"#,
        r#"{"messages":[{"role":"\ud800"}]}"#,
        r#"{"messages":[1e999]}"#,
        r#"{"messages":[],"m\u006fdel":5}"#,
    ] {
        assert_same_error::<ChatRequest>(body);
    }
    assert_same_error::<SamplingFields>(r#"{"temperature":"hot"}"#);
    assert_same_error::<ConstraintFields>(r#"{"response_format":{"json_schema":{}}}"#);
    assert_same_error::<ConstraintFields>(r#"{"guided_choice":["a",2]}"#);
    assert_same_error::<CompletionRequest>(r#"{"prompt":"x","suffix":["y"]}"#);
}

#[test]
fn a_field_that_is_missing_or_occurs_twice_is_named() {
    let error = |body: &str| {
        let object = RawObject::parse(body.as_bytes()).unwrap();
        let error = object.read::<ChatRequest>().unwrap_err();
        (error.param.unwrap_or_default(), error.message)
    };
    let (param, message) = error(r#"{"model":"m"}"#);
    assert_eq!((&*param, &*message), ("messages", "the field 'messages' is missing"));
    let (param, message) = error("{\"stream\":true,\n\"messages\":[], \"stream\" : false}");
    let said = "invalid request at line 2 column 24: the field 'stream' occurs twice";
    assert_eq!((&*param, &*message), ("stream", said));
}

#[test]
fn malformed_json_is_refused() {
    for body in [
        "",
        "  ",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":1,}",
        "{\"a\":[1,]}",
        "{\"a\":{\"b\" 1}}",
        "{a:1}",
        "{\"a\":tru}",
        "{\"a\":01}",
        "{\"a\":\"\n\"}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"",
    ] {
        let error = RawObject::parse(body.as_bytes()).unwrap_err();
        assert_eq!(error.param, None);
        assert!(error.message.contains("is not valid JSON for this endpoint: "), "{body}");
    }
    let message = |body: &[u8]| RawObject::parse(body).unwrap_err().message;
    assert!(message(b"{} {}").contains("goes on after its JSON value"));
    assert!(message(b"[]").contains("is a JSON list; expected an object"));
    assert!(message(b"7").contains("expected an object"));
    assert!(message(b"{\"a\":\"\xff\"}").contains("invalid unicode code point"));
}

#[test]
fn an_error_of_an_untagged_value_is_at_its_end() {
    let body = br#"{"input": {"a":1} , "model":"m"}"#;
    let error = RawObject::parse(body).unwrap().read::<EmbeddingsRequest>().unwrap_err();
    assert_eq!(error.param.as_deref(), Some("input"));
    assert!(error.message.ends_with(" at line 1 column 17"), "{}", error.message);
}

#[test]
fn a_view_does_not_look_at_the_fields_of_others() {
    let body = br#"{"messages":7,"x":1e999,"n":2,"x":"\ud800"}"#;
    let object = RawObject::parse(body).unwrap();
    assert_eq!(object.read::<SamplingFields>().unwrap().n, Some(2));
    assert!(object.read::<ChatRequest>().is_err());
    assert_eq!(object.fields().filter(|field| field.name == "x").count(), 2);
}

#[test]
fn a_name_may_be_escaped() {
    let object = RawObject::parse(br#"{"temp\u0065rature":0.5}"#).unwrap();
    assert_eq!(object.fields().next().unwrap().name, "temperature");
    assert_eq!(object.read::<SamplingFields>().unwrap().temperature, Some(0.5));
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((any::<String>(), inner), 0..4)
                .prop_map(|fields| fields.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn the_fields_are_those_of_a_parse_of_the_whole_body(
        fields in proptest::collection::vec((any::<String>(), json()), 0..6), pretty: bool,
        cut in any::<prop::sample::Index>(),
    ) {
        let whole: Map<String, Value> = fields.into_iter().collect();
        let body = match pretty {
            true => serde_json::to_string_pretty(&whole).unwrap(),
            false => serde_json::to_string(&whole).unwrap(),
        };
        let object = RawObject::parse(body.as_bytes()).unwrap();
        let read = |field: &RawField<'_>| {
            (field.name.to_string(), object.read_field::<Value>(field).unwrap())
        };
        let read: Map<String, Value> = object.fields().map(read).collect();
        // A float may read as its neighbor, in both the same.
        prop_assert_eq!(read, serde_json::from_str::<Map<String, Value>>(&body).unwrap());
        let cut = &body.as_bytes()[..cut.index(body.len())];
        prop_assert!(RawObject::parse(cut).is_err());
    }
}
