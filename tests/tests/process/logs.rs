//! One request in the logs of both programs.

use std::process::Command;

use fleet_tests::process::{Agent, Fleet};
use fleet_tests::{chat, eventually, root, streamed};
use serde_json::Value;

/// Lines of a log that carry a request id.
fn lines_of(log: &str, id: &str) -> Vec<Value> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["request_id"] == id).collect()
}

fn access_line(log: &str, id: &str) -> Option<Value> {
    lines_of(log, id).into_iter().find(|line| line["target"] == "access")
}

#[tokio::test]
async fn the_logs_of_gateway_and_agent_tell_of_a_request_by_one_id() {
    let fleet = Fleet::start("").await;
    let agent = fleet.join("a", &[]).await;
    let asking = fleet.client.with_header("x-request-id", "follow-me");
    assert_eq!(asking.chat(&chat("What is the capital of France?")).await.status, 200);
    let at_gateway = || access_line(&fleet.server.log(), "follow-me");
    let line = eventually("the gateway's line", async || at_gateway()).await;
    assert_eq!((line["outcome"].as_str(), line["node"].as_str()), (Some("ok"), Some("a")));
    let at_agent = || access_line(&agent.server.log(), "follow-me");
    let line = eventually("the agent's line", async || at_agent()).await;
    assert_eq!(
        (line["outcome"].as_str(), line["api"].as_str()),
        (Some("ok"), Some("chat_completions"))
    );
    assert!(line["completion_tokens"].as_u64() > Some(0), "{line}");
    // The commands of docs/logs.md, on these logs.
    fleet.folder().write("flotilla-gateway", fleet.server.log());
    fleet.folder().write("flotilla-agent", agent.server.log());
    let page = std::fs::read_to_string(root().join("docs/logs.md")).unwrap();
    let commands = page.lines().filter_map(|line| line.strip_prefix("journalctl -u "));
    let mut found = 0;
    for command in commands {
        let command = format!("cat {}", command.replace(" -o cat", ""));
        let mut bash = Command::new("bash");
        let ran = bash.args(["-c", &command]).current_dir(fleet.folder().path()).output().unwrap();
        let lines = String::from_utf8(ran.stdout).unwrap();
        assert!(access_line(&lines, "follow-me").is_some(), "{command}: {lines}");
        found += 1;
    }
    assert_eq!(found, 2, "docs/logs.md");
}

#[tokio::test]
async fn what_is_logged_of_a_failover_names_request_tenant_model_and_node() {
    let fleet = Fleet::start("").await;
    let agents = [fleet.join("first", &[]).await, fleet.join("second", &[]).await];
    let asking = fleet.client.with_header("x-request-id", "fails-over");
    let mut stream = asking.stream(&streamed(chat("Count from 1 to 40."))).await;
    assert!(stream.next_chunk().await);
    let node = stream.node();
    agents[usize::from(node == "second")].kill();
    let whole = stream.finish().await;
    assert!(whole.done && whole.errors.is_empty(), "{whole:?}");
    let resumed = "attempt failed: continuing the response on another endpoint";
    fleet.server.wait_for_line(resumed);
    let log = fleet.server.log();
    let lines = lines_of(&log, "fails-over");
    let resumed = lines.iter().find(|line| line["message"] == resumed).expect(&log);
    assert_eq!(
        (resumed["node"].as_str(), resumed["tenant"].as_str()),
        (Some(node.as_str()), Some("test"))
    );
    assert!(resumed["model"].is_string(), "{resumed}");
    assert_eq!(resumed["peer"], "127.0.0.1", "{resumed}");
}

#[tokio::test]
async fn an_agent_alone_adopts_a_plain_request_id_and_returns_it() {
    let agent = Agent::start(&[]).await;
    agent.ready().await;
    let asking = agent.client.with_header("x-request-id", "mine");
    let answer = asking.chat(&chat("What is the capital of France?")).await;
    assert_eq!(answer.headers["x-request-id"], "mine");
    let other = agent.client.with_header("x-request-id", "not plain").get("/livez").await;
    assert_ne!(other.headers["x-request-id"], "not plain");
}
