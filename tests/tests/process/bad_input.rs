//! Wrong input gets a clear answer, and nobody else is disturbed.

use std::process::Command;

use fleet_tests::client::{Answer, Client};
use fleet_tests::process::{Fleet, Folder, JOIN_KEY, Ran, binary, run};
use fleet_tests::{chat, demo_model, root};
use serde_json::{Value, json};

/// Body -> status, code and param of both servers, and part of the message.
fn bad_bodies() -> Vec<(String, u16, &'static str, Value, &'static str)> {
    let user = json!([{"role": "user", "content": "Hello!"}]);
    let with = |key: &str, value: Value| {
        let mut body = json!({"model": "flotilla-demo", "messages": user});
        body[key] = value;
        body.to_string()
    };
    let long = "word ".repeat(3000);
    let long = json!([{"role": "user", "content": long}]);
    vec![
        ("{".into(), 400, "invalid_json", Value::Null, "JSON"),
        ("[1]".into(), 400, "invalid_json", Value::Null, "expected"),
        ("\u{0}\u{1}".into(), 400, "invalid_json", Value::Null, "JSON"),
        (with("temperature", json!("hot")), 400, "invalid_value", json!("temperature"), "string"),
        (with("messages", json!("Hi")), 400, "invalid_value", json!("messages"), "expected"),
        (with("max_tokens", json!(-2)), 400, "invalid_value", json!("max_tokens"), "-2"),
        (with("temperature", json!(9)), 400, "invalid_value", json!("temperature"), "2"),
        (with("n", json!(99)), 400, "invalid_value", json!("n"), "16"),
        (with("model", json!("gpt-9")), 404, "model_not_found", json!("model"), "gpt-9"),
        (with("messages", long), 400, "context_length_exceeded", json!("messages"), "1024"),
    ]
}

fn is_refused(answer: &Answer, status: u16, code: &str, param: &Value, part: &str) {
    let json = answer.json();
    assert_eq!((answer.status, answer.error_code().as_str()), (status, code), "{json}");
    assert_eq!(json["error"]["param"], *param, "{json}");
    let message = json["error"]["message"].as_str().unwrap();
    assert!(message.contains(part), "'{part}' is not in '{message}'");
}

async fn works(client: &Client) {
    let answer = client.chat(&chat("What is the capital of France?")).await;
    assert_eq!(answer.content(), "The capital of France is Paris.");
}

#[tokio::test]
async fn bad_requests_are_refused_alike_by_gateway_and_agent() {
    let fleet = Fleet::start("").await;
    let agent = fleet.join("a", &[]).await;
    for (body, status, code, param, part) in bad_bodies() {
        for client in [&fleet.client, &agent.client] {
            let answer = client.post("/v1/chat/completions", body.clone()).await;
            is_refused(&answer, status, code, &param, part);
            let streams = body.replacen('{', "{\"stream\": true, ", 1);
            if streams.len() > 20 {
                let answer = client.post("/v1/chat/completions", streams).await;
                is_refused(&answer, status, code, &param, part);
            }
        }
    }
    for client in [&fleet.client, &agent.client] {
        let huge = format!("{{\"model\": \"{}\"}}", "x".repeat(9 * 1024 * 1024));
        let answer = client.post("/v1/chat/completions", huge).await;
        assert_eq!((answer.status, answer.error_code().as_str()), (413, "request_too_large"));
        assert_eq!(client.get("/v1/nothing").await.error_code(), "unknown_url");
        let wrong_method = client.get("/v1/chat/completions").await;
        assert_eq!((wrong_method.status, wrong_method.header("allow")), (405, Some("POST")));
        works(client).await;
    }
    let overflow = json!({"model": "flotilla-demo", "prompt": "word ".repeat(3000)});
    let answer = fleet.client.post("/v1/completions", overflow.to_string()).await;
    let message = answer.json()["error"]["message"].as_str().unwrap().to_string();
    let numbers: Vec<u64> = message
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|n| n.parse().ok())
        .filter(|n| *n > 1000)
        .collect();
    assert!(numbers.contains(&1024) && numbers.iter().any(|n| *n > 2999), "{message}");
    assert_eq!(agent.metric("node_engine_restarts_total").await, 0.0);
}

#[tokio::test]
async fn a_missing_or_wrong_key_is_refused() {
    let fleet = Fleet::start("").await;
    let _agent = fleet.join("a", &[]).await;
    let request = chat("Hello!");
    let missing = fleet.client.with_key(None).chat(&request).await;
    assert_eq!((missing.status, missing.error_code().as_str()), (401, "invalid_api_key"));
    assert_eq!(missing.header("www-authenticate"), Some("Bearer"));
    let wrong = fleet.client.with_key(Some("sk-flotilla-0")).chat(&request).await;
    assert_eq!((wrong.status, wrong.error_code().as_str()), (401, "invalid_api_key"));
    assert!(!String::from_utf8_lossy(&wrong.body).contains("sk-flotilla-0"));
    // A client's key is no join key, and the log tells neither.
    works(&fleet.client).await;
    assert!(!fleet.server.log().contains(&fleet.key) && !fleet.server.log().contains(JOIN_KEY));
}

fn one_line(ran: &Ran, code: i32, parts: &[&str]) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    // Log lines are JSON; what is said to the operator is the last line.
    let last = ran.stderr.lines().last().unwrap_or_default();
    assert!(!ran.stderr.contains("panicked"), "{ran:?}");
    for part in parts {
        assert!(last.contains(part), "'{part}' is not in '{last}'");
    }
}

