//! A draft model changes when tokens are computed, and nothing else.

use fleet_tests::chat;
use fleet_tests::process::{Agent, Folder, run};
use futures_util::future::join_all;
use serde_json::{Value, json};

/// Writes a model, and returns its path.
fn synth(folder: &Folder, name: &str, options: &[&str]) -> String {
    let path = folder.path().join(name).to_str().unwrap().to_string();
    let ran = run("flotilla-agent", &[&["synth"], options, &[&path]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    path
}

/// A model, and one that agrees with it in a part of the tokens.
fn pair(folder: &Folder) -> (String, String) {
    (file(folder, "tiny", &[]), file(folder, "tiny", &["--layers", "1"]))
}

/// The file of a model with random weights, unless more is said.
pub(crate) fn file(folder: &Folder, shape: &str, more: &[&str]) -> String {
    let name = format!("{shape}{}.gguf", more.concat());
    synth(folder, &name, &[&["--shape", shape, "--quant", "q8_0"], more].concat())
}

pub(crate) fn request(temperature: f64, seed: u64) -> Value {
    let mut request = chat("Write something new.");
    let fields = json!({"temperature": temperature, "seed": seed, "max_tokens": 60, "logprobs": true, "model": "m"});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    if seed == 3 {
        let schema = json!({"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 6});
        let schema = json!({"name": "colors", "schema": schema});
        request["response_format"] = json!({"type": "json_schema", "json_schema": schema});
    }
    request
}

pub(crate) async fn choice(agent: &Agent, request: &Value) -> Value {
    let answer = agent.client.chat(request).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["choices"][0].take()
}

#[tokio::test]
async fn a_draft_model_changes_no_token_whatever_is_asked_beside_it() {
    let folder = Folder::new();
    let (tiny, draft) = pair(&folder);
    let (delta, recurrent) = (file(&folder, "tiny-delta", &[]), file(&folder, "tiny-hybrid", &[]));
    for (large, draft) in
        [(&tiny, &draft), (&tiny, &recurrent), (&delta, &draft), (&delta, &recurrent)]
    {
        compare(large, &["--draft-model", draft]).await;
    }
}

/// Compares the responses of a model that drafts with those of one that does not.
pub(crate) async fn compare(large: &str, drafts: &[&str]) {
    let name = ["--model-name", "m", "--slots", "8"];
    let start = |more: &[&str]| {
        let arguments: Vec<String> = name.iter().chain(more).map(|s| s.to_string()).collect();
        let large = large.to_string();
        async move {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            Agent::start_with_model(large.as_ref(), &arguments).await
        }
    };
    let plain = start(&["--no-speculation"]).await;
    let drafting = start(drafts).await;
    for temperature in [1.5, 0.5, 0.0] {
        let requests: Vec<Value> = (0..4).map(|seed| request(temperature, seed)).collect();
        let mut expected = Vec::new();
        for request in &requests {
            expected.push(choice(&plain, request).await);
        }
        for round in 0..3 {
            let alone = choice(&drafting, &requests[round]).await;
            assert_eq!(alone, expected[round], "{large} at {temperature}, alone");
            let said = join_all(requests.iter().map(|request| choice(&drafting, request))).await;
            assert_eq!(said, expected, "{large} at {temperature}, round {round}");
        }
    }
    assert!(drafting.metric("node_drafted_tokens_total").await > 0.0, "{large} {drafts:?}");
    assert!(drafting.metric("node_accepted_tokens_total").await > 0.0, "{large} {drafts:?}");
}

#[tokio::test]
async fn a_draft_model_drafts_what_no_text_tells() {
    let folder = Folder::new();
    let (large, draft) = pair(&folder);
    // So hot that nothing repeats itself.
    let mut hot = request(2.0, 1);
    for (name, value) in [("top_k", 0.0), ("top_p", 1.0), ("min_p", 0.0)] {
        hot[name] = json!(value);
    }
    for more in [&[][..], &["--draft-model", &draft]] {
        let named = [&["--model-name", "m"], more].concat();
        let agent = Agent::start_with_model(large.as_ref(), &named).await;
        choice(&agent, &hot).await;
        let drafted = agent.metric("node_drafted_tokens_total").await;
        assert_eq!(drafted > 0.0, !more.is_empty(), "{drafted} with {more:?}");
    }
}

#[test]
fn a_draft_model_that_cannot_be_used_is_refused_with_a_reason() {
    let folder = Folder::new();
    let (large, draft) = pair(&folder);
    let embeds = synth(&folder, "embeds.gguf", &["--shape", "tiny-embed"]);
    let other = fleet_tests::demo_model().to_str().unwrap().to_string();
    let missing = folder.path().join("missing.gguf").to_str().unwrap().to_string();
    let cut = folder.path().join("cut.gguf").to_str().unwrap().to_string();
    let whole = std::fs::read(&draft).unwrap();
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let cases = [
        (&large, &missing, "--draft-model: model file"),
        (&large, &cut, "--draft-model: "),
        (&large, &embeds, "--draft-model: the model does not generate text"),
        (&large, &other, "--draft-model: it has another vocabulary ("),
        (&embeds, &draft, "--draft-model: the model does not generate text; leave it out"),
    ];
    for (model, draft, why) in cases {
        let ran = run("flotilla-agent", &["check", model, "--draft-model", draft]);
        assert!(ran.stdout.contains(why), "{model}, {draft}: {ran:?}");
        assert_ne!(ran.code, Some(0));
    }
    let ran = run("flotilla-agent", &["check", &large, "--draft-model", &draft]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}
