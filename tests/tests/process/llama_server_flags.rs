//! A node that is started as people start llama-server.

use fleet_tests::client::Client;
use fleet_tests::process::{Server, run};
use fleet_tests::{chat, demo_model, eventually};

#[tokio::test]
async fn an_agent_is_started_with_the_flags_of_llama_server() {
    let model = demo_model().display().to_string();
    let line = "--host 127.0.0.1 --port 0 -c 512 -np 2 -t 1 -fa -ctk q8_0 -ctv q5_1 -a its-name";
    let mut arguments = vec!["serve", "-m", &model];
    arguments.extend(line.split(' '));
    let agent = Server::start("flotilla-agent", &arguments);
    let settings = agent.wait_for_line("settings resolved");
    for part in
        ["threads 1 (flag)", "flash attention on (flag)", "slots 2 (flag)", "KV q8_0/q5_1 (flag)"]
    {
        assert!(settings.contains(part), "{settings}");
    }
    let ready = agent.wait_for_line("engine ready");
    assert!(ready.contains("\"context_tokens\":512"), "{ready}");
    let address: std::net::SocketAddr = {
        let log = agent.log();
        let from = log.find("listening on http://").unwrap() + "listening on http://".len();
        let end = log[from..].find('"').unwrap();
        log[from..from + end].parse().unwrap()
    };
    let client = Client::new(address, None);
    let mut question = chat("What is the capital of France?");
    question["model"] = "its-name".into();
    eventually("an answer", async || (client.chat(&question).await.status == 200).then_some(()))
        .await;
}

#[test]
fn a_model_is_named_and_types_of_a_cache_are_known() {
    let none = run("flotilla-agent", &["serve"]);
    assert_eq!(none.code, Some(64), "{none:?}");
    assert!(none.stderr.contains("MODEL"), "{none:?}");
    let two = run("flotilla-agent", &["serve", "x.gguf", "-ctk", "q8_0", "-ctv", "q9_0"]);
    assert_eq!(two.code, Some(64), "{two:?}");
    assert!(two.stderr.contains("--kv-type") && two.stderr.contains("q5_1"), "{two:?}");
}
