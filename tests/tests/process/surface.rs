//! What both servers answer besides chats, and the other ways to reach a node.

use fleet_tests::client::Client;
use fleet_tests::process::{Agent, Fleet, Folder, Server};
use fleet_tests::{chat, demo_model, eventually, streamed};
use inference_protocol::sse::payloads;
use serde_json::{Value, json};

#[tokio::test]
async fn an_agent_alone_serves_the_whole_surface() {
    let agent = Agent::start(&["--model-name", "toy"]).await;
    let client = &agent.client;
    assert_eq!(client.get("/livez").await.status, 200);
    assert_eq!(client.get("/health").await.status, 200);
    let models = client.get("/v1/models").await.json();
    assert_eq!((&models["object"], &models["data"][0]["id"]), (&json!("list"), &json!("toy")));
    assert_eq!(client.get("/v1/models/toy").await.json()["object"], "model");
    assert_eq!(client.get("/v1/models/other").await.error_code(), "model_not_found");

    let mut request = chat("What is the capital of Japan?");
    request["model"] = json!("toy");
    let whole = client.chat(&request).await.json();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["choices"][0]["message"]["content"], "The capital of Japan is Tokyo.");
    let mut request = streamed(request);
    request["stream_options"] = json!({"include_usage": true});
    let said = client.stream(&request).await.finish().await;
    assert_eq!(said.text, "The capital of Japan is Tokyo.");
    // The same prompt again: only its last token had to be computed.
    let mut usage = whole["usage"].clone();
    assert_eq!(usage["prompt_tokens_details"], json!({"cached_tokens": 0}));
    let cached = usage["prompt_tokens"].as_u64().unwrap() - 1;
    usage["prompt_tokens_details"]["cached_tokens"] = json!(cached);
    assert_eq!(said.usage.unwrap(), usage);
    assert_eq!(agent.metric("node_cached_tokens_total").await, cached as f64);

    let prompt = "<|im_start|>user\nSpell cat.<|im_end|>\n<|im_start|>assistant\n";
    let text = json!({"model": "toy", "prompt": prompt, "temperature": 0, "stop": ["-t"]});
    let answer = client.post("/v1/completions", text.to_string()).await.json();
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(
        (&answer["choices"][0]["text"], &answer["choices"][0]["finish_reason"]),
        (&json!("c-a"), &json!("stop"))
    );
}

#[tokio::test]
async fn ollamas_clients_learn_what_a_model_is_and_can_do() {
    let fleet = Fleet::start("").await;
    let generates = fleet.join("a", &[]).await;
    let embeds = Agent::start(&["--pooling", "mean"]).await;
    let show = async |client: &Client| {
        let asked = json!({"model": "flotilla-demo"}).to_string();
        client.post("/api/show", asked).await.json()
    };
    let shown = show(&generates.client).await;
    let capabilities = shown["capabilities"].as_array().unwrap();
    assert_eq!(capabilities[..2], [json!("completion"), json!("tools")]);
    assert_eq!(show(&embeds.client).await["capabilities"], json!(["embedding"]));
    for client in [&fleet.client, &generates.client] {
        assert_eq!(show(client).await, shown, "the gateway says what its node says");
        let listed = client.get("/api/tags").await.json()["models"][0].clone();
        assert_eq!(listed["digest"].as_str().unwrap().len(), 64);
        assert_eq!(listed["details"]["format"], "gguf");
        assert!(listed["size"].as_u64().unwrap() > 100_000, "{listed}");
        assert_eq!(client.get("/api/ps").await.json()["models"][0]["size"], listed["size"]);
    }
}

#[tokio::test]
async fn an_agents_own_key_is_asked_for() {
    let folder = Folder::new();
    let key = folder.write("api.key", "the-key-of-this-agent\n");
    let agent = Agent::start(&["--key-file", key.to_str().unwrap()]).await;
    let question = chat("Hello!");
    assert_eq!(agent.client.chat(&question).await.error_code(), "invalid_api_key");
    let with_key = agent.client.with_key(Some("the-key-of-this-agent"));
    assert_eq!(with_key.chat(&question).await.status, 200);
}

