//! Tests of [`super`].

use serde_json::{Value, json};

use super::*;

fn inputs(body: &Value) -> Option<Split> {
    Split::of(ListKind::Inputs, body.to_string().as_bytes())
}

fn bodies(kind: ListKind, body: &str) -> Vec<Value> {
    let split = Split::of(kind, body.as_bytes()).unwrap();
    let part = |part| serde_json::from_slice(&split.body(body.as_bytes(), part)).unwrap();
    (0..split.len()).map(part).collect()
}

#[test]
fn the_parts_together_are_the_list_and_keep_all_other_fields() {
    let texts: Vec<String> = (0..100).map(|n| format!("te\"xt,[{n}]é")).collect();
    let body = json!({"model": "m", "dimensions": 8, "input": texts, "user": {"a": ["b"]}});
    let parts = bodies(ListKind::Inputs, &serde_json::to_string_pretty(&body).unwrap());
    assert_eq!(parts.len(), 4);
    let mut joined = Vec::new();
    for mut part in parts {
        joined.extend(part["input"].as_array().unwrap().clone());
        part["input"] = body["input"].clone();
        assert_eq!(part, body);
    }
    assert_eq!(json!(joined), body["input"]);
}

#[test]
fn long_entries_make_short_parts() {
    let long = "x".repeat(PART_BYTES_MAX * 2 / 5);
    let body = json!({"input": [long, long, "a", "y".repeat(PART_BYTES_MAX), "b", "c"]});
    let split = inputs(&body).unwrap();
    let entries: Vec<Range<usize>> = (0..split.len()).map(|part| split.entries(part)).collect();
    assert_eq!(entries, [0..3, 3..4, 4..6]);
}

#[test]
fn what_is_short_or_what_a_node_refuses_is_not_split() {
    let texts = |count: usize| vec!["a"; count];
    let texts_and = |tokens: &[i32]| {
        let texts = texts(40).into_iter().map(Value::from);
        texts.chain(tokens.iter().map(|token| json!(token))).collect::<Vec<Value>>()
    };
    for body in [
        json!({"input": texts(32)}),
        json!({"input": texts(2049)}),
        json!({"input": vec![7; 900]}),
        json!({"input": texts_and(&[7])}),
        json!({"input": texts_and(&[-7; 9])}),
        json!({"input": "a".repeat(99_000)}),
        json!({"input": {"a": texts(99)}}),
        json!({"input": null}),
        json!({"documents": texts(99)}),
        json!([texts(99)]),
    ] {
        assert_eq!(inputs(&body), None, "{body}");
    }
    let twice = format!(r#"{{"input":{0},"input":{0}}}"#, json!(texts(99)));
    assert_eq!(Split::of(ListKind::Inputs, twice.as_bytes()), None);
    assert_eq!(Split::of(ListKind::Inputs, b"{\"input\":["), None);
    for top_n in [json!(0), json!(-1), json!("9")] {
        let body = json!({"documents": texts(99), "top_n": top_n}).to_string();
        assert_eq!(Split::of(ListKind::Documents, body.as_bytes()), None, "{body}");
    }
    assert!(inputs(&json!({"input": texts(2048)})).is_some());
    assert!(inputs(&json!({"input": vec![vec![1, 2]; 40]})).is_some());
}

#[test]
fn embeddings_are_joined_in_order_and_digit_for_digit() {
    let split = inputs(&json!({"input": vec!["a"; 33]})).unwrap();
    let entry = |index: usize| format!(r#"{{"index":{index},"embedding":[1e-3,{index}.50]}}"#);
    let all: Vec<String> = (0..32).rev().map(entry).collect();
    let first = format!(
        r#"{{"object":"list","data":[{}],"model":"m","usage":{{"prompt_tokens":64,"total_tokens":64}}}}"#,
        all.join(",")
    );
    let second = r#"{"data":[{"object":"embedding","index":0,"embedding":"AACA","x":1}]}"#;
    let joined = String::from_utf8(split.join(&[first.as_str(), second]).unwrap()).unwrap();
    let beginning = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1e-3,0.50]},{"object":"embedding","index":1,"#;
    let end = r#"{"object":"embedding","index":32,"embedding":"AACA"}],"model":"m","usage":{"prompt_tokens":64,"total_tokens":64}}"#;
    assert!(joined.starts_with(beginning) && joined.ends_with(end), "{joined}");
    for wrong in ["{}", "[]", "", r#"{"data":[]}"#, r#"{"data":[{"index":1,"embedding":[]}]}"#] {
        assert_eq!(split.join(&[first.as_str(), wrong]), Err(NotJoined), "{wrong}");
    }
    assert_eq!(split.join(&[first.as_str()]), Err(NotJoined));
}

#[test]
fn scores_are_ranked_over_all_parts() {
    let split = |top_n: Option<usize>| {
        let body = json!({"query": "q", "documents": vec!["a"; 34], "top_n": top_n}).to_string();
        Split::of(ListKind::Documents, body.as_bytes()).unwrap()
    };
    let score = |index: usize, score: f64| json!({"index": index, "relevance_score": score});
    let usage = |tokens: u64| json!({"prompt_tokens": tokens, "total_tokens": tokens});
    let first = json!({"results": [score(7, 0.9), score(3, 0.5)], "model": "m", "usage": usage(5)});
    let second = json!({"results": [{"index": 1, "relevance_score": 0.95, "document": {"text": "a"}},
        score(0, 0.5)], "usage": usage(2)});
    let responses = [first.to_string(), second.to_string()];
    let joined: Value = serde_json::from_slice(&split(Some(2)).join(&responses).unwrap()).unwrap();
    let best = json!([{"index": 33, "relevance_score": 0.95, "document": {"text": "a"}},
        score(7, 0.9)]);
    assert_eq!(joined, json!({"object": "list", "model": "m", "results": best, "usage": usage(7)}));
    assert_eq!(split(None).join(&responses), Err(NotJoined), "30 are missing");
    let unknown = json!({"results": [score(2, 0.9), score(1, 0.5)]}).to_string();
    assert_eq!(split(Some(2)).join(&[responses[0].clone(), unknown]), Err(NotJoined));
}
