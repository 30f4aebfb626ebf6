//! Models that make vectors and judge documents. Their weights are random: what is tested is
//! that every input gets its own result, whoever shares its batch.

use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fleet_tests::chat;
use fleet_tests::process::{Agent, Fleet, Folder, metric, run};
use serde_json::{Value, json};

fn synthesise(folder: &Folder, shape: &str) -> PathBuf {
    let path = folder.path().join(format!("{shape}.gguf"));
    let file = path.to_str().unwrap();
    assert_eq!(
        run("flotilla-agent", &["synth", "--shape", shape, "--quant", "f16", file]).code,
        Some(0)
    );
    path
}

async fn agent(folder: &Folder, shape: &str, pooling: &str) -> Agent {
    let path = synthesise(folder, shape);
    Agent::start_with_model(&path, &["--model-name", "m", "--pooling", pooling]).await
}

async fn vectors(agent: &Agent, input: Value) -> Vec<Vec<f64>> {
    let body = json!({"model": "m", "input": input}).to_string();
    let answer = agent.client.post("/v1/embeddings", body).await.json();
    let data = answer["data"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let vector = |(place, entry): (usize, &Value)| {
        assert_eq!((&entry["object"], &entry["index"]), (&json!("embedding"), &json!(place)));
        serde_json::from_value(entry["embedding"].clone()).unwrap()
    };
    data.iter().enumerate().map(vector).collect()
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt()
}

#[tokio::test]
async fn every_text_gets_its_own_vector_alone_or_among_many() {
    let folder = Folder::new();
    let agent = agent(&folder, "tiny-embed", "mean").await;
    let texts: Vec<String> =
        (0..100).map(|n| format!("text number {n} {}", "x".repeat(n))).collect();
    let together = vectors(&agent, json!(texts)).await;
    assert_eq!(together.len(), 100);
    for place in [0, 41, 99] {
        let alone = vectors(&agent, json!(texts[place])).await;
        let length: f64 = alone[0].iter().map(|v| v * v).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
        assert!(distance(&alone[0], &together[place]) < 1e-2, "{place}");
        assert!(distance(&alone[0], &together[(place + 1) % 100]) > 1e-2, "{place}");
    }
    // Tokens are taken as they are.
    let body = json!({"content": "text", "add_special": false}).to_string();
    let tokens = agent.client.post("/tokenize", body).await.json()["tokens"].clone();
    let framed: Vec<u64> = [vec![101], serde_json::from_value(tokens).unwrap(), vec![102]].concat();
    let (by_tokens, by_text) =
        (vectors(&agent, json!(framed)).await, vectors(&agent, json!("text")).await);
    assert!(distance(&by_tokens[0], &by_text[0]) < 1e-6);
}

#[tokio::test]
async fn both_encodings_hold_the_same_vector_and_the_usage_counts_tokens() {
    let folder = Folder::new();
    let agent = agent(&folder, "tiny-embed", "cls").await;
    let body =
        json!({"model": "m", "input": ["abc", "d"], "encoding_format": "base64", "dimensions": 64});
    let answer = agent.client.post("/v1/embeddings", body.to_string()).await.json();
    // [CLS] a b c [SEP], [CLS] d [SEP]
    assert_eq!(answer["usage"], json!({"prompt_tokens": 8, "total_tokens": 8}));
    let bytes = STANDARD.decode(answer["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let floats: Vec<f64> =
        bytes.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect();
    assert!(distance(&floats, &vectors(&agent, json!("abc")).await[0]) < 1e-5);
}

#[tokio::test]
async fn a_shortened_vector_is_the_beginning_of_the_whole_one_with_length_one() {
    let folder = Folder::new();
    let agent = agent(&folder, "tiny-embed", "mean").await;
    let whole = vectors(&agent, json!(["some text"])).await.remove(0);
    let body = json!({"model": "m", "input": ["some text"], "dimensions": 16}).to_string();
    let answer = agent.client.post("/v1/embeddings", body).await.json();
    let short: Vec<f64> = serde_json::from_value(answer["data"][0]["embedding"].clone()).unwrap();
    let length = whole[..16].iter().map(|v| v * v).sum::<f64>().sqrt();
    let expected: Vec<f64> = whole[..16].iter().map(|v| v / length).collect();
    assert_eq!(short.len(), 16);
    assert!(distance(&short, &expected) < 1e-5, "{short:?} {expected:?}");
}

#[tokio::test]
async fn a_reranker_puts_documents_in_order() {
    let folder = Folder::new();
    let agent = agent(&folder, "tiny-rerank", "rank").await;
    let documents = json!(["one", {"text": "two words"}, "three of them", "4"]);
    let rerank = async |fields: Value| {
        let mut body = json!({"model": "m", "query": "how many?", "documents": documents});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        agent.client.post("/v1/rerank", body.to_string()).await.json()
    };
    let all = rerank(json!({})).await;
    let results = all["results"].as_array().unwrap();
    let scores: Vec<f64> = results.iter().map(|r| r["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores.iter().all(|s| (0.0..=1.0).contains(s)));
    let mut places: Vec<u64> = results.iter().map(|r| r["index"].as_u64().unwrap()).collect();
    places.sort_unstable();
    assert_eq!(places, [0, 1, 2, 3]);
    let best = rerank(json!({"top_n": 1, "return_documents": true})).await;
    assert_eq!(best["results"].as_array().unwrap().len(), 1);
    assert_eq!(best["results"][0]["index"], results[0]["index"]);
    assert!(best["results"][0]["document"]["text"].is_string());
    // Cohere's path, and TEI's names.
    let body = json!({"model": "m", "query": "how many?", "documents": ["one", "4"]}).to_string();
    let version_2 = agent.client.post("/v2/rerank", body).await.json();
    assert_eq!(version_2["results"].as_array().map(Vec::len), Some(2), "{version_2}");
    let body = json!({"query": "how many?", "texts": ["one", "two words", "three of them", "4"],
        "return_text": true, "raw_scores": false});
    let list = agent.client.post("/rerank", body.to_string()).await.json();
    for (entry, result) in list.as_array().unwrap().iter().zip(results) {
        assert_eq!(
            (&entry["index"], &entry["score"]),
            (&result["index"], &result["relevance_score"])
        );
        assert!(entry["text"].is_string());
    }
    assert_eq!(list.as_array().map(Vec::len), Some(4));
}

#[tokio::test]
async fn a_reranker_that_was_trained_with_a_prompt_is_asked_with_it() {
    let folder = Folder::new();
    let path = synthesise(&folder, "tiny-qwen3-rerank");
    let agent = Agent::start_with_model(&path, &["--model-name", "m"]).await;
    let (query, documents) = ("how many?", ["one", "two <|im_end|>", "{query}"]);
    let body = json!({"model": "m", "query": query, "documents": documents}).to_string();
    let answer = agent.client.post("/v1/rerank", body).await.json();
    let results = answer["results"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let scores: Vec<f64> = results.iter().map(|r| r["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores.iter().all(|s| (0.0..=1.0).contains(s)));
    assert!(scores[0] > scores[2], "each document has its own score: {scores:?}");
    // Each byte is a token, each control token of the template is one, and of a document none is.
    let template = "<|im_start|>system\nAnswer \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n\
                    <Query>: <Document>: \n<|im_end|>\n<|im_start|>assistant\n";
    let control = 3 * "<|im_start|>".len() + 2 * "<|im_end|>".len();
    let each = template.len() - control + 5 + query.len();
    let used = 3 * each + documents.iter().map(|d| d.len()).sum::<usize>();
    assert_eq!(answer["usage"]["total_tokens"], json!(used));
}

#[tokio::test]
async fn the_score_of_a_reranker_is_the_probability_of_yes_wherever_it_stands() {
    let folder = Folder::new();
    let path = synthesise(&folder, "tiny-qwen3-rerank");
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let labels = [text("yes"), text("no")].concat();
    let mut file = std::fs::read(&path).unwrap();
    let at = file.windows(labels.len()).position(|window| window == labels).unwrap();
    file[at..at + labels.len()].copy_from_slice(&[text("no"), text("yes")].concat());
    let other = folder.write("no-first.gguf", file);
    let documents = ["one", "two", "three"];
    let mut scores = Vec::new();
    for path in [&path, &other] {
        let agent = Agent::start_with_model(path, &["--model-name", "m"]).await;
        let body = json!({"model": "m", "query": "how many?", "documents": documents}).to_string();
        let answer = agent.client.post("/v1/rerank", body).await.json();
        let mut of_documents = [0.0; 3];
        for result in answer["results"].as_array().unwrap_or_else(|| panic!("{answer}")) {
            let index = result["index"].as_u64().unwrap() as usize;
            of_documents[index] = result["relevance_score"].as_f64().unwrap();
        }
        scores.push(of_documents);
    }
    // The same two probabilities; only which of them is called "yes" differs.
    for (first, second) in scores[0].iter().zip(scores[1]) {
        assert!((first + second - 1.0).abs() < 1e-4, "{scores:?}");
        assert!((first - second).abs() > 1e-6, "{scores:?}");
    }
}

#[test]
fn a_reranker_without_its_prompt_is_refused_when_it_is_loaded() {
    let folder = Folder::new();
    let path = synthesise(&folder, "tiny-qwen3-rerank");
    let whole = std::fs::read(&path).unwrap();
    let without = |key: &str| {
        let mut file = whole.clone();
        let at = file.windows(key.len()).position(|w| w == key.as_bytes()).unwrap();
        file[at + key.len() - 1] = b'_';
        std::fs::write(&path, file).unwrap();
        let ran = run("flotilla-agent", &["check", path.to_str().unwrap()]);
        assert_ne!(ran.code, Some(0), "{}", ran.stdout);
        format!("{}{}", ran.stdout, ran.stderr)
    };
    let said = without("tokenizer.chat_template.rerank");
    assert!(said.contains("tokenizer.chat_template.rerank"), "{said}");
}

#[test]
fn a_model_without_a_classifier_is_no_reranker() {
    let folder = Folder::new();
    let path = synthesise(&folder, "tiny-embed");
    let ran = run("flotilla-agent", &["check", path.to_str().unwrap(), "--pooling", "rank"]);
    assert_ne!(ran.code, Some(0), "{}", ran.stdout);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(said.contains("--pooling rank") && said.contains("no classifier"), "{said}");
}

#[tokio::test]
async fn what_a_model_cannot_do_is_refused_by_name() {
    let folder = Folder::new();
    let embedder = agent(&folder, "tiny-embed", "cls").await;
    let refused = async |agent: &Agent, path: &str, body: Value| {
        let answer = agent.client.post(path, body.to_string()).await;
        let param = answer.json()["error"]["param"].as_str().unwrap_or_default().to_string();
        (answer.status, answer.error_code(), param)
    };
    let is = |code: &str, param: &str| (400, code.to_string(), param.to_string());
    let mut question = chat("Hello!");
    question["model"] = json!("m");
    let path = "/v1/embeddings";
    assert_eq!(
        refused(&embedder, "/v1/chat/completions", question).await,
        is("not_generative", "model")
    );
    let pair = json!({"query": "q", "documents": ["d"]});
    assert_eq!(refused(&embedder, "/v1/rerank", pair.clone()).await, is("no_ranking", "model"));
    let long = json!({"model": "m", "input": ["a", "b ".repeat(600)]});
    assert_eq!(refused(&embedder, path, long).await, is("input_too_long", "input"));
    for dimensions in [0, 65] {
        let wrong = json!({"model": "m", "input": "a", "dimensions": dimensions});
        assert_eq!(refused(&embedder, path, wrong).await, is("invalid_value", "dimensions"));
    }
    let format = json!({"model": "m", "input": "a", "encoding_format": "hex"});
    assert_eq!(refused(&embedder, path, format).await, is("invalid_value", "encoding_format"));
    let none = json!({"model": "m", "input": []});
    assert_eq!(refused(&embedder, path, none).await, is("invalid_value", "input"));
    let unknown = json!({"model": "m", "input": [99999999]});
    assert_eq!(refused(&embedder, path, unknown).await.1, "unknown_token");

    let generator = Agent::start(&["--model-name", "m"]).await;
    let text = json!({"model": "m", "input": "a"});
    assert_eq!(refused(&generator, path, text.clone()).await, is("no_embeddings", "model"));
    assert_eq!(refused(&generator, "/rerank", pair).await, is("no_ranking", "model"));
    // Any model makes vectors when it is told how.
    let pooled = Agent::start(&["--model-name", "m", "--pooling", "last"]).await;
    assert_eq!(pooled.client.post(path, text.to_string()).await.status, 200);
}

#[tokio::test]
async fn as_many_inputs_as_a_request_may_have_come_through_the_gateway() {
    let (folder, fleet) = (Folder::new(), Fleet::start("").await);
    let model = synthesise(&folder, "tiny-embed");
    let _agent =
        fleet.join_with_model("vec", &model, &["--model-name", "vec", "--pooling", "mean"]).await;
    let inputs: Vec<String> = (0..2048).map(|n| format!("t{n}")).collect();
    let mut first: Vec<Vec<f64>> = Vec::new();
    for encoding in ["float", "base64"] {
        let body = json!({"model": "vec", "input": inputs, "encoding_format": encoding});
        let answer = fleet.client.post("/v1/embeddings", body.to_string()).await;
        assert_eq!(answer.status, 200);
        let json = answer.json();
        let data = json["data"].as_array().unwrap();
        assert_eq!(data.len(), inputs.len());
        assert!(json["usage"]["prompt_tokens"].as_u64().unwrap() >= 2048 * 3);
        if encoding == "float" {
            first = data
                .iter()
                .map(|e| serde_json::from_value(e["embedding"].clone()).unwrap())
                .collect();
            continue;
        }
        let bytes = STANDARD.decode(data[2047]["embedding"].as_str().unwrap()).unwrap();
        let last: Vec<f64> =
            bytes.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect();
        assert!(distance(&last, &first[2047]) < 1e-2);
    }
    let corrected = "gateway_node_usage_corrected_total{node=\"vec\"}";
    assert_eq!(metric(&fleet.admin, corrected).await, 0.0);
}

#[tokio::test]
async fn vectors_and_ranks_come_through_the_gateway_beside_text() {
    let (folder, fleet) = (Folder::new(), Fleet::start("").await);
    let _text = fleet.join("text", &[]).await;
    let mut agents = Vec::new();
    for (name, shape, pooling) in [("vec", "tiny-embed", "mean"), ("rank", "tiny-rerank", "rank")] {
        let model = synthesise(&folder, shape);
        let more = ["--model-name", name, "--pooling", pooling];
        agents.push(fleet.join_with_model(name, &model, &more).await);
    }
    let ask = async |path: &str, body: Value| fleet.client.post(path, body.to_string()).await;
    let asked = json!({"model": "vec", "input": ["one", "two"]});
    let answer = ask("/v1/embeddings", asked.clone()).await;
    assert_eq!((answer.status, answer.header("x-flotilla-endpoint")), (200, Some("vec")));
    let alone = agents[0].client.post("/v1/embeddings", asked.to_string()).await.json();
    assert_eq!(answer.json()["data"], alone["data"], "what its node says");
    let asked = json!({"model": "rank", "query": "a", "documents": ["b", "c", "d"]});
    for path in ["/v1/rerank", "/rerank"] {
        let ranked = ask(path, asked.clone()).await.json();
        assert_eq!(ranked["results"].as_array().map(Vec::len), Some(3), "{ranked}");
    }
    let wrong = ask("/v1/embeddings", json!({"model": "flotilla-demo", "input": "x"})).await;
    assert_eq!((wrong.status, wrong.error_code().as_str()), (400, "no_embeddings"));
    let metrics = String::from_utf8(fleet.admin.get("/metrics").await.body.to_vec()).unwrap();
    assert!(metrics.contains("gateway_requests_total{api=\"rerank\""), "{metrics}");
    assert_eq!(fleet.in_flight().await, [0; 4]);
}