#[tokio::test]
async fn a_gateway_without_nodes_says_so() {
    let fleet = Fleet::start("").await;
    assert_eq!(fleet.client.get("/livez").await.status, 200);
    assert_eq!(fleet.client.get("/readyz").await.status, 503);
    let answer = fleet.client.chat(&chat("Hello!")).await;
    assert_eq!((answer.status, answer.error_code().as_str()), (503, "no_node"));
    assert!(answer.header("retry-after").is_some());
    let models = fleet.client.get("/v1/models").await.json();
    assert_eq!(models["data"], json!([]));

    let _agent = fleet.join("a", &[]).await;
    eventually("the gateway to be ready", async || {
        (fleet.client.get("/readyz").await.status == 200).then_some(())
    })
    .await;
    assert_eq!(fleet.client.get("/v1/models").await.json()["data"][0]["id"], "flotilla-demo");
}

#[tokio::test]
async fn a_static_node_is_dialled_with_its_key() {
    let folder = Folder::new();
    let key = folder.write("node.key", "the-key-of-this-node");
    let agent = Agent::start(&["--name", "s", "--key-file", key.to_str().unwrap()]).await;
    let address = agent.client.address();
    let nodes = format!(
        "nodes: {{static: [{{url: \"http://{address}\", key_file: \"{}\"}}]}}\n",
        key.display()
    );
    let fleet = Fleet::start(&nodes).await;
    fleet.wait_for_slots("s").await;
    let stream = fleet.client.stream(&streamed(chat("Spell cat."))).await;
    assert_eq!(stream.node(), "s");
    assert_eq!(stream.finish().await.text, "c-a-t");
}

#[tokio::test]
async fn agents_and_clients_reach_a_gateway_over_tls() {
    let folder = Folder::new();
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_string()]).unwrap();
    let ca = folder.write("cert.pem", made.cert.pem());
    let key = folder.write("key.pem", made.signing_key.serialize_pem());
    let tls = format!("tls: {{cert_file: {}, key_file: {}}}\n", ca.display(), key.display());
    let fleet = Fleet::start(&tls).await;
    let join_key = fleet.folder().path().join("join.key");
    let model = demo_model();
    let _agent = Server::start(
        "flotilla-agent",
        &[
            "serve",
            "--model",
            model.to_str().unwrap(),
            "--threads",
            "1",
            "--name",
            "t",
            "--join",
            &fleet.url,
            "--join-key-file",
            join_key.to_str().unwrap(),
            "--join-ca-file",
            ca.to_str().unwrap(),
        ],
    );
    let curl = |path: &str, more: &[&str]| fleet.curl(&ca, path, more);
    eventually("the node to be ready", async || {
        curl("/readyz", &[]).starts_with("ready").then_some(())
    })
    .await;
    let body = streamed(chat("Spell cat.")).to_string();
    for version in ["--http1.1", "--http2"] {
        let said = curl("/v1/chat/completions", &[version, "-N", "-d", &body]);
        assert!(said.contains("data: [DONE]"), "{version}: {said}");
    }
    // Plain HTTP on this port gets no answer, and hurts nobody.
    let plain = Client::new(fleet.client.address(), None);
    assert!(plain.try_send(hyper::Method::GET, "/livez", Default::default()).await.is_err());
    assert!(curl("/livez", &[]).contains("ok"));
}

#[tokio::test]
async fn the_prefix_cache_can_be_turned_off() {
    let agent = Agent::start(&["--no-prefix-cache"]).await;
    for _ in 0..2 {
        let answer = agent.client.chat(&chat("What is the capital of Japan?")).await.json();
        assert_eq!(answer["usage"]["prompt_tokens_details"], json!({"cached_tokens": 0}));
    }
    assert_eq!(agent.metric("node_kv_cells_cached").await, 0.0);
}

#[tokio::test]
async fn a_prediction_changes_no_token_and_is_what_drafts_come_from() {
    let agent = Agent::start(&[]).await;
    let mut request = chat("Count from 1 to 25.");
    let known = agent.client.chat(&request).await.content();
    for wrong in [json!({"type": "text", "content": "1"}), json!({"type": "content"}), json!("1")] {
        request["prediction"] = wrong;
        let refused = agent.client.chat(&request).await;
        assert_eq!(refused.status, 400);
        assert!(refused.json()["error"]["param"].as_str().unwrap().starts_with("prediction"));
    }
    let parts =
        json!([{"type": "text", "text": &known[..9]}, {"type": "text", "text": &known[9..]}]);
    request["timings"] = json!(true);
    request["n"] = json!(2);
    for content in [json!("Something else."), json!("1, 2, ".repeat(9000)), json!(""), parts] {
        request["prediction"] = json!({"type": "content", "content": content});
        let said = agent.client.chat(&request).await;
        assert_eq!(said.content(), known, "{content}");
        let usage = &said.json()["usage"];
        assert!(usage["prompt_tokens"].as_u64().unwrap() < 100, "it is no part of the prompt");
    }
    // The machine has to be known, and not every time is it fast enough.
    eventually("drafts of most tokens", async || {
        let timings = agent.client.chat(&request).await.json()["timings"].clone();
        let count = |name: &str| timings[name].as_u64();
        (count("draft_n_accepted")? * 2 > count("predicted_n")?).then_some(())
    })
    .await;
}