fn serve(model: &std::path::Path, more: &[&str]) -> Ran {
    let mut all = vec!["serve", "--model", model.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    all.extend(more);
    run("flotilla-agent", &all)
}

#[test]
fn a_model_file_that_cannot_be_used_is_named() {
    let folder = Folder::new();
    let demo = std::fs::read(demo_model()).unwrap();
    let mut of_the_future = demo.clone();
    of_the_future[4] = 99;
    let mut one_broken_count = demo.clone();
    one_broken_count[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    let files: [(&str, &[u8], &str); 6] = [
        ("empty.gguf", b"", "truncated"),
        ("text.gguf", b"this is not a model, it is a text about one", "GGUF"),
        ("cut-header.gguf", &demo[..2000], "truncated"),
        ("cut-weights.gguf", &demo[..demo.len() / 2], "truncated"),
        ("future.gguf", &of_the_future, "version"),
        ("count.gguf", &one_broken_count, "count.gguf"),
    ];
    for (name, content, part) in files {
        let path = folder.write(name, content);
        one_line(&serve(&path, &[]), 65, &[name, part]);
    }
    one_line(&serve(&folder.path().join("missing.gguf"), &[]), 65, &["missing.gguf", "No such"]);
    one_line(&serve(folder.path(), &[]), 65, &["not a regular file"]);
}

#[test]
fn flags_that_cannot_be_are_refused() {
    let model = demo_model();
    one_line(&serve(&model, &["--context-tokens", "99999"]), 65, &["64 to 1024"]);
    one_line(&serve(&model, &["--join", "http://127.0.0.1:1"]), 65, &["--join-key-file"]);
    let folder = Folder::new();
    let empty = folder.write("empty.key", " \n");
    let join = ["--join", "ftp://x", "--join-key-file", empty.to_str().unwrap()];
    one_line(&serve(&model, &join), 65, &["empty.key", "is empty"]);
    one_line(&serve(&model, &["--name", "a b"]), 65, &["a b", "invalid node name"]);
    assert_eq!(serve(&model, &["--slots", "0"]).code, Some(64));
    assert_eq!(serve(&model, &["--kernel", "mmx"]).code, Some(64));
}

#[test]
fn a_port_in_use_is_said_and_nothing_is_started() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let model = demo_model();
    let ran =
        run("flotilla-agent", &["serve", "--model", model.to_str().unwrap(), "--listen", &address]);
    one_line(&ran, 69, &[&address, "another program"]);
    let folder = Folder::new();
    folder.write("join.key", JOIN_KEY);
    let text =
        format!("listen: {address}\nallow_anonymous: true\nnodes: {{join_key_file: join.key}}\n");
    let config = folder.write("gateway.yaml", text);
    let ran = run("flotilla-gateway", &["run", "--config", config.to_str().unwrap()]);
    one_line(&ran, 69, &[&address, "another program"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_with_a_wrong_join_key_stops_and_says_so() {
    let fleet = Fleet::start("").await;
    let wrong = fleet.folder().write("wrong.key", "not the key of this fleet");
    let join = ["--join", &fleet.url, "--join-key-file", wrong.to_str().unwrap()];
    let model = demo_model();
    let ran = tokio::task::block_in_place(|| serve(&model, &join));
    one_line(&ran, 77, &["join key"]);
    assert_eq!(fleet.health().await["nodes"]["linked"], 0);
}

#[test]
fn every_invalid_configuration_is_refused_for_its_reason() {
    let folder = root().join("configs/invalid");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        files += 1;
        let text = std::fs::read_to_string(&path).unwrap();
        let expected: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# error: ")).collect();
        assert!(!expected.is_empty(), "{} names no error", path.display());
        for command in ["check", "run"] {
            let ran = run("flotilla-gateway", &[command, "--config", path.to_str().unwrap()]);
            assert_eq!(ran.code, Some(64), "{}: {ran:?}", path.display());
            let problems: Vec<&str> =
                ran.stderr.lines().filter_map(|l| l.strip_prefix("  ")).collect();
            assert_eq!(problems.len(), expected.len(), "{}: {problems:#?}", path.display());
            for part in &expected {
                let found = problems.iter().any(|p| p.contains(part));
                assert!(found, "{}: no '{part}' in {problems:#?}", path.display());
            }
        }
    }
    assert!(files >= 10, "only {files} invalid configurations");
}

#[test]
fn an_answer_that_cannot_be_written_is_a_failure() {
    let full = || std::fs::File::create("/dev/full").unwrap();
    let mut command = Command::new(binary("flotilla-gateway"));
    command.args(["key", "new", "--name", "a"]).stdout(full());
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(74), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("No space left"), "{output:?}");
    // Not even the complaint can be written: still no panic.
    let status = command.stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(74));
}

#[test]
fn the_reference_configuration_passes_its_own_check() {
    let folder = Folder::new();
    let text = std::fs::read_to_string(root().join("configs/gateway.yaml")).unwrap();
    let config = folder.write("gateway.yaml", text);
    folder.write("join.key", JOIN_KEY);
    let ran = run("flotilla-gateway", &["check", "--config", config.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "ok\n"), "{}", ran.stderr);
}
