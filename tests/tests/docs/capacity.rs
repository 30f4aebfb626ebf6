//! `flotilla-agent plan --requests-per-day`, as an operator would use it.

use fleet_tests::demo_model;
use fleet_tests::process::{Folder, binary, run, run_command};
use serde_json::Value;

const ASKED: [&str; 6] =
    ["--requests-per-day", "86400", "--prompt-tokens", "500", "--answer-tokens", "100"];

fn plan(more: &[&str]) -> fleet_tests::process::Ran {
    let model = demo_model();
    let mut all = vec!["plan", "--quick", model.to_str().unwrap()];
    all.extend(ASKED);
    all.extend(more);
    run("flotilla-agent", &all)
}

#[test]
fn nodes_and_costs_are_told_with_what_is_assumed() {
    let speed = ["--prefill-tokens-per-second", "250", "--decode-tokens-per-second", "50"];
    let price = ["--price-per-hour", "0.01", "--gpu-price-per-hour", "1"];
    let ran = plan(&[&speed[..], &price[..]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    // Four seconds a request, three times the average at the peak, 70 % busy.
    for part in [
        "nodes           18 for 86400 requests a day",
        "22 % of the day, 67 % of the busiest hour",
        "4.32 a day, 0.083 per million tokens",
        "breaks even if it serves 16.67 of these requests per second",
        "as given",
        "the busiest hour has 3 times the average load",
    ] {
        assert!(ran.stdout.contains(part), "no '{part}' in {}", ran.stdout);
    }
    let ran = plan(&[&speed[..], &["--json"]].concat());
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(told["capacity"]["nodes"]["machines"], 18);
    assert_eq!(told["capacity"]["cost"], Value::Null);
}

#[test]
fn what_is_half_said_is_refused() {
    assert_eq!(plan(&["--prefill-tokens-per-second", "5"]).code, Some(64));
    assert_eq!(plan(&["--peak-factor", "0.5"]).code, Some(64));
    let unknown = plan(&[]);
    assert_eq!(unknown.code, Some(65));
    assert!(unknown.stderr.contains("flotilla-agent tune"), "{}", unknown.stderr);
    let model = demo_model();
    let alone = ["plan", model.to_str().unwrap(), "--requests-per-day", "5"];
    assert_eq!(run("flotilla-agent", &alone).code, Some(64));
}

#[test]
fn speeds_come_from_a_file_of_tune_or_from_what_was_tuned_here() {
    let folder = Folder::new();
    let cache = folder.path().join("cache");
    let model = demo_model();
    let command = |arguments: &[&str]| {
        let mut command = std::process::Command::new(binary("flotilla-agent"));
        command.args(arguments).env("FLOTILLA_CACHE_DIR", &cache);
        run_command(command)
    };
    let tuned = command(&["tune", model.to_str().unwrap(), "--seconds", "2", "--json"]);
    assert_eq!(tuned.code, Some(0), "{}", tuned.stderr);
    let speeds = folder.write("speeds.json", &tuned.stdout);
    let mut here = vec!["plan", "--quick", "--json", model.to_str().unwrap()];
    here.extend(ASKED);
    let from_cache = command(&here);
    here.extend(["--speeds", speeds.to_str().unwrap()]);
    let from_file = command(&here);
    let read = |ran: fleet_tests::process::Ran| -> Value {
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        serde_json::from_str(&ran.stdout).unwrap()
    };
    let (from_cache, from_file) = (read(from_cache), read(from_file));
    assert_eq!(from_cache["capacity"]["speed"], from_file["capacity"]["speed"]);
    assert!(from_cache["capacity"]["speed"]["decode"].as_f64().unwrap() > 0.0);
    assert!(from_cache["capacity"]["source"].as_str().unwrap().starts_with("tuned here, in "));
    assert!(from_file["capacity"]["source"].as_str().unwrap().contains("speeds.json"));
}

#[test]
fn the_page_shows_what_is_printed() {
    let page = crate::current::read("docs/capacity.md");
    let shown = page.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let asked = page.split("```sh\n").find(|block| block.contains("--gpu-price-per-hour"));
    let asked = asked.unwrap().split("```").next().unwrap().replace("\\\n", " ");
    let words: Vec<&str> = asked.split_whitespace().skip(1).collect();
    let model = demo_model();
    let model = model.to_str().unwrap();
    let words: Vec<&str> =
        words.into_iter().map(|word| if word == "model.gguf" { model } else { word }).collect();
    let ran = run("flotilla-agent", &words);
    assert!(
        ran.stdout.contains(shown.trim_end()),
        "{}\nis shown, and this printed:\n{}",
        shown,
        ran.stdout
    );
}
