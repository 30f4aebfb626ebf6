//! Codex: `codex exec`, which speaks OpenAI's Responses API.

use std::process::Command;

use fleet_tests::process::Fleet;
use serde_json::{Value, json};

use crate::program::{Home, installed, run};
use crate::script::{MODEL, Model, Part, call, fleet, results, text};

const DONE: &str = "The file is there.";

/// A run without a sandbox, which needs privileges that tests may lack.
fn codex(fleet: &Fleet, home: &Home) -> Command {
    let folder = home.home().join(".codex");
    std::fs::create_dir_all(&folder).unwrap();
    let provider = format!(
        "[model_providers.flotilla]\nname = \"Flotilla\"\nbase_url = \"{}/v1\"\n\
         wire_api = \"responses\"\nenv_key = \"FLOTILLA_API_KEY\"\n",
        fleet.url
    );
    let config = format!(
        "model = \"{MODEL}\"\nmodel_provider = \"flotilla\"\n\
         check_for_update_on_startup = false\n\n[analytics]\nenabled = false\n\n{provider}"
    );
    std::fs::write(folder.join("config.toml"), config).unwrap();
    let mut command = home.command(&installed(".bin/codex"));
    command.args(["exec", "--skip-git-repo-check", "--sandbox", "danger-full-access"]);
    command.args(["--output-last-message", "last.txt", "Make the file"]);
    command.env("FLOTILLA_API_KEY", &fleet.key);
    command
}

/// The model runs one command, and ends after its result.
fn once(body: &Value) -> Vec<Part> {
    match results(body).is_empty() {
        true => call("exec_command", &json!({"cmd": "printf hello > made.txt"})),
        false => text(&["The ", "file ", "is ", "there."]),
    }
}

/// Runs it; the nodes are lost after `losses` parts.
async fn runs_a_command(losses: &[usize]) -> Model {
    let fleet = fleet().await;
    let mut model = Model::start(&fleet, losses).await;
    let home = Home::new();
    let ran = model.play(run(codex(&fleet, &home)), once).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let read = |name| std::fs::read_to_string(home.work().join(name)).unwrap();
    assert_eq!((read("made.txt").as_str(), read("last.txt").trim()), ("hello", DONE), "{ran:?}");
    model
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Codex: make test-clients"]
async fn codex_runs_a_command() {
    let model = runs_a_command(&[]).await;
    let tools = model.seen[0].body["tools"].as_array().unwrap();
    assert!(tools.iter().all(|tool| tool["type"] == "function"), "{tools:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Codex: make test-clients"]
async fn codex_does_not_notice_lost_nodes() {
    // In the middle of the arguments, twice; and in the middle of the text.
    let model = runs_a_command(&[4, 6, 3]).await;
    let events: Vec<_> = model.seen.iter().map(|seen| seen.events).collect();
    assert_eq!(events, [0, 4, 6, 0, 3]);
}
