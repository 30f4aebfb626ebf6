//! Log-probabilities of a prompt's own tokens, as evaluation harnesses ask for them, and many
//! prompts in one request.

use fleet_tests::client::Client;
use fleet_tests::process::Fleet;
use serde_json::{Value, json};

const TEXT: &str = "/v1/completions";

fn prompt(word: &str) -> String {
    format!("<|im_start|>user\nSpell {word}.<|im_end|>\n<|im_start|>assistant\n")
}

fn with(fields: Value) -> String {
    let mut body = json!({"model": "flotilla-demo", "temperature": 0});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body.to_string()
}

async fn complete(client: &Client, fields: Value) -> Value {
    let answer = client.post(TEXT, with(fields)).await;
    assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
    answer.json()
}

async fn tokens(client: &Client, text: &str) -> Vec<u64> {
    let body = json!({"content": text}).to_string();
    let tokens = client.post("/tokenize", body).await.json()["tokens"].clone();
    serde_json::from_value(tokens).unwrap()
}

fn numbers(list: &Value) -> Vec<Option<f64>> {
    list.as_array().unwrap().iter().map(Value::as_f64).collect()
}

/// How lm-evaluation-harness reads the score of a continuation: `context` tokens precede it, and
/// one token was generated after it.
fn score(choice: &Value, context: usize) -> (f64, bool) {
    let logprobs = &choice["logprobs"];
    let of = numbers(&logprobs["token_logprobs"]);
    let of = &of[context..of.len() - 1];
    let top = &logprobs["top_logprobs"].as_array().unwrap()[context..];
    let is_greedy = of.iter().zip(top).all(|(logprob, top)| {
        let all = top.as_object().unwrap().values().filter_map(Value::as_f64);
        all.reduce(f64::max) == *logprob
    });
    (of.iter().map(|logprob| logprob.unwrap()).sum(), is_greedy)
}

#[tokio::test]
async fn a_harness_scores_continuations_of_prompts_as_tokens() {
    let fleet = Fleet::start("").await;
    let node = fleet.join("a", &[]).await;
    let context = tokens(&node.client, &prompt("cat")).await;
    let whole = async |text: &str| [&context[..], &tokens(&node.client, text).await].concat();
    let prompts = [whole("c-a-t").await, whole("d-o-g").await, whole("c-a-r").await];
    for client in [&node.client, &fleet.client] {
        let asked = json!({"prompt": prompts, "echo": true, "logprobs": 1, "max_tokens": 1});
        let said = complete(client, asked).await;
        let scores: Vec<(f64, bool)> = said["choices"]
            .as_array()
            .unwrap()
            .iter()
            .map(|choice| score(choice, context.len()))
            .collect();
        assert!(scores[0].1 && !scores[1].1 && !scores[2].1, "{scores:?}");
        assert!(scores[0].0 > scores[2].0 && scores[2].0 > scores[1].0, "{scores:?}");
        assert_eq!(said["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    }
}

#[tokio::test]
async fn an_echo_with_logprobs_tells_every_token_of_the_prompt() {
    let fleet = Fleet::start("").await;
    let node = fleet.join("a", &[]).await;
    let text = format!("{}c-a-t", prompt("cat"));
    // Once without, so that the prompt is cached.
    complete(&node.client, json!({"prompt": text, "max_tokens": 1})).await;
    let generated = complete(&node.client, json!({"prompt": prompt("cat"), "logprobs": 1})).await;
    let generated = numbers(&generated["choices"][0]["logprobs"]["token_logprobs"]);
    for client in [&node.client, &fleet.client] {
        let asked = json!({"prompt": text, "echo": true, "logprobs": 3, "max_tokens": 0});
        let said = complete(client, asked.clone()).await;
        let choice = &said["choices"][0];
        assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(text), &json!("length")));
        assert_eq!(said["usage"]["completion_tokens"], 0);
        let logprobs = &choice["logprobs"];
        let lists = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];
        let counts = lists.map(|list| logprobs[list].as_array().unwrap().len() as u64);
        assert_eq!(counts, [said["usage"]["prompt_tokens"].as_u64().unwrap(); 4]);
        let of = numbers(&logprobs["token_logprobs"]);
        assert!(of[0].is_none() && logprobs["top_logprobs"][0].is_null());
        let pieces: Vec<String> = serde_json::from_value(logprobs["tokens"].clone()).unwrap();
        assert!(pieces.concat().ends_with(&text), "{pieces:?}");
        for (piece, offset) in pieces.iter().zip(numbers(&logprobs["text_offset"])).skip(1) {
            let rest: String = text.chars().skip(offset.unwrap() as usize).collect();
            assert!(rest.starts_with(piece), "{piece} at {offset:?}");
        }
        // As if the model had written it.
        let told = &of[of.len() - generated.len() + 1..];
        for (told, generated) in told.iter().zip(&generated) {
            assert!((told.unwrap() - generated.unwrap()).abs() < 0.05, "{of:?} {generated:?}");
        }
        parts_add_up(client, asked, choice).await;
    }
}

/// A stream of the same has the same text and logprobs.
async fn parts_add_up(client: &Client, mut asked: Value, whole: &Value) {
    asked["stream"] = json!(true);
    let stream = client.post(TEXT, with(asked)).await;
    let stream = String::from_utf8(stream.body.to_vec()).unwrap();
    assert!(stream.ends_with("data: [DONE]\n\n"), "{stream}");
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: {"));
    let chunks = data.map(|data| serde_json::from_str::<Value>(&format!("{{{data}")).unwrap());
    let choices: Vec<Value> = chunks.map(|chunk| chunk["choices"][0].clone()).collect();
    let text: String = choices.iter().filter_map(|choice| choice["text"].as_str()).collect();
    assert_eq!(text, whole["text"]);
    for list in ["tokens", "text_offset"] {
        let lists = choices.iter().filter_map(|choice| choice["logprobs"][list].as_array());
        let joined: Vec<Value> = lists.flatten().cloned().collect();
        assert_eq!(json!(joined), whole["logprobs"][list]);
    }
}

#[tokio::test]
async fn many_prompts_are_answered_in_order_and_too_many_are_refused() {
    let fleet = Fleet::start("").await;
    let node = fleet.join("a", &[]).await;
    let words = ["cat", "dog", "sun"];
    let mut prompts: Vec<Value> =
        words.iter().cycle().take(127).map(|w| json!(prompt(w))).collect();
    prompts.push(json!(tokens(&node.client, &prompt("dog")).await));
    for client in [&node.client, &fleet.client] {
        let said = complete(client, json!({"prompt": prompts})).await;
        let choices = said["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 128);
        for (index, (choice, word)) in choices.iter().zip(words.iter().cycle()).enumerate() {
            let word = if index == 127 { "dog" } else { word };
            let spelled: Vec<String> = word.chars().map(String::from).collect();
            assert_eq!(
                (&choice["index"], &choice["text"]),
                (&json!(index), &json!(spelled.join("-")))
            );
        }
        let mut more = prompts.clone();
        more.push(json!("x"));
        let refused = client.post(TEXT, with(json!({"prompt": more}))).await;
        assert_eq!((refused.status, refused.error_code().as_str()), (400, "invalid_value"));
        let nothing = client.post(TEXT, with(json!({"prompt": "x", "max_tokens": 0}))).await;
        let nothing = nothing.json();
        assert_eq!(nothing["choices"][0]["text"], "");
        assert_eq!(nothing["usage"]["completion_tokens"], 0, "a prompt for the next request");
    }
}
