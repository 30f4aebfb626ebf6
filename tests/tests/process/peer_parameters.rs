//! Parameters of llama-server and vLLM, at an agent's own port and through a gateway.

use fleet_tests::client::{Answer, Client};
use fleet_tests::process::{Agent, Fleet};
use fleet_tests::{chat, streamed};
use serde_json::{Value, json};

const QUESTION: &str = "What is the capital of France?";
const ANSWER: &str = "The capital of France is Paris.";

fn asking(fields: Value) -> Value {
    let mut request = chat(QUESTION);
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

async fn say(client: &Client, fields: Value) -> Answer {
    client.chat(&asking(fields)).await
}

/// The chunks of a streamed answer.
async fn chunks(client: &Client, fields: Value) -> Vec<Value> {
    let body = streamed(asking(fields)).to_string();
    let stream = client.post("/v1/chat/completions", body).await;
    let text = String::from_utf8(stream.body.to_vec()).unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let data = text.lines().filter_map(|line| line.strip_prefix("data: {"));
    data.map(|data| serde_json::from_str(&format!("{{{data}")).unwrap()).collect()
}

async fn tokens(client: &Client, text: &str) -> Vec<u64> {
    let body = json!({"content": text}).to_string();
    let tokens = client.post("/tokenize", body).await.json()["tokens"].clone();
    serde_json::from_value(tokens).unwrap()
}

#[tokio::test]
async fn answers_end_where_tokens_and_lengths_say() {
    let agent = Agent::start(&[]).await;
    let client = &agent.client;
    let all = tokens(client, ANSWER).await;
    let stopped = say(client, json!({"stop_token_ids": [all[3]]})).await;
    assert_eq!(stopped.json()["choices"][0]["finish_reason"], "stop");
    assert_eq!(stopped.json()["usage"]["completion_tokens"], 4);
    assert!(ANSWER.starts_with(&stopped.content()) && stopped.content() != ANSWER);
    for (fields, expected) in [(json!({"n_predict": 3.0}), 3), (json!({"max_tokens": 2.0}), 2)] {
        let cut = say(client, fields).await.json();
        assert_eq!(cut["usage"]["completion_tokens"], expected);
    }
    assert_eq!(say(client, json!({"max_tokens": -1})).await.content(), ANSWER);
    let long = say(client, json!({"min_tokens": 30, "max_tokens": 40})).await.json();
    assert!(long["usage"]["completion_tokens"].as_u64().unwrap() >= 30, "{long}");
    let known = json!({"min_tokens": 30, "guided_choice": ["yes", "no"]});
    assert!(["yes", "no"].contains(&&*say(client, known).await.content()), "a grammar ends it");
}

#[tokio::test]
async fn words_and_tokens_can_be_forbidden_and_repetitions_penalized() {
    let agent = Agent::start(&[]).await;
    let client = &agent.client;
    let without = say(client, json!({"bad_words": ["Paris"], "max_tokens": 20})).await;
    assert!(without.status == 200 && !without.content().contains("Paris"));
    let allowed = tokens(client, " is").await;
    let only = say(client, json!({"allowed_token_ids": allowed, "max_tokens": 4})).await;
    assert!(!only.content().is_empty() && only.content().chars().all(|c| " is".contains(c)));
    let unknown = say(client, json!({"allowed_token_ids": [4_000_000_000_u32]})).await;
    assert_eq!(unknown.json()["error"]["param"], "allowed_token_ids");
    let endless = json!({"ignore_eos": true, "max_tokens": 80});
    let plain = say(client, endless.clone()).await.content();
    let mut dry = endless;
    dry.as_object_mut().unwrap().extend([
        ("dry_multiplier".to_string(), json!(5)),
        ("dry_allowed_length".to_string(), json!(1)),
        ("dry_penalty_last_n".to_string(), json!(-1)),
    ]);
    assert_ne!(say(client, dry).await.content(), plain);
    let hot = json!({"temperature": 1, "seed": 3, "xtc_probability": 0.5, "top_n_sigma": 1.5});
    let first = say(client, hot.clone()).await.content();
    assert_eq!(say(client, hot).await.content(), first);
}

#[tokio::test]
async fn constraints_are_known_by_the_names_of_other_servers() {
    let agent = Agent::start(&[]).await;
    for fields in [
        json!({"regex": "(yes|no)"}),
        json!({"ebnf": "root ::= \"yes\" | \"no\""}),
        json!({"guided_grammar": "root ::= \"yes\" | \"no\""}),
        json!({"guided_grammar": "start: \"yes\" | \"no\""}),
        json!({"structured_outputs": {"choice": ["yes", "no"]}}),
        json!({"structured_outputs": {"grammar": "start: \"yes\" | \"no\""}}),
    ] {
        let answer = say(&agent.client, fields.clone()).await;
        assert!(["yes", "no"].contains(&&*answer.content()), "{fields}: {:?}", answer.body);
    }
    let object = say(&agent.client, json!({"guided_json_object": true})).await.content();
    assert!(object.starts_with('{'), "{object}");
}

#[tokio::test]
async fn responses_tell_their_speed_and_what_made_them() {
    let fleet = Fleet::start("").await;
    let node = fleet.join("a", &[]).await;
    for client in [&fleet.client, &node.client] {
        let plain = say(client, json!({})).await.json();
        assert_eq!(plain.get("timings"), None);
        let fingerprint = plain["system_fingerprint"].as_str().unwrap();
        assert!(fingerprint.len() == 13 && fingerprint.starts_with("fp_"), "{fingerprint}");
        let told = say(client, json!({"timings": true, "cache_prompt": false})).await.json();
        let (timings, usage) = (&told["timings"], &told["usage"]);
        assert_eq!(timings["prompt_n"], usage["prompt_tokens"], "{told}");
        assert_eq!(
            (&timings["cache_n"], &timings["predicted_n"]),
            (&json!(0), &usage["completion_tokens"])
        );
        assert!(timings["prompt_ms"].as_f64().unwrap() > 0.0, "{timings}");
        let chunks = chunks(client, json!({"timings": true})).await;
        let (with, ends) = (
            chunks.iter().filter(|c| c.get("timings").is_some()),
            chunks.iter().filter(|c| !c["choices"][0]["finish_reason"].is_null()),
        );
        assert!(with.eq(ends), "{chunks:?}");
        assert!(chunks.iter().all(|chunk| chunk["system_fingerprint"] == fingerprint));
    }
    every_chunk_tells_its_speed(&fleet.client).await;
    let listed = node.client.get("/v1/models").await.json()["data"][0].clone();
    assert_eq!(listed["max_model_len"], listed["meta"]["n_ctx"]);
    for size in ["n_vocab", "n_ctx_train", "n_embd", "n_params", "size"] {
        assert!(listed["meta"][size].as_u64().unwrap() > 0, "{size}: {listed}");
    }
    let of_fleet = fleet.client.get("/v1/models").await.json()["data"][0].clone();
    assert_eq!(of_fleet["max_model_len"], listed["max_model_len"]);
}

#[tokio::test]
async fn a_prompt_is_computed_again_if_its_cache_is_not_wanted() {
    let agent = Agent::start(&[]).await;
    let cached = async |fields: Value| {
        let usage = say(&agent.client, fields).await.json()["usage"].clone();
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(json!({})).await, 0);
    assert!(cached(json!({"cache_prompt": true})).await > 0);
    assert_eq!(cached(json!({"cache_prompt": false})).await, 0);
}

#[tokio::test]
async fn names_of_a_field_may_agree_and_errors_say_what_is_allowed() {
    let agent = Agent::start(&[]).await;
    let client = &agent.client;
    for fields in [
        json!({"repeat_penalty": null, "repetition_penalty": null}),
        json!({"repeat_penalty": 1.5, "repetition_penalty": 1.5}),
        json!({"max_tokens": null, "n_predict": 5, "n_probs": 0}),
        json!({"think": false, "enable_thinking": false, "reasoning_effort": "none"}),
        json!({"reasoning_budget": 0}),
    ] {
        assert_eq!(say(client, fields.clone()).await.status, 200, "{fields}");
    }
    for (fields, param, said) in [
        (
            json!({"repeat_penalty": 1.5, "repetition_penalty": 2}),
            "repetition_penalty",
            "two names",
        ),
        (json!({"temperature": "hot"}), "temperature", "expected a number, not the string"),
        (json!({"max_tokens": 1.5}), "max_tokens", "expected a whole number"),
        (json!({"stop": 5}), "stop", "expected a string or a list of strings"),
        (json!({"reasoning_budget": -5}), "reasoning_budget", "-1 for no limit, not -5"),
    ] {
        let refused = say(client, fields.clone()).await;
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["param"]), (400, &json!(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(said), "{error}");
    }
}

async fn every_chunk_tells_its_speed(client: &Client) {
    let chunks = chunks(client, json!({"timings_per_token": true})).await;
    let timings: Vec<&Value> = chunks[1..].iter().map(|chunk| &chunk["timings"]).collect();
    let counts = timings.iter().map(|t| t["predicted_n"].as_u64().unwrap());
    assert!(counts.clone().is_sorted() && counts.clone().min() < counts.max(), "{timings:?}");
    let prompts = timings.iter().map(|t| [&t["prompt_n"], &t["cache_n"], &t["prompt_ms"]]);
    let last = prompts.clone().next_back().unwrap();
    assert!(prompts.clone().all(|prompt| prompt == last), "{timings:?}");
}

/// The progress reports of a streamed answer, and its other payloads.
async fn progress(client: &Client, path: &str, request: &Value) -> (Vec<Value>, Vec<Value>) {
    let stream = client.post(path, streamed(request.clone()).to_string()).await;
    let text = String::from_utf8(stream.body.to_vec()).unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    let data = text.lines().filter_map(|line| line.strip_prefix("data: {"));
    let all = data.map(|data| serde_json::from_str::<Value>(&format!("{{{data}")).unwrap());
    let mut reports: Vec<Value> = all.collect();
    let is_report = |chunk: &Value| chunk.get("prompt_progress").is_some();
    let rest = reports.split_off(reports.iter().take_while(|chunk| is_report(chunk)).count());
    assert!(!rest.iter().any(is_report), "{text}");
    (reports, rest)
}

#[tokio::test]
async fn a_stream_tells_how_far_its_prefill_is() {
    let fleet = Fleet::start("").await;
    let node = fleet.join("a", &[]).await;
    let long = "one two three four five six seven ".repeat(20);
    let told = json!({"return_progress": true, "max_tokens": 4, "seed": 1});
    let with = |mut request: Value| {
        request.as_object_mut().unwrap().extend(told.as_object().unwrap().clone());
        request
    };
    let requests = [
        ("/v1/chat/completions", with(chat(&long)), json!({})),
        ("/v1/completions", with(json!({"model": "flotilla-demo", "prompt": long})), Value::Null),
    ];
    for client in [&node.client, &fleet.client] {
        for (path, request, delta) in &requests {
            let (reports, rest) = progress(client, path, request).await;
            let all: Vec<&Value> = reports.iter().map(|chunk| &chunk["prompt_progress"]).collect();
            let processed = all.iter().map(|report| report["processed"].as_u64().unwrap());
            assert!(processed.clone().is_sorted_by(|a, b| a < b), "{all:?}");
            let (first, last) = (all[0], all[all.len() - 1]);
            assert_eq!(first["processed"], first["cache"], "{all:?}");
            assert_eq!(last["processed"], last["total"], "{all:?}");
            assert!(all.iter().all(|report| report["total"] == first["total"]));
            assert!(last["time_ms"].as_u64() >= first["time_ms"].as_u64());
            assert_eq!(reports[0]["choices"][0]["delta"], *delta);
            assert!(rest.len() > 1, "the response follows");
            // Without a stream there is nothing to tell.
            let whole = client.post(path, request.to_string()).await.json();
            assert_eq!(
                (whole.get("prompt_progress"), &whole["usage"]["prompt_tokens"]),
                (None, &last["total"])
            );
        }
    }
}
