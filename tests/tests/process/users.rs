//! Users behind one key of a gateway process, with a scripted node.

use std::process::Command;

use fleet_tests::client::Client;
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::{Fleet, metric};
use fleet_tests::{chat, eventually};
use serde_json::{Value, json};

/// A gateway whose key has these settings.
async fn fleet(more: &str) -> Fleet {
    Fleet::start(&format!("{more}nodes: {{join_key_file: join.key}}\n")).await
}

async fn node(fleet: &Fleet, slots: u32) -> MockNode {
    let node = MockNode::join(fleet.client.address(), healthy("a", slots)).await;
    eventually("the node to be linked", async || {
        (fleet.health().await.pointer("/nodes/linked")? == 1).then_some(())
    })
    .await;
    node
}

fn user(fleet: &Fleet, id: &str) -> Client {
    fleet.client.with_header("x-openwebui-user-id", id)
}

/// The command of docs/users.md.
fn pseudonym(key: &str, id: &str) -> String {
    let command = r#"SHA256=$(printf %s "$1" | sha256sum | cut -c1-64)
        printf %s "$SHA256:$2" | sha256sum | cut -c1-16"#;
    let ran = Command::new("bash").args(["-c", command, "bash", key, id]).output().unwrap();
    String::from_utf8(ran.stdout).unwrap().trim().to_string()
}

fn access_lines(log: &str) -> Vec<Value> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == "access").collect()
}

#[tokio::test]
async fn the_log_has_pseudonyms_and_usage_of_users_and_no_ids() {
    let fleet = fleet("  users: header\n").await;
    let mut a = node(&fleet, 1).await;
    for (id, prompt) in [("ada@example.com", 7), ("eve@example.com", 9)] {
        let client = user(&fleet, id);
        let asking = tokio::spawn(async move { client.chat(&chat("Hi")).await });
        let usage =
            json!({"prompt_tokens": prompt, "completion_tokens": 1, "total_tokens": prompt + 1});
        let body = json!({"choices": [], "usage": usage}).to_string();
        let asked = a.asked().await;
        assert!(asked.headers.get("x-openwebui-user-id").is_none(), "nodes do not get the header");
        asked.reply(200, "application/json", body);
        assert_eq!(asking.await.unwrap().status, 200);
    }
    let lines = eventually("two lines", async || {
        Some(access_lines(&fleet.server.log())).filter(|lines| lines.len() == 2)
    })
    .await;
    for (line, (id, prompt)) in lines.iter().zip([("ada@example.com", 7), ("eve@example.com", 9)]) {
        assert_eq!(line["user"], pseudonym(&fleet.key, id), "{line}");
        assert_eq!(
            (&line["prompt_tokens"], &line["completion_tokens"]),
            (&json!(prompt), &json!(1))
        );
    }
    assert!(!fleet.server.log().contains("example.com"), "{}", fleet.server.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_invented_users_take_no_more_memory_than_the_bound_allows() {
    let fleet = fleet("  users: header\n  users_max: 100\n").await;
    let mut request = chat("Hi");
    request["model"] = "no-such-model".into();
    let flood = async |from: usize, to: usize| {
        let mut running = Vec::new();
        for part in 0..8 {
            let (client, request) = (fleet.client.clone(), request.clone());
            running.push(tokio::spawn(async move {
                for number in (from..to).skip(part).step_by(8) {
                    let id = format!("user-{number}");
                    let answer =
                        client.with_header("x-openwebui-user-id", &id).chat(&request).await;
                    assert!([404, 503].contains(&answer.status), "{answer:?}");
                }
            }));
        }
        for one in running {
            one.await.unwrap();
        }
    };
    flood(0, 2_000).await;
    let before = fleet.rss_mib();
    flood(2_000, 20_000).await;
    let tracked = metric(&fleet.admin, "gateway_users{tenant=\"test\"}").await;
    assert!(tracked <= 100.0, "{tracked}");
    let evicted = metric(&fleet.admin, "gateway_users_evicted_total{tenant=\"test\"}").await;
    assert!(evicted >= 19_900.0, "{evicted}");
    let grown = fleet.rss_mib() - before;
    assert!(grown < 16.0, "{grown} MiB more");
}
