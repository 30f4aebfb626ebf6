//! A batch outlives the gateway and its nodes: killed again and again, each line is in the output
//! once, with the response that an undisturbed node gives.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fleet_tests::batches::{batch, begun, ended, line, lines_of, upload};
use fleet_tests::client::Client;
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::{
    ADMIN_KEY, Fleet, Folder, JOIN_KEY, Server, binary, metric, run_command,
};
use fleet_tests::{chat, eventually, eventually_within, questions, root};
use serde_json::{Value, json};

/// Lines of the batch, how often the gateway is killed, and how often a node before each of these:
/// `make kills` says more.
const LINES: usize = 120;
const GATEWAY_KILLS: usize = 3;
const NODE_KILLS: usize = 1;

/// Most tokens of a line.
const TOKENS_MAX: usize = 64;

/// A number of the environment, or the default.
fn number(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |number| number.parse().unwrap())
}

/// A question of one message without tools, and its right response.
fn single((_, request, expected): &(String, Value, String)) -> Option<(String, String)> {
    let messages = request["messages"].as_array()?;
    let is_single = messages.len() == 1 && request.get("tools").is_none();
    is_single
        .then(|| (messages[0]["content"].as_str().unwrap_or_default().into(), expected.clone()))
}

/// Questions of one message, and their right responses.
pub(super) fn singles() -> Vec<(String, String)> {
    questions().iter().filter_map(single).collect()
}

/// So many lines that ask these questions in turn.
pub(super) fn lines_about(questions: &[(String, String)], count: usize) -> String {
    let asked = (0..count).map(|i| &questions[i % questions.len()]);
    asked.enumerate().map(|(i, (text, _))| line(&format!("q{i}"), text)).collect()
}

