//! A batch outlives the gateway and its nodes: killed again and again, each line is in the output
//! once, with the response that an undisturbed node gives.

use std::collections::BTreeMap;
use std::time::Duration;

use fleet_tests::batches::{batch, begun, ended, line, lines_of};
use fleet_tests::process::{Fleet, Folder, run_command};
use fleet_tests::{eventually_within, questions, root};
use rustix::process::Signal;

/// Lines of the batch: `make kills` runs more.
const LINES: usize = 120;
/// How often the gateway is killed, and a node.
const KILLS: u64 = 3;

fn lines() -> usize {
    std::env::var("FLOTILLA_BATCH_LINES").map_or(LINES, |lines| lines.parse().unwrap())
}

async fn done(fleet: &Fleet, id: &str) -> u64 {
    let counts = &batch(&fleet.client, id).await["request_counts"];
    counts["completed"].as_u64().unwrap_or_default() + counts["failed"].as_u64().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_line_of_a_batch_is_answered_once_while_gateway_and_nodes_are_killed() {
    let folder = Folder::new();
    let mut fleet = Fleet::start(&format!("store: {{dir: '{}'}}\n", folder.path().display())).await;
    let first = fleet.join("a", &["--slots", "2"]).await;
    let mut second = fleet.join("b", &["--slots", "2"]).await;
    let questions: Vec<_> = questions()
        .into_iter()
        .map(|(_, request, expected)| {
            (request["messages"][0]["content"].as_str().unwrap_or_default().to_string(), expected)
        })
        .filter(|(text, _)| !text.is_empty())
        .collect();
    let count = lines();
    let asked = (0..count).map(|i| &questions[i % questions.len()]);
    let input: String =
        asked.enumerate().map(|(i, (text, _))| line(&format!("q{i}"), text)).collect();
    let id = begun(&fleet.client, &input).await;
    for kill in 1..=KILLS {
        let part = count as u64 * kill / (KILLS + 1);
        eventually_within(Duration::from_secs(120), "a part of the batch", async || {
            (done(&fleet, &id).await >= part).then_some(())
        })
        .await;
        if kill % 2 == 0 {
            second.kill();
            second = fleet.join(&format!("b{kill}"), &["--slots", "2"]).await;
        }
        fleet.server.signal(Signal::KILL);
        fleet.server.ended().await;
        fleet.restart();
        fleet.wait_for_slots("a").await;
    }
    let ended = ended(&fleet.client, &id).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(ended["request_counts"]["completed"], count, "{ended}");
    let output = lines_of(&fleet.client, &ended["output_file_id"]).await;
    assert_eq!(output.len(), count);
    let mut texts: BTreeMap<&str, String> = BTreeMap::new();
    for (i, line) in output.iter().enumerate() {
        assert_eq!(line["custom_id"], format!("q{i}"));
        let message = &line["response"]["body"]["choices"][0]["message"]["content"];
        let text = message.as_str().unwrap().to_string();
        // The same question has the same response, whoever was killed meanwhile.
        let question = questions[i % questions.len()].0.as_str();
        assert_eq!(texts.entry(question).or_insert_with(|| text.clone()), &text, "{question}");
    }
    let right = texts.iter().filter(|(question, text)| {
        questions
            .iter()
            .any(|(asked, expected)| asked == *question && text.contains(expected.as_str()))
    });
    assert!(right.count() * 10 >= texts.len() * 8, "{texts:?}");
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_the_documentation_runs_a_batch_with_the_package_of_openai() {
    let python = root().join("target/sdk/openai/bin/python");
    if !python.exists() {
        return eprintln!(
            "skipped: there is no {}; 'make setup-test' installs it",
            python.display()
        );
    }
    let page = std::fs::read_to_string(root().join("docs/batches.md")).unwrap();
    let example = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = Folder::new();
    let fleet = Fleet::start(&format!("store: {{dir: '{}'}}\n", folder.path().display())).await;
    let _agent = fleet.join("a", &["--slots", "2"]).await;
    let mut command = std::process::Command::new(python);
    command.args(["-c", example]);
    command.env("OPENAI_BASE_URL", format!("{}/v1", fleet.url)).env("OPENAI_API_KEY", &fleet.key);
    let ran = tokio::task::block_in_place(|| run_command(command));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let said = ran.stdout;
    assert!(
        said.contains("completed BatchRequestCounts(completed=3, failed=0, total=3)"),
        "{said}"
    );
    assert!(said.contains("capital-0 The capital of France is Paris."), "{said}");
    assert!(said.contains("capital-2 The capital of Kenya is Nairobi."), "{said}");
}
