//! `health` of both programs, as a container's HEALTHCHECK runs it.

use fleet_tests::process::{Agent, Fleet, run};

fn code(program: &str, arguments: &[&str]) -> Option<i32> {
    tokio::task::block_in_place(|| run(program, &[&["health"], arguments].concat())).code
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_is_healthy_when_it_can_answer_and_live_when_it_runs() {
    let fleet = Fleet::start("").await;
    let url = &fleet.url[..];
    let gateway = |more: &[&str]| code("flotilla-gateway", &[&["--url", url], more].concat());
    assert_eq!(gateway(&[]), Some(1), "no node");
    assert_eq!(gateway(&["--live"]), Some(0));
    let _node = fleet.join("a", &[]).await;
    assert_eq!(gateway(&[]), Some(0));
    // Operators' listener: what it says is the same.
    let admin = format!("http://{}", fleet.admin.address());
    assert_eq!(code("flotilla-gateway", &["--url", &admin]), Some(0));
    // As the configuration names it.
    let listen = fleet.url.trim_start_matches("http://");
    let folder = fleet.folder();
    let text =
        format!("listen: {listen}\nallow_anonymous: true\nnodes: {{join_key_file: join.key}}\n");
    let config = folder.write("as-it-is.yaml", text);
    assert_eq!(code("flotilla-gateway", &["--config", config.to_str().unwrap()]), Some(0));
    assert_eq!(code("flotilla-gateway", &["--config", "/no/such/file"]), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_healthy_when_it_has_its_model() {
    let agent = Agent::start(&[]).await;
    let address = agent.client.address().to_string();
    let health = |more: &[&str]| code("flotilla-agent", &[&["--listen", &address], more].concat());
    assert_eq!(health(&[]), Some(0));
    assert_eq!(health(&["--live"]), Some(0));
    let engine = agent.engine();
    agent.server.signal(rustix::process::Signal::STOP);
    assert_eq!(health(&["--live", "--timeout-ms", "200"]), Some(1), "it stands still");
    agent.server.signal(rustix::process::Signal::CONT);
    assert_eq!(health(&[]), Some(0));
    assert_eq!(agent.engine(), engine);
    drop(agent);
    assert_eq!(code("flotilla-agent", &["--listen", &address]), Some(1), "nobody is there");
}