async fn done(fleet: &Fleet, id: &str) -> usize {
    let counts = &batch(&fleet.client, id).await["request_counts"];
    let count = |of: &str| counts[of].as_u64().unwrap_or_default() as usize;
    count("completed") + count("failed")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_line_of_a_batch_is_answered_once_while_gateway_and_nodes_are_killed() {
    let folder = Folder::new();
    let mut fleet = Fleet::start(&format!("store: {{dir: '{}'}}\n", folder.path().display())).await;
    let first = fleet.join("a", &["--slots", "2"]).await;
    let mut others = VecDeque::from([fleet.join("b", &["--slots", "2"]).await]);
    others.push_back(fleet.join("c", &["--slots", "2"]).await);
    let questions = singles();
    let count = number("FLOTILLA_BATCH_LINES", LINES);
    let id = begun(&fleet.client, &lines_about(&questions, count)).await;
    let gateway_kills = number("FLOTILLA_BATCH_KILLS", GATEWAY_KILLS);
    let node_kills = number("FLOTILLA_BATCH_NODE_KILLS", NODE_KILLS);
    let kills = gateway_kills * (node_kills + 1);
    let mut generated = 0.0;
    for kill in 1..=kills {
        let part = count * kill / (kills + 1);
        eventually_within(Duration::from_secs(300), "a part of the batch", async || {
            (done(&fleet, &id).await >= part).then_some(())
        })
        .await;
        generated += fleet.kill_in_turn(kill, node_kills, &mut others).await;
    }
    let needed = check_output(&fleet, &id, &questions, count).await;
    for node in others.iter().chain([&first]) {
        generated += node.generated_tokens().await;
    }
    let twice = generated / needed as f64 - 1.0;
    println!(
        "{count} lines, {kills} kills: {needed} tokens, {:.2} % generated twice",
        100.0 * twice
    );
    // What had not been stored when a gateway was killed: at most the lines of all slots.
    let lost_max = gateway_kills * 6 * TOKENS_MAX;
    assert!(generated <= (needed + lost_max) as f64, "{generated} tokens for {needed}");
}

/// Checks that the batch has each line once, with the response that an undisturbed node gives.
/// Returns how many tokens these have.
pub(super) async fn check_output(
    fleet: &Fleet,
    id: &str,
    questions: &[(String, String)],
    count: usize,
) -> usize {
    let ended = ended(&fleet.client, id).await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(ended["request_counts"]["completed"], count, "{ended}");
    let output = lines_of(&fleet.client, &ended["output_file_id"]).await;
    assert_eq!(output.len(), count);
    let mut texts: BTreeMap<&str, String> = BTreeMap::new();
    for (i, line) in output.iter().enumerate() {
        assert_eq!(line["custom_id"], format!("q{i}"));
        let message = &line["response"]["body"]["choices"][0]["message"]["content"];
        let text = message.as_str().unwrap().to_string();
        // At temperature 0, a question has the same response on every node, also after a failover.
        let question = questions[i % questions.len()].0.as_str();
        assert_eq!(texts.entry(question).or_insert_with(|| text.clone()), &text, "{question}");
    }
    let right = texts.iter().filter(|(question, text)| {
        questions.iter().any(|(asked, expected)| asked == *question && expected == *text)
    });
    assert!(right.count() * 10 >= texts.len() * 8, "{texts:?}");
    let tokens = |line: &Value| line["response"]["body"]["usage"]["completion_tokens"].as_u64();
    output.iter().map(|line| tokens(line).unwrap() as usize).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_the_documentation_runs_a_batch_with_the_package_of_openai() {
    let Some(said) = example_of("OpenAI", "openai").await else { return };
    assert!(
        said.contains("completed BatchRequestCounts(completed=3, failed=0, total=3)"),
        "{said}"
    );
    is_answered(&said);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_the_documentation_runs_a_message_batch_with_the_package_of_anthropic() {
    let Some(said) = example_of("Anthropic", "anthropic").await else { return };
    let counts = "canceled=0, errored=0, expired=0, processing=0, succeeded=3";
    assert!(said.contains(&format!("MessageBatchRequestCounts({counts})")), "{said}");
    is_answered(&said);
}

fn is_answered(said: &str) {
    assert!(said.contains("capital-0 The capital of France is Paris."), "{said}");
    assert!(said.contains("capital-2 The capital of Kenya is Nairobi."), "{said}");
}

/// What the example of docs/batches.md prints that makes a client of this class. `None` if its
/// package is not installed.
async fn example_of(class: &str, package: &str) -> Option<String> {
    let python = root().join(format!("target/sdk/{package}/bin/python"));
    if !python.exists() {
        eprintln!("skipped: there is no {}; 'make setup-test' installs it", python.display());
        return None;
    }
    let page = std::fs::read_to_string(root().join("docs/batches.md")).unwrap();
    let examples = page.split("```python\n").skip(1).map(|part| part.split("```").next().unwrap());
    let client = format!("{class}(max_retries=10)");
    let example = examples.into_iter().find(|example| example.contains(&client)).unwrap();
    let folder = Folder::new();
    let fleet = Fleet::start(&format!("store: {{dir: '{}'}}\n", folder.path().display())).await;
    let _agent = fleet.join("a", &["--slots", "2"]).await;
    let mut command = Command::new(python);
    command.args(["-c", example]);
    command.env("OPENAI_BASE_URL", format!("{}/v1", fleet.url)).env("OPENAI_API_KEY", &fleet.key);
    command.env("ANTHROPIC_BASE_URL", &fleet.url).env("ANTHROPIC_API_KEY", &fleet.key);
    let ran = tokio::task::block_in_place(|| run_command(command));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    Some(ran.stdout)
}

/// A gateway whose store is on a disk of its own, in a namespace of its own. `None` where that is
/// not allowed.
pub(super) fn gateway_with_small_disk(folder: &Folder, disk: &Path) -> Option<Server> {
    let works = Command::new("unshare").args(["-rm", "true"]).output();
    if !works.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: a full disk needs unshare and user namespaces");
        return None;
    }
    folder.write("join.key", JOIN_KEY);
    folder.write("admin.key", ADMIN_KEY);
    let config = folder.write(
        "gateway.yaml",
        format!(
            "listen: 127.0.0.1:0\nadmin: {{listen: '127.0.0.1:0', key_file: admin.key}}\n\
             allow_anonymous: true\nnodes: {{join_key_file: join.key}}\nstore: {{dir: '{}'}}\n",
            disk.join("store").display()
        ),
    );
    let script = "mount -t tmpfs -o size=2m tmpfs \"$1\" && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, "sh"]).arg(disk).arg(binary("flotilla-gateway"));
    command.args(["run", "--config"]).arg(config);
    Some(Server::spawn(command))
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_disk_is_full_batches_wait_and_other_requests_are_served() {
    let folder = Folder::new();
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let Some(server) = gateway_with_small_disk(&folder, &disk) else { return };
    let admin = Client::new(server.address(), Some(ADMIN_KEY));
    let client = Client::new(server.address(), None);
    let mut node = MockNode::join(client.address(), healthy("a", 1)).await;
    let lines: String = (0..3).map(|i| line(&format!("id-{i}"), &format!("text {i}"))).collect();
    let id = begun(&client, &lines).await;
    let first = node.asked().await;
    // The disk as the gateway sees it.
    let seen = format!("/proc/{}/root{}", server.pid().as_raw_nonzero(), disk.display());
    let filler = Path::new(&seen).join("filler");
    let full = std::fs::write(&filler, vec![1; 4 << 20]);
    assert_eq!(full.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    // Longer than what is left in a page of the log.
    first.answer(&"long ".repeat(20_000));
    eventually("the store to fail", async || {
        (metric(&admin, "gateway_store_available").await == 0.0).then_some(())
    })
    .await;
    let refused = upload(&client, &"x".repeat(100_000), &[("purpose", "batch")]).await;
    assert_eq!((refused.status, refused.error_code().as_str()), (503, "store_unavailable"));
    let asking = client.clone();
    let asking = tokio::spawn(async move { asking.chat(&chat("still here")).await });
    loop {
        let asked = node.asked().await;
        let text = asked.body["messages"][0]["content"].as_str().unwrap().to_string();
        asked.answer(&text);
        if text == "still here" {
            break;
        }
    }
    assert_eq!(asking.await.unwrap().content(), "still here");
    std::fs::remove_file(filler).unwrap();
    let ending = tokio::spawn(async move {
        loop {
            let asked = node.asked().await;
            let text = asked.body["messages"][0]["content"].as_str().unwrap().to_string();
            assert_ne!(text, "text 0", "its response waited for the disk");
            asked.answer(&text);
        }
    });
    let ended = ended(&client, &id).await;
    assert_eq!(ended["request_counts"]["completed"], 3, "{ended}");
    assert_eq!(lines_of(&client, &ended["output_file_id"]).await.len(), 3);
    ending.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_that_begin_alike_find_their_beginning_in_the_cache_of_a_small_node() {
    let folder = Folder::new();
    let fleet = Fleet::start(&format!("store: {{dir: '{}'}}\n", folder.path().display())).await;
    // It holds the prompts of few lines.
    let small = ["--slots", "1", "--context-tokens", "512", "--kv-cells", "600"];
    let _agent = fleet.join("small", &small).await;
    fleet.wait_for_slots("small").await;
    let (systems, each) = (6, 5);
    let line = |number: usize| {
        let system = format!("{} ", number % systems).repeat(150);
        let messages = json!([{"role": "system", "content": system},
            {"role": "user", "content": format!("Question {number}?")}]);
        let body = json!({"model": "flotilla-demo", "max_tokens": 2, "messages": messages});
        let line = json!({"custom_id": number.to_string(), "method": "POST",
            "url": "/v1/chat/completions", "body": body});
        format!("{line}\n")
    };
    let lines: String = (0..systems * each).map(line).collect();
    let id = begun(&fleet.client, &lines).await;
    let ended = ended(&fleet.client, &id).await;
    assert_eq!(ended["request_counts"]["completed"], systems * each, "{ended}");
    let output = lines_of(&fleet.client, &ended["output_file_id"]).await;
    let ids: Vec<_> = output.iter().map(|line| line["custom_id"].as_str().unwrap()).collect();
    assert!(ids.iter().enumerate().all(|(number, id)| number.to_string() == **id), "{ids:?}");
    let sum = |field: &str| -> f64 {
        let used = output.iter().map(|line| &line["response"]["body"]["usage"]);
        used.map(|usage| usage.pointer(field).and_then(Value::as_f64).unwrap_or(0.0)).sum()
    };
    let cached = sum("/prompt_tokens_details/cached_tokens") / sum("/prompt_tokens");
    eprintln!("{cached:.2} of the prompts were cached");
    assert!(cached > 0.6, "four of five lines follow one that begins alike: {cached}");
}
