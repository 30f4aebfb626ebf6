//! Packages that applications are written with talk to the gateway, each in an environment of its
//! own.

use std::path::Path;
use std::process::{Command, Stdio};

use fleet_tests::losses::Losses;
use fleet_tests::process::{Fleet, Folder, run};
use fleet_tests::root;

/// A gateway, and a key for it with which one may ask one thing at a time.
pub(super) async fn gateway_with_limited_key() -> (Fleet, String) {
    let new = ["key", "new", "--name", "limited", "--concurrent-max", "1"];
    let made = run("flotilla-gateway", &new).stdout;
    let limited = made.lines().nth(1).unwrap();
    let (_, entry) = made.split_once("keys:\n").unwrap();
    // It comes directly after the fleet's own key, in the same list.
    let more = format!("{entry}nodes: {{join_key_file: join.key}}\n");
    (Fleet::start(&more).await, limited.to_string())
}

/// Runs a script against a fleet that loses two of its three nodes, each in the middle of a
/// response. It gets two keys; one may ask one thing at a time.
async fn works(program: &Path, script: &Path) {
    let (fleet, limited) = gateway_with_limited_key().await;
    let losses = Losses::new(2);
    let _nodes = [losses.join(&fleet, "a").await, losses.join(&fleet, "b").await];
    let _rest = fleet.join("c", &[]).await;
    works_with(&fleet, &limited, program, script);
    assert!(losses.killed() > 0, "no node was lost");
    let taken_over =
        total(&fleet, "gateway_resumes_total").await + total(&fleet, "gateway_retries_total").await;
    eprintln!("{} nodes lost, {taken_over} responses taken over", losses.killed());
    assert!(taken_over >= losses.killed() as f64);
}

/// The sum of a metric over its labels.
async fn total(fleet: &Fleet, name: &str) -> f64 {
    let text = String::from_utf8(fleet.admin.get("/metrics").await.body.to_vec()).unwrap();
    let of_name = text.lines().filter_map(|line| line.strip_prefix(name)?.split_once("} "));
    of_name.map(|(_, value)| value.parse::<f64>().unwrap()).sum()
}

fn works_with(fleet: &Fleet, limited: &str, program: &Path, script: &Path) {
    let output = tokio::task::block_in_place(|| {
        Command::new(program)
            .arg(script)
            .env("OPENAI_BASE_URL", format!("{}/v1", fleet.url))
            .env("OPENAI_API_KEY", &fleet.key)
            .env("ANTHROPIC_BASE_URL", &fleet.url)
            .env("ANTHROPIC_API_KEY", &fleet.key)
            .env("LIMITED_KEY", limited)
            .output()
            .unwrap()
    });
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    eprintln!("{said}");
    assert!(output.status.success());
}

/// Stops a test whose environment was not made.
pub(super) fn needs(path: &Path) {
    assert!(path.exists(), "{} is missing: 'make test' makes it", path.display());
}

async fn the_python_package_works(name: &str) {
    let python = root().join(format!("target/sdk/{name}/bin/python"));
    needs(&python);
    let script = format!("tests/sdk/{}_package.py", name.replace('-', "_"));
    works(&python, &root().join(script)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_openai_package_works() {
    the_python_package_works("openai").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_langchain_package_works() {
    the_python_package_works("langchain").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_litellm_package_works() {
    the_python_package_works("litellm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_instructor_package_works() {
    the_python_package_works("instructor").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_anthropic_package_works() {
    the_python_package_works("anthropic").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_anthropic_package_runs_message_batches() {
    let (python, folder) = (root().join("target/sdk/anthropic/bin/python"), Folder::new());
    needs(&python);
    let store = format!("store: {{dir: '{}'}}\n", folder.path().display());
    let fleet = Fleet::start(&store).await;
    let _node = fleet.join("a", &["--slots", "2"]).await;
    let key = fleet.key.clone();
    works_with(&fleet, &key, &python, &root().join("tests/sdk/anthropic_batches.py"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_langchain_package_for_anthropic_works() {
    the_python_package_works("langchain-anthropic").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pydantic_ai_package_works() {
    the_python_package_works("pydantic-ai").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_llama_index_package_works() {
    the_python_package_works("llama-index").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_llm_program_works() {
    the_python_package_works("llm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_cohere_package_ranks_documents_on_two_nodes() {
    let (python, folder) = (root().join("target/sdk/cohere/bin/python"), Folder::new());
    needs(&python);
    let model = folder.path().join("ranker.gguf");
    let synth = ["synth", "--shape", "tiny-rerank", "--quant", "f16", model.to_str().unwrap()];
    assert_eq!(run("flotilla-agent", &synth).code, Some(0));
    let (fleet, limited) = gateway_with_limited_key().await;
    let ranker = ["--model-name", "ranker", "--pooling", "rank"];
    let _a = fleet.join_with_model("a", &model, &ranker).await;
    let _b = fleet.join_with_model("b", &model, &ranker).await;
    works_with(&fleet, &limited, &python, &root().join("tests/sdk/cohere_package.py"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_ollama_package_works() {
    the_python_package_works("ollama").await;
}

/// Runs a script with the packages of tests/sdk/node.
async fn the_node_package_works(name: &str) {
    if Command::new("npm").arg("--version").stdout(Stdio::null()).status().is_err() {
        eprintln!("skipped: the {name} package for Node needs npm");
        return;
    }
    let folder = root().join("target/sdk/node");
    needs(&folder.join("done"));
    // Node looks for packages beside the script.
    let script = folder.join(format!("{name}_package.mjs"));
    std::fs::copy(root().join(format!("tests/sdk/{name}_package.mjs")), &script).unwrap();
    works(Path::new("node"), &script).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_openai_package_for_node_works() {
    the_node_package_works("openai").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_anthropic_package_for_node_works() {
    the_node_package_works("anthropic").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ai_sdk_works() {
    the_node_package_works("ai").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_ollama_package_for_node_works() {
    the_node_package_works("ollama").await;
}
