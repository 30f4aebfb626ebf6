//! Claude Code: `claude -p`, which speaks Anthropic's Messages API.

use std::path::Path;
use std::process::Command;

use fleet_tests::chat;
use fleet_tests::process::Fleet;
use serde_json::{Value, json};

use crate::program::{Home, installed, run};
use crate::script::{MODEL, Model, Part, call, fleet, results, text};

const DONE: &str = "The file is there.";

/// A run that may use these tools; it prints one JSON object.
fn claude(fleet: &Fleet, home: &Home, tools: &str) -> Command {
    let mut command = home.command(&installed("@anthropic-ai/claude-code/bin/claude.exe"));
    command.args(["-p", "Make the file", "--output-format", "json", "--allowedTools", tools]);
    command.env("ANTHROPIC_BASE_URL", &fleet.url).env("ANTHROPIC_AUTH_TOKEN", &fleet.key);
    command.env("ANTHROPIC_MODEL", MODEL).env("ANTHROPIC_SMALL_FAST_MODEL", MODEL);
    for switch in
        ["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_TELEMETRY", "DISABLE_AUTOUPDATER"]
    {
        command.env(switch, "1");
    }
    command
}

/// The model calls a tool once, and ends after its result.
fn once(body: &Value, name: &str, arguments: Value) -> Vec<Part> {
    let tools = body["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_offered = tools.iter().any(|tool| tool["function"]["name"] == name);
    match is_offered && results(body).is_empty() {
        true => call(name, &arguments),
        false => text(&["The ", "file ", "is ", "there."]),
    }
}

fn write(path: &Path) -> Value {
    json!({"file_path": path, "content": "two\nlines \"quoted\", and ünïcode 日本語\n"})
}

fn is_written(path: &Path) {
    let expected = write(path)["content"].as_str().unwrap().to_string();
    assert_eq!(std::fs::read_to_string(path).unwrap(), expected);
}

/// Runs it with a model that writes a file; the nodes are lost after `losses` parts.
async fn writes(losses: &[usize]) -> Model {
    let fleet = fleet().await;
    let mut model = Model::start(&fleet, losses).await;
    let home = Home::new();
    let path = home.work().join("made.txt");
    let ran = run(claude(&fleet, &home, "Write"));
    let ran = model.play(ran, |body| once(body, "Write", write(&path))).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let result: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&result["result"], &result["is_error"]), (&json!(DONE), &json!(false)), "{result}");
    assert_eq!(result["num_turns"], 2, "{result}");
    is_written(&path);
    model
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Claude Code: make test-clients"]
async fn claude_code_writes_a_file() {
    let model = writes(&[]).await;
    assert_eq!(model.seen.len(), 2);
    assert!(model.seen.iter().all(|seen| seen.events == 0));
    let roles = |body: &Value| -> Vec<String> {
        let messages = body["messages"].as_array().unwrap().iter();
        messages.map(|message| message["role"].as_str().unwrap().into()).collect()
    };
    // Templates take instructions only at the start.
    assert_eq!(roles(&model.seen[1].body), ["system", "user", "assistant", "tool"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Claude Code: make test-clients"]
async fn claude_code_runs_a_command_while_a_real_node_answers_others() {
    let fleet = fleet().await;
    let _real = fleet.join("real", &[]).await;
    let mut model = Model::start(&fleet, &[]).await;
    let home = Home::new();
    let arguments = json!({"command": "printf hello > made.txt", "description": "Make a file"});
    let program = async {
        let ran = run(claude(&fleet, &home, "Bash"));
        let question = chat("What is the capital of France?");
        let (ran, other) = tokio::join!(ran, fleet.client.chat(&question));
        assert_eq!(other.content(), "The capital of France is Paris.");
        ran
    };
    let ran = model.play(program, |body| once(body, "Bash", arguments.clone())).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains(DONE), "{ran:?}");
    assert_eq!(std::fs::read_to_string(home.work().join("made.txt")).unwrap(), "hello");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Claude Code: make test-clients"]
async fn claude_code_does_not_notice_lost_nodes() {
    let whole = writes(&[]).await;
    // In the middle of the arguments, twice; and in the middle of the text.
    let model = writes(&[5, 9, 3]).await;
    let events: Vec<_> = model.seen.iter().map(|seen| seen.events).collect();
    assert_eq!(events, [0, 5, 9, 0, 3]);
    let said = |model: &Model| model.seen.last().unwrap().body["messages"][2].clone();
    let arguments = |message: Value| message["tool_calls"][0]["function"]["arguments"].clone();
    let parsed =
        |arguments: Value| -> Value { serde_json::from_str(arguments.as_str().unwrap()).unwrap() };
    let content = |model: &Model| parsed(arguments(said(model)))["content"].clone();
    assert_eq!(content(&model), content(&whole));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Claude Code: make test-clients"]
async fn claude_codes_prompts_have_a_common_prefix() {
    let fleet = fleet().await;
    let mut model = Model::start(&fleet, &[]).await;
    let home = Home::new();
    for _ in 0..2 {
        let ran = run(claude(&fleet, &home, "Write"));
        let ran = model.play(ran, |_| text(&["Nothing ", "to do."])).await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let [first, second] = &model.seen[..] else { panic!("{} requests", model.seen.len()) };
    // It sends the header in each request; the gateway leaves it out.
    assert!(!first.raw.contains("x-anthropic-billing-header"), "{}", first.raw);
    let bytes = first.raw.bytes().zip(second.raw.bytes());
    let common = bytes.take_while(|(a, b)| a == b).count();
    let share = common as f64 / first.raw.len() as f64;
    assert!(share >= 0.95, "{share}: {}", first.raw.get(common..common + 200).unwrap_or_default());
    assert_eq!(first.body["messages"], second.body["messages"]);
}
