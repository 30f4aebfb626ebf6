//! Models with random weights, and measuring with them.

use fleet_tests::client::Client;
use fleet_tests::process::{Agent, Folder, Server, run};
use serde_json::{Value, json};

fn synth(folder: &Folder, quant: &str) -> String {
    let path = folder.path().join(format!("tiny-{quant}.gguf")).display().to_string();
    let ran = run("flotilla-agent", &["synth", "--shape", "tiny", "--quant", quant, &path]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("90 %") && ran.stderr.contains("wrote"), "{ran:?}");
    path
}

#[tokio::test]
async fn a_model_with_random_weights_can_be_served_in_every_quantisation() {
    let folder = Folder::new();
    for quant in ["f16", "q8_0", "q4_0", "q4_k_m"] {
        let path = synth(&folder, quant);
        let arguments = ["serve", "--model", &path, "--model-name", "t", "--listen", "127.0.0.1:0"];
        let server = Server::start("flotilla-agent", &arguments);
        let client = Client::new(server.address(), None);
        let agent = Agent { server, client };
        agent.ready().await;
        let request = json!({"model": "t", "prompt": "to be", "max_tokens": 8, "seed": 1});
        let answer = agent.client.post("/v1/completions", request.to_string()).await.json();
        assert_eq!(answer["usage"]["prompt_tokens"], 4, "{quant}: 'to' is one token: {answer}");
        assert!(answer["usage"]["completion_tokens"].as_u64().unwrap() >= 1);
    }
}

#[test]
fn a_file_is_not_written_over_and_nothing_half_written_stays() {
    let folder = Folder::new();
    let path = synth(&folder, "q4_0");
    let ran = run("flotilla-agent", &["synth", "--shape", "tiny", &path]);
    assert_eq!(ran.code, Some(65));
    assert!(ran.stderr.contains("exists"), "{ran:?}");
    let ran = run("flotilla-agent", &["synth", "--shape", "tiny", "/dev/full", "--force"]);
    assert_eq!(ran.code, Some(65));
    assert!(ran.stderr.contains("No space left"), "{ran:?}");
    let ran = run("flotilla-agent", &["synth", "--shape", "llama-9000", &path]);
    assert!(ran.code == Some(64) && ran.stderr.contains("qwen2.5-0.5b"), "{ran:?}");
}

#[test]
fn a_bench_prints_every_figure_as_a_line_of_json() {
    let folder = Folder::new();
    let path = synth(&folder, "q8_0");
    let plot = folder.path().join("bench.svg");
    let drawn = ["--plot", plot.to_str().unwrap(), "--draft-model", &path];
    let ran = run(
        "flotilla-agent",
        &[["bench", &path, "--rounds", "1", "--threads", "1"].as_slice(), &drawn].concat(),
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let value = |name: &str| {
        let line = lines.iter().find(|l| l["name"] == name);
        line.unwrap_or_else(|| panic!("no {name} in {}", ran.stdout))["value"].as_f64().unwrap()
    };
    for name in [
        "attention_prefill",
        "attention_chunks",
        "attention_decode",
        "matmul_prefill",
        "matmul_decode_1",
        "matmul_decode_16",
        "decode_batch_1",
        "decode_batch_16",
        "step_overhead",
        "speculation_new_text_1",
        "speculation_copy_4",
        "draft_model_0_1",
        "draft_model_850_4",
        "readers_speed_kept",
        "readers_gap",
        "long_prompt_time",
        "shared_prefix_first_token",
        "second_turn",
        "prefill_128_raw",
        "prefill_512_served",
        "first_token_128",
        "memory_start",
        "memory_needed",
        "memory_planned",
        "plan_memory",
    ] {
        assert!(value(name) > 0.0, "{name}");
    }
    assert!(value("memory_start") < value("memory_loaded"), "{}", ran.stdout);
    assert!(value("memory_loaded") <= value("memory_many"), "{}", ran.stdout);
    let picture = std::fs::read_to_string(plot).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("requests side by side"));
    // No figure of time: eight prompts of 540 tokens, of which 520 are common.
    assert!(value("shared_prefix_computed") < 1.3);
    let ran = run("flotilla-agent", &["bench", "missing.gguf"]);
    assert_eq!(ran.code, Some(65), "{ran:?}");
}

#[test]
fn a_bench_prints_a_table_for_people() {
    let folder = Folder::new();
    let path = synth(&folder, "q8_0");
    let table = ["bench", &path, "--rounds", "1", "--threads", "1", "--format", "table"];
    let ran = run("flotilla-agent", &table);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for part in ["decode, parallel", "prefill, tokens", "resident memory", "plan_memory"] {
        assert!(ran.stdout.contains(part), "no {part} in {}", ran.stdout);
    }
    assert!(!ran.stdout.contains('{') && ran.stderr.is_empty(), "{ran:?}");
}
