//! `hardware` and `plan` as a user sees them, on this machine.

use fleet_tests::process::{Agent, Folder, Ran};
use fleet_tests::{chat, demo_model, process};
use serde_json::Value;

fn run(arguments: &[&str]) -> Ran {
    process::run("flotilla-agent", arguments)
}

fn model(folder: &Folder) -> String {
    let path = folder.path().join("tiny.gguf").to_str().unwrap().to_string();
    let ran = run(&["synth", "--shape", "tiny", "--quant", "q4_0", &path]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    path
}

#[test]
fn the_report_on_this_machine_agrees_with_the_program_that_makes_it() {
    let ran = run(&["hardware", "--json"]);
    assert!(ran.code == Some(0), "{}", ran.stderr);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(
        report["threads"].as_u64().unwrap() >= 1 && report["cpus"]["cores"].as_u64().unwrap() >= 1
    );
    assert!(report["memory"]["available_here"].as_u64().unwrap() > 0);
    let simd = report["simd"].as_array().unwrap();
    let baseline = if cfg!(target_arch = "x86_64") { "avx2" } else { "neon" };
    let level = simd.iter().find(|s| s["level"] == baseline).unwrap();
    assert_eq!((level["claimed"].as_bool(), level["runs"].as_bool()), (Some(true), Some(true)));
    assert!(simd.iter().all(|s| s["runs"].is_boolean()), "every level was tried: {simd:?}");
    if let Some(speed) = report["bandwidth"]["best"].as_f64() {
        assert!(speed > 1e8, "{speed}");
    }
}

#[test]
fn the_table_is_there_without_measuring() {
    let ran = run(&["hardware", "--quick"]);
    let table = ran.stdout;
    for word in ["cpu ", "cores", "threads", "for the model", "claims"] {
        assert!(table.contains(word), "{word} is missing in:\n{table}");
    }
    assert!(!table.contains("memory speed"), "{table}");
}

#[test]
fn a_small_model_is_planned_and_too_little_memory_is_refused() {
    let folder = Folder::new();
    let path = model(&folder);
    let ran = run(&["plan", &path, "--quick", "--json"]);
    assert!(ran.code == Some(0), "{}", ran.stderr);
    let plan: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((plan["fits"].as_bool(), plan["context_tokens"].as_u64()), (Some(true), Some(4096)));
    let ran = run(&["plan", &path, "--quick", "--memory-mib", "64"]);
    assert_eq!(ran.code, Some(69));
    assert!(ran.stdout.contains("does not fit"), "{}", ran.stdout);
    assert!(ran.stderr.contains("more than there is"), "{}", ran.stderr);
    let ran = run(&["plan", &path, "--quick", "--slots", "2", "--context-tokens", "8192"]);
    assert_eq!(ran.code, Some(65));
    assert!(ran.stderr.contains("64 to 4096"), "{}", ran.stderr);
    let ran = run(&["plan", "missing.gguf"]);
    assert!(ran.code == Some(65) && ran.stderr.contains("missing.gguf"));
}

/// A tiny model that claims a long context.
fn long_model(folder: &Folder, trained: u32) -> String {
    let path = model(folder);
    let mut bytes = std::fs::read(&path).unwrap();
    let key = b"llama.context_length";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
    // Its type comes first.
    let value = at + key.len() + 4;
    bytes[value..value + 4].copy_from_slice(&trained.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    path
}

#[tokio::test]
async fn the_default_context_is_the_trained_one_and_plan_check_and_agent_agree() {
    let folder = Folder::new();
    let path = long_model(&folder, 32_768);
    let context = |arguments: &[&str]| {
        let ran = run(&[&["plan", &path, "--quick", "--json"], arguments].concat());
        let plan: Value = serde_json::from_str(&ran.stdout).unwrap();
        plan["context_tokens"].as_u64().unwrap()
    };
    assert_eq!(context(&[]), 32_768);
    let little = context(&["--slots", "4", "--memory-mib", "256"]);
    assert!((4096..32_768).contains(&little) && little.is_multiple_of(1024), "{little}");
    let ran = run(&["check", &path]);
    assert!(ran.stdout.contains("4 slots of 32768 tokens"), "{ran:?}");

    let start = |arguments: &[&str]| {
        let all = ["serve", &path, "--listen", "127.0.0.1:0", "--threads", "1"];
        process::Server::start("flotilla-agent", &[&all[..], arguments].concat())
    };
    let agent = start(&[]);
    agent.wait_for_line("context 32768 (default, trained 32768)");
    let ready = agent.wait_for_line("engine ready");
    assert!(ready.contains("\"context_tokens\":32768"), "{ready}");
    assert!(!agent.log().contains("context is shorter"), "{}", agent.log());
    // One request may use the whole pool of the operator's.
    let pool = start(&["--kv-cells", "8192"]);
    let line = pool.wait_for_line("context is shorter than the model was trained for");
    for part in ["\"context_tokens\":8192", "\"trained_tokens\":32768", "--kv-cells"] {
        assert!(line.contains(part), "{line}");
    }
    start(&["-c", "512"]).wait_for_line("context 512 (flag, trained 32768)");
    start(&["--no-memory-plan"]).wait_for_line("\"context_tokens\":4096");
}

#[test]
fn models_that_fit_are_recommended_with_the_line_that_serves_each() {
    let list = |arguments: &[&str]| {
        let ran = run(&[&["recommend", "--json"], arguments].concat());
        assert_eq!(ran.code, Some(0), "{ran:?}");
        serde_json::from_str::<Vec<Value>>(&ran.stdout).unwrap()
    };
    let small = list(&["--memory-mib", "2048"]);
    assert!(!small.is_empty() && small.iter().all(|model| model["fits"] == true));
    assert!(small.iter().any(|model| model["decode_tokens_per_second"].as_f64() > Some(0.0)));
    let all = list(&["--memory-mib", "2048", "--quick", "--all"]);
    assert!(all.len() > small.len() && all[0]["fits"] == true);
    let large = list(&["--memory-mib", "65536", "--quick"]);
    assert!(large.len() > small.len() && large[0]["decode_tokens_per_second"].is_null());
    let ran = run(&["recommend", "--quick", "--memory-mib", "4096"]);
    assert!(ran.stdout.contains("hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M"), "{ran:?}");
    assert!(ran.stdout.ends_with("Serve one: flotilla-agent serve MODEL\n"), "{ran:?}");
}

#[tokio::test]
async fn an_agent_refuses_what_does_not_fit_and_runs_as_its_options_say() {
    let demo = demo_model();
    let demo = demo.to_str().unwrap();
    let cells = "4194304";
    let huge = ["serve", "--model", demo, "--slots", "64", "--kv-cells", cells, "--kv-type", "f32"];
    let ran = run(&huge);
    assert_eq!(ran.code, Some(65));
    assert!(ran.stderr.contains("more than there is"), "{}", ran.stderr);
    let needed = |kv_type| {
        let ran = run(&["plan", demo, "--quick", "--json", "--kv-type", kv_type]);
        let plan: Value = serde_json::from_str(&ran.stdout).unwrap();
        plan["needed_bytes"].as_u64().unwrap()
    };
    assert!(needed("q8_0") < needed("q8_0/f16") && needed("q8_0/f16") < needed("f16"));
    let no_values = run(&["plan", demo, "--kv-type", "q8_0/"]);
    assert!(no_values.code == Some(64) && no_values.stderr.contains("q5_1"), "{no_values:?}");
    let other = Agent::start(&["--kv-type", "q8_0/q5_1", "--load", "none", "--cpus", "0"]).await;
    let answer = other.client.chat(&chat("What is the capital of France?")).await;
    assert_eq!(answer.content(), "The capital of France is Paris.");
    let allowed =
        std::fs::read_to_string(format!("/proc/{}/status", other.engine().as_raw_nonzero()));
    assert!(allowed.unwrap().contains("Cpus_allowed_list:\t0\n"));
}
