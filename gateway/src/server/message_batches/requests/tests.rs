//! Bodies of message batches, also hostile ones.

use serde_json::{Value, json};

use super::*;

const RULES: Rules = Rules { requests_max: 3, request_bytes_max: 200 };

/// The lines of a body.
fn lines(body: &str, rules: Rules) -> Result<Vec<Value>, Error> {
    let mut text = Vec::new();
    let count = read(body.as_bytes(), &rules, "/v1/messages", |part| {
        text.extend(part);
        true
    })?;
    assert_eq!(text.last(), Some(&b'\n'));
    let lines = std::str::from_utf8(&text).unwrap().lines();
    let lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), count);
    Ok(lines)
}

/// Code and message of what is refused.
fn refused(body: &str) -> (&'static str, String) {
    let error = lines(body, RULES).unwrap_err();
    assert_eq!(error.status(), 400);
    (error.code(), error.to_string())
}

fn request(id: &str) -> String {
    format!(r#"{{"custom_id":"{id}","params":{{"model":"m"}}}}"#)
}

fn body(requests: &[String]) -> String {
    format!(r#"{{"requests":[{}]}}"#, requests.join(","))
}

#[test]
fn each_request_becomes_a_line() {
    let odd = "{\"x\": {},\n \"params\": {\r\n\t\"model\" : \"m\\n\", \"a\": [1,\n2]},\n \
               \"custom_id\":\"B_-9\"}";
    let body =
        format!("  {{\"other\": [1], \"requests\" :[ {} ,\n{odd}], \"more\": 1 }}\n", request("a"));
    let of = |id: &str, body: Value| json!({"custom_id": id, "method": "POST", "url": "/v1/messages", "body": body});
    let expected =
        [of("a", json!({"model": "m"})), of("B_-9", json!({"model": "m\n", "a": [1, 2]}))];
    assert_eq!(lines(&body, RULES).unwrap(), expected);
}

#[test]
fn many_requests_are_handed_on_in_parts() {
    let rules = Rules { requests_max: 10_000, ..RULES };
    let body = body(&(0..10_000).map(|i| request(&format!("{i}"))).collect::<Vec<_>>());
    let (mut parts, mut bytes) = (0, 0);
    let count = read(body.as_bytes(), &rules, "/v1/messages", |part| {
        assert!(part.len() < PART_BYTES + 400, "{}", part.len());
        (parts, bytes) = (parts + 1, bytes + part.len());
        true
    });
    assert_eq!(count, Ok(10_000));
    assert!(parts > 2 && bytes > 2 * PART_BYTES, "{parts}");
    let mut parts = 0;
    let stopped = read(body.as_bytes(), &rules, "/v1/messages", |_| {
        parts += 1;
        false
    });
    assert_eq!((stopped, parts), (Err(Error::StoreUnavailable), 1), "nobody takes the rest");
}

#[test]
fn what_is_no_batch_is_refused_with_a_reason() {
    for (body, code, said) in [
        ("", "invalid_json", "the request body: EOF"),
        ("nonsense", "invalid_json", "the request body: expected"),
        ("[]", "invalid_json", "expected an object with a list of requests"),
        ("null", "invalid_json", "expected an object with a list of requests"),
        ("{}", "invalid_value", "requests: it is missing"),
        (r#"{"requests":[]}"#, "invalid_value", "requests: expected at least one"),
        (r#"{"requests":{}}"#, "invalid_json", "expected a list of requests"),
        (r#"{"requests":"a"}"#, "invalid_json", "expected a list of requests"),
        (r#"{"requests":null}"#, "invalid_json", "expected a list of requests"),
        (r#"{"requests":[5]}"#, "invalid_value", "requests.0: invalid type: integer `5`"),
        (
            r#"{"requests":[{"params":{}}]}"#,
            "invalid_value",
            "requests.0: missing field `custom_id`",
        ),
        (
            r#"{"requests":[{"custom_id":"a"}]}"#,
            "invalid_value",
            "requests.0: missing field `params`",
        ),
        (
            r#"{"requests":[{"custom_id":1,"params":{}}]}"#,
            "invalid_value",
            "requests.0: invalid type",
        ),
        (
            r#"{"requests":[{"custom_id":"a","params":{"x":}}]}"#,
            "invalid_json",
            "requests.0: expected",
        ),
        (r#"{"requests":[{"custom_id":"a","params":{"#, "invalid_json", "requests.0: EOF"),
        ("{\"requests\":[\u{0}]}", "invalid_json", "requests.0"),
    ] {
        let (found, message) = refused(body);
        assert_eq!(found, code, "{body}: {message}");
        assert!(message.contains(said), "{body}: {message}");
    }
    let whole = body(&[request("a")]);
    for after in ["x", "{}", ",", "\u{0}"] {
        assert!(refused(&format!("{whole}{after}")).1.contains("trailing characters"));
    }
    let twice = r#"{"requests":[{"custom_id":"a","params":{}}],"requests":[]}"#;
    assert!(refused(twice).1.contains("duplicate field `requests`"));
    assert_eq!(lines("{\"requests\":[\"\u{fffd}\"]}", RULES).unwrap_err().status(), 400);
    let bytes = b"{\"requests\":[{\"custom_id\":\"a\",\"params\":{\"a\":\"\xff\"}}]}";
    assert!(read(&bytes[..], &RULES, "/v1/messages", |_| true).is_err(), "no UTF-8");
}

#[test]
fn requests_are_refused_by_their_index_and_custom_id() {
    let with =
        |params: &str| body(&[request("a"), format!(r#"{{"custom_id":"b","params":{params}}}"#)]);
    for (body, said) in [
        (body(&[request("")]), "requests.0.custom_id: expected 1 to 64 letters"),
        (body(&[request(&"x".repeat(65))]), "requests.0.custom_id: expected 1 to 64 letters"),
        (body(&[request("a b")]), "requests.0.custom_id: expected"),
        (body(&[request("a\\n")]), "requests.0.custom_id: expected"),
        (body(&[request("ä")]), "requests.0.custom_id: expected"),
        (
            body(&[request("a"), request("b"), request("a")]),
            "requests.2.custom_id: 'a' is the custom_id of an earlier request",
        ),
        (body(&["a", "b", "c", "d"].map(request)), "requests: there are more than 3 requests"),
        (with("[]"), "requests.1.params: expected an object (custom_id 'b')"),
        (with("null"), "requests.1.params: expected an object"),
        (with(r#""{}""#), "requests.1.params: expected an object"),
        (with(r#"{"stream":true}"#), "requests.1.params.stream: batches do not stream"),
        (with(r#"{"background":true}"#), "requests.1.params.background"),
        (
            with(&format!(r#"{{"x":"{}"}}"#, "x".repeat(200))),
            "requests.1.params: they are longer than 200 bytes (custom_id 'b')",
        ),
    ] {
        let (code, message) = refused(&body);
        assert_eq!(code, "invalid_value", "{body}");
        assert!(message.contains(said), "{body}: {message}");
    }
    let models =
        (0..=MODELS_MAX).map(|i| format!(r#"{{"custom_id":"{i}","params":{{"model":"m{i}"}}}}"#));
    let body = body(&models.collect::<Vec<_>>());
    let error = lines(&body, Rules { requests_max: 1000, ..RULES }).unwrap_err().to_string();
    assert!(error.contains("requests.100.params.model: the batch names more than 100"), "{error}");
    assert!(lines(&with(r#"{"stream":false}"#), RULES).is_ok());
}

#[test]
fn nothing_long_is_kept_in_memory() {
    let long = "x".repeat(1 << 20);
    for (body, said) in [
        (format!(r#"{{"requests":[{}"#, request(&long)), "requests.0: longer than 200 bytes"),
        (
            body(&[request("a"), format!(r#"{{"custom_id":"b","params":{{"x":"{long}"}}}}"#)]),
            "requests.1: longer than 200 bytes",
        ),
        (format!(r#"{{"{long}":1}}"#), "the request body: longer than"),
        (format!(r#"{{"x":"{long}"}}"#), "the request body: longer than"),
        (format!("{}{}", " ".repeat(1 << 20), body(&[request("a")])), "the request body: longer"),
        (format!("{}{}", body(&[request("a")]), " ".repeat(1 << 20)), "the request body: longer"),
    ] {
        let (_, message) = refused(&body);
        assert!(message.contains(said), "{}: {message}", &body[..40]);
    }
}

#[test]
fn deep_nesting_does_no_harm() {
    let rules = Rules { request_bytes_max: 4 << 20, ..RULES };
    let deep = |open: &str, close: &str| open.repeat(500_000) + "1" + &close.repeat(500_000);
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let deep = deep(open, close);
        let params = format!(r#"{{"custom_id":"a","params":{{"x":{deep}}}}}"#);
        // The batch refuses it when it runs the request.
        let count = read(body(&[params]).as_bytes(), &rules, "/v1/messages", |_| true);
        assert_eq!(count, Ok(1));
        let other = format!(r#"{{"x":{deep},"requests":[{}]}}"#, request("a"));
        assert_eq!(read(other.as_bytes(), &rules, "/v1/messages", |_| true), Ok(1));
        assert!(lines(&deep, rules).is_err());
        assert!(lines(&body(&[deep]), rules).is_err());
    }
    assert!(lines(&"{\"requests\":[".repeat(100_000), rules).is_err());
}

#[test]
fn a_source_that_fails_is_no_mistake_of_the_client() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
    assert_eq!(read(Broken, &RULES, "/v1/messages", |_| true), Err(Error::StoreUnavailable));
}
