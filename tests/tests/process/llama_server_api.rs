//! llama-server's own API at a node and at a gateway, with the real engine.

use bytes::Bytes;
use fleet_tests::client::Client;
use fleet_tests::process::{Agent, Fleet, Folder};
use hyper::Method;
use serde_json::{Value, json};

use crate::split_model::with_numbers;

async fn post(client: &Client, path: &str, body: &Value) -> Value {
    let said = client.post(path, body.to_string()).await;
    assert_eq!(said.status, 200, "{path} {body}: {}", String::from_utf8_lossy(&said.body));
    said.json()
}

/// Prompt of the demo model's chat template.
fn prompt(text: &str) -> String {
    format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
}

#[tokio::test]
async fn completions_and_properties_are_the_same_at_a_node_and_at_a_gateway() {
    let fleet = Fleet::start("").await;
    let node = fleet.join("a", &[]).await;
    let body = json!({"prompt": prompt("Spell cat."), "temperature": 0, "n_predict": 20});
    let mut said = Vec::new();
    for client in [&node.client, &fleet.client] {
        let whole = post(client, "/completion", &body).await;
        assert_eq!((&whole["stop"], &whole["model"]), (&json!(true), &json!("flotilla-demo")));
        assert_eq!(whole["tokens_predicted"], whole["timings"]["predicted_n"]);
        assert!(whole["tokens_evaluated"].as_u64() > Some(5));
        let mut streamed = body.clone();
        streamed["stream"] = true.into();
        let answer = client.post("/completion", streamed.to_string()).await;
        let events: Vec<Value> = inference_protocol::sse::payloads(&answer.body)
            .map(|payload| serde_json::from_slice(payload).unwrap())
            .collect();
        let text: String = events.iter().map(|event| event["content"].as_str().unwrap()).collect();
        assert_eq!(whole["content"], text.as_str());
        let last = events.last().unwrap();
        for same in ["stop_type", "tokens_predicted", "tokens_evaluated", "generation_settings"] {
            assert_eq!(last[same], whole[same], "{same}");
        }
        let one = json!({"prompt": prompt("Spell cat."), "temperature": 0, "stop": ["-"]});
        let cut = post(client, "/completion", &one).await;
        assert_eq!((&cut["stop_type"], &cut["stopping_word"]), (&json!("word"), &json!("-")));
        let likely = json!({"prompt": "a", "n_predict": 1, "n_probs": 3});
        let likely = post(client, "/completion", &likely).await;
        let places = likely["completion_probabilities"].as_array().unwrap();
        assert_eq!(places[0]["top_logprobs"].as_array().unwrap().len(), 3, "{likely}");
        let props = client.get("/props").await.json();
        assert_eq!(
            (&props["total_slots"], &props["model_alias"]),
            (&json!(4), &json!("flotilla-demo"))
        );
        assert_eq!(props["default_generation_settings"]["n_ctx"], 1024);
        assert!(props["chat_template"].as_str().unwrap().contains("im_start"));
        assert_eq!(
            (&props["eos_token"], &props["is_sleeping"]),
            (&json!("<|im_end|>"), &json!(false))
        );
        said.push((text, props));
    }
    assert_eq!(said[0], said[1]);
    let changed = node.client.post("/props", r#"{"chat_template":"x"}"#).await;
    assert_eq!(changed.status, 400);
    let gap = json!({"input_prefix": "a", "input_suffix": "b"}).to_string();
    let refused = fleet.client.post("/infill", gap).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (400, "no_infill"));
    // It exists; the model makes none.
    let embedding = fleet.client.post("/embedding", r#"{"content":"a"}"#).await;
    assert_ne!(embedding.status, 404);
}

#[tokio::test]
async fn a_gap_has_its_marks_and_its_files_and_is_kept_for_the_next_request() {
    let folder = Folder::new();
    let marks = ["pre", "suf", "mid", "rep", "sep"]
        .map(|mark| format!("tokenizer.ggml.fim_{mark}_token_id"));
    let marks: Vec<(&str, u32)> = marks.iter().map(String::as_str).zip(40..).collect();
    let model = folder.write("flotilla-demo.gguf", with_numbers(&marks));
    let agent = Agent::start_with_model(&model, &[]).await;
    let client = &agent.client;
    let count = async |text: &str| {
        let body = json!({"content": text, "parse_special": false});
        post(client, "/tokenize", &body).await["count"].as_u64().unwrap()
    };
    let (before, after) = ("def total(prices):\n    ", "\n    return result\n");
    let gap = json!({"input_prefix": before, "input_suffix": after, "n_predict": 0});
    let warm = post(client, "/infill", &gap).await;
    let expected = count(before).await + count(after).await + 3;
    assert_eq!((&warm["content"], &warm["tokens_evaluated"]), (&json!(""), &json!(expected)));
    assert_eq!((&warm["tokens_predicted"], &warm["tokens_cached"]), (&json!(0), &json!(0)));
    let again = json!({"input_prefix": before, "input_suffix": after, "n_predict": 4});
    let again = post(client, "/infill", &again).await;
    assert!(again["tokens_cached"].as_u64() >= Some(expected - 2), "{again}");

    let file = json!({"filename": "a.py", "text": "import b\n"});
    let mut with_file = gap.clone();
    with_file["input_extra"] = json!([file]);
    let with_file = post(client, "/infill", &with_file).await;
    let mut tokens = expected + 3;
    for text in ["project\n", "a.py\n", "import b\n", "current\n"] {
        tokens += count(text).await;
    }
    assert_eq!(with_file["tokens_evaluated"], tokens);
}

#[tokio::test]
async fn a_line_ends_a_response_by_its_indentation_or_by_its_time() {
    let fleet = Fleet::start("").await;
    let _node = fleet.join("a", &[]).await;
    let client = &fleet.client;
    let grammar = r#"root ::= "if a:\n    b\n\n    c\nd\n""#;
    let body = json!({"prompt": "x", "grammar": grammar, "n_indent": 4});
    for (grammar, indent, content, stop_type) in [
        (grammar, 4, "if a:\n    b\n", "limit"),
        (grammar, 0, "if a:\n    b\n\n    c\nd\n", "eos"),
        (r#"root ::= "if a:\n    b\n   c""#, 4, "if a:\n    b\n", "limit"),
        (r#"root ::= "if a:\n    b\n    c""#, 4, "if a:\n    b\n    c", "eos"),
    ] {
        let mut body = body.clone();
        (body["grammar"], body["n_indent"]) = (grammar.into(), indent.into());
        let said = post(client, "/completion", &body).await;
        assert_eq!((&said["content"], &said["stop_type"]), (&json!(content), &json!(stop_type)));
    }
    let lines = "ab\\n".repeat(200);
    let body =
        json!({"prompt": "x", "grammar": format!("root ::= \"{lines}\""), "t_max_predict_ms": 1});
    let said = post(client, "/completion", &body).await;
    let text = said["content"].as_str().unwrap();
    assert!(text.len() < 600 && text.ends_with("ab\n"), "{text}");
    assert_eq!(said["stop_type"], "limit");
}

#[tokio::test]
async fn a_gateway_says_of_texts_and_tokens_what_its_node_says() {
    let fleet = Fleet::start("").await;
    let node = fleet.join("a", &[]).await;
    let messages = json!([{"role": "user", "content": "Grüß dich, 東京!"}]);
    let asked = [
        ("/tokenize", json!({"content": "Grüß dich, 東京!", "add_special": true})),
        ("/tokenize", json!({"content": "Paris", "with_pieces": true})),
        ("/detokenize", json!({"tokens": [300, 301, 302]})),
        ("/apply-template", json!({"messages": messages})),
        (
            "/v1/chat/completions/input_tokens",
            json!({"model": "flotilla-demo", "messages": messages}),
        ),
        ("/v1/responses/input_tokens", json!({"model": "flotilla-demo", "input": "Grüß dich!"})),
    ];
    for (path, body) in asked {
        let (there, here) =
            (post(&fleet.client, path, &body).await, post(&node.client, path, &body).await);
        assert_eq!(there, here, "{path} {body}");
    }
    let claude = fleet.client.with_header("anthropic-version", "2023-06-01");
    let counted = json!({"model": "flotilla-demo", "messages": messages});
    let counted = post(&claude, "/v1/messages/count_tokens", &counted).await;
    let asked = json!({"messages": messages});
    let tokens = post(&node.client, "/v1/chat/completions/input_tokens", &asked).await;
    assert_eq!(counted["input_tokens"], tokens["input_tokens"]);
    for client in [&fleet.client, &node.client] {
        let head = client.try_send(Method::HEAD, "/", Bytes::new()).await.unwrap();
        assert_eq!((head.status, head.body.len()), (200, 0), "Claude Code asks this first");
    }
}

#[tokio::test]
async fn the_input_of_a_conversation_is_listed_page_by_page() {
    let fleet = Fleet::start("").await;
    let _node = fleet.join("a", &[]).await;
    let mut previous = Value::Null;
    for turn in 0..4 {
        let input = format!("What is {turn}?");
        let asked = json!({"model": "flotilla-demo", "input": input, "max_output_tokens": 16,
            "previous_response_id": previous});
        previous = post(&fleet.client, "/v1/responses", &asked).await["id"].clone();
    }
    let path = format!("/v1/responses/{}/input_items", previous.as_str().unwrap());
    let (mut found, mut after) = (Vec::new(), String::new());
    loop {
        let page = fleet.client.get(&format!("{path}?limit=3&order=asc{after}")).await.json();
        let items = page["data"].as_array().unwrap();
        assert!((1..=3).contains(&items.len()), "{page}");
        found.extend(items.iter().map(|item| item["content"][0]["text"].clone()));
        if page["has_more"] == false {
            break;
        }
        after = format!("&after={}", page["last_id"].as_str().unwrap());
    }
    // Four questions, and the answers to three of them.
    assert_eq!(found.len(), 7, "{found:?}");
    let questions: Vec<_> = found.iter().step_by(2).collect();
    assert_eq!(questions, ["What is 0?", "What is 1?", "What is 2?", "What is 3?"]);
}