#[tokio::test]
async fn speculation_changes_no_token_and_can_be_turned_off() {
    let (plain, drafting) = (Agent::start(&["--no-speculation"]).await, Agent::start(&[]).await);
    let question = "Count from 1 to 25.";
    let known = plain.client.chat(&chat(question)).await.content();
    // What it may answer stands in the prompt.
    let mut request = chat(question);
    request["messages"] = json!([
        {"role": "user", "content": question},
        {"role": "assistant", "content": known},
        {"role": "user", "content": question},
    ]);
    request["timings"] = json!(true);
    for temperature in [1.5, 0.7, 0.0] {
        request["temperature"] = json!(temperature);
        for seed in 0..4 {
            request["seed"] = json!(seed);
            let expected = plain.client.chat(&request).await.content();
            let said = drafting.client.chat(&request).await.content();
            assert_eq!(said, expected, "seed {seed} at {temperature}");
        }
    }
    let timings = eventually("drafts", async || {
        let timings = drafting.client.chat(&request).await.json()["timings"].clone();
        (timings["draft_n_accepted"].as_u64()? > 0).then_some(timings)
    })
    .await;
    assert!(timings["draft_n"].as_u64() >= timings["draft_n_accepted"].as_u64(), "{timings}");
    assert!(drafting.metric("node_accepted_tokens_total").await > 0.0);
    let timings = plain.client.chat(&request).await.json()["timings"].clone();
    assert_eq!((timings.get("draft_n"), timings.get("draft_n_accepted")), (None, None));
    assert_eq!(plain.metric("node_drafted_tokens_total").await, 0.0);
    for (agent, speculates) in [(&plain, false), (&drafting, true)] {
        assert_eq!(agent.client.get("/slots").await.json()[0]["speculative"], speculates);
        let props = agent.client.get("/props").await.json();
        assert_eq!(props["default_generation_settings"]["speculative"], speculates);
    }
}

/// A pool that holds little more than one request: some give their cells up and go on later.
#[tokio::test]
async fn too_few_cells_for_all_cost_time_and_no_answer() {
    let small = ["--slots", "4", "--context-tokens", "256", "--kv-cells", "288"];
    let agent = Agent::start(&small).await;
    let mut asked = tokio::task::JoinSet::new();
    for first in 1..=6 {
        let client = agent.client.clone();
        asked.spawn(async move {
            let request = chat(&format!("Count from {first} to {}.", first + 25));
            let expected: Vec<String> = (first..=first + 25).map(|n| n.to_string()).collect();
            let answer = client.chat(&request).await;
            assert_eq!(answer.status, 200);
            (answer.content(), expected.join(", "))
        });
    }
    for (said, expected) in asked.join_all().await {
        assert_eq!(said, expected);
    }
    assert!(agent.metric("node_parkings_total").await > 0.0, "nobody had to give way");
    assert_eq!(agent.metric("node_kv_cells_in_use").await, 0.0);
}

#[tokio::test]
async fn a_chat_that_asks_for_a_service_tier_is_told_the_one_that_it_got() {
    let fleet = Fleet::start("").await;
    let _a = fleet.join("a", &[]).await;
    let asked = |mut request: Value, tier: &str| {
        request["service_tier"] = tier.into();
        request
    };
    for (tier, told) in [("priority", "priority"), ("auto", "default"), ("flex", "flex")] {
        let answer = fleet.client.chat(&asked(chat("What colour is grass?"), tier)).await;
        assert_eq!(answer.json()["service_tier"], told);
    }
    let stream = asked(streamed(chat("What colour is grass?")), "priority");
    let stream = fleet.client.chat(&stream).await.body;
    let events: Vec<Value> =
        payloads(&stream).filter_map(|payload| serde_json::from_slice(payload).ok()).collect();
    assert!(events.len() > 2, "{events:?}");
    assert!(events.iter().all(|event| event["service_tier"] == "priority"), "{events:?}");
    let silent = fleet.client.chat(&chat("What colour is grass?")).await;
    assert_eq!(silent.json().get("service_tier"), None, "nobody asked");
}
