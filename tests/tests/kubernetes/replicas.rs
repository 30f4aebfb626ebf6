//! A gateway with replicas has one name and several addresses: a node has a link to each, follows
//! the name, and has one link where several addresses lead to one gateway.

use std::process::Command;

use fleet_tests::client::Client;
use fleet_tests::process::{ADMIN_KEY, Folder, JOIN_KEY, Server, binary, metric, run_command};
use fleet_tests::{chat, demo_model, eventually};
use rustix::process::Signal;

const SLOTS: &str = "gateway_node_slots{node=\"a\"}";

/// One replica.
struct Replica {
    server: Server,
    admin: Client,
    client: Client,
    _folder: Folder,
}

impl Replica {
    fn start(listen: &str) -> Self {
        let folder = Folder::new();
        folder.write("join.key", JOIN_KEY);
        folder.write("admin.key", ADMIN_KEY);
        let config = format!(
            "listen: '{listen}'\nadmin: {{listen: '127.0.0.1:0', key_file: admin.key}}\n\
             allow_anonymous: true\nnodes: {{join_key_file: join.key}}\n"
        );
        let config = folder.write("gateway.yaml", config);
        let config = ["run", "--config", config.to_str().unwrap()];
        let server = Server::start("flotilla-gateway", &config);
        let admin = Client::new(server.address(), Some(ADMIN_KEY));
        let client = Client::new(server.address(), None);
        Self { server, admin, client, _folder: folder }
    }

    async fn knows_the_node(&self) {
        eventually("a replica to know the node's slots", async || {
            let body = self.admin.get("/metrics").await.body;
            let text = String::from_utf8(body.to_vec()).unwrap();
            let line = text.lines().find(|l| l.starts_with(SLOTS))?;
            (!line.ends_with(" 0")).then_some(())
        })
        .await;
    }

    async fn answers(&self) {
        let answer = self.client.chat(&chat("What is the capital of France?")).await;
        assert_eq!(answer.content(), "The capital of France is Paris.");
    }
}

/// Arguments of an agent that joins these.
fn arguments(folder: &Folder, urls: &[&str]) -> Vec<String> {
    let key = folder.write("join.key", JOIN_KEY);
    let mut all = vec!["serve".to_string(), "--model".into(), demo_model().display().to_string()];
    all.extend(["--threads", "1", "--name", "a", "--join-key-file"].map(String::from));
    all.push(key.display().to_string());
    all.extend(urls.iter().flat_map(|url| ["--join".to_string(), url.to_string()]));
    all
}

/// A command that sees a hosts file of its own; `None` where that cannot be had.
fn with_hosts(hosts: &std::path::Path) -> Option<Command> {
    let own = |more: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]).args(more);
        let bind = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";
        command.args(["sh", "-c", bind]).arg(hosts);
        command
    };
    [&[][..], &["--user", "--map-root-user"]].into_iter().find_map(|more| {
        let mut trial = own(more);
        trial.arg("true");
        let works = trial.output().is_ok_and(|output| output.status.success());
        works.then(|| own(more))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_linked_to_every_replica_as_they_come_and_go() {
    let folder = Folder::new();
    let hosts = folder.write("hosts", "");
    let Some(mut command) = with_hosts(&hosts) else {
        eprintln!("skipped: names with several addresses need a mount namespace");
        return;
    };
    let first = Replica::start("127.0.0.1:0");
    let port = first.client.address().port();
    let replica = |n: u8| Replica::start(&format!("127.0.0.{n}:{port}"));
    let named = |of: &[u8]| {
        let lines: String = of.iter().map(|n| format!("127.0.0.{n} replicas.test\n")).collect();
        folder.write("hosts", lines);
    };
    let second = replica(2);
    named(&[1, 2]);
    let url = format!("http://replicas.test:{port}");
    command.arg(binary("flotilla-agent")).args(arguments(&folder, &[&url]));
    let agent = Server::spawn(command);
    first.knows_the_node().await;
    second.knows_the_node().await;

    // One comes; then one leaves the name, and finishes before it goes.
    let third = replica(3);
    named(&[1, 2, 3]);
    third.knows_the_node().await;
    let fourth = replica(4);
    named(&[2, 3, 4]);
    fourth.knows_the_node().await;
    for replica in [&first, &second, &third, &fourth] {
        replica.answers().await;
    }
    // What has left the name is not dialled again; what has not, is.
    drop(first);
    agent.wait_for_line("link lost");
    drop(second);
    let line = agent.wait_for_line("not joined");
    assert!(line.contains("127.0.0.2:"), "{line}");
    let again = replica(2);
    again.knows_the_node().await;
    assert!(!agent.log().lines().any(|l| l.contains("not joined") && l.contains("127.0.0.1:")));
    third.answers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_addresses_of_one_gateway_are_one_link() {
    let gateway = Replica::start("0.0.0.0:0");
    let port = gateway.client.address().port();
    let folder = Folder::new();
    let urls = [format!("http://127.0.0.1:{port}"), format!("http://127.0.0.2:{port}")];
    let mut command = Command::new(binary("flotilla-agent"));
    command.args(arguments(&folder, &[&urls[0], &urls[1]])).env("RUST_LOG", "debug");
    let mut agent = Server::spawn(command);
    gateway.knows_the_node().await;
    agent.wait_for_line("address skipped: gateway already linked");
    assert_eq!(agent.log().matches("\"joined\"").count(), 1, "{}", agent.log());
    gateway.answers().await;
    assert_eq!(metric(&gateway.admin, "gateway_nodes{state=\"ready\"}").await, 1.0);
    assert!(!gateway.server.log().contains("joined again"), "{}", gateway.server.log());
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
}

/// The name that is used here is looked up by everything, so that the test cannot pass by accident.
#[test]
fn a_name_has_the_addresses_of_its_hosts_file() {
    let folder = Folder::new();
    let hosts = folder.write("hosts", "127.0.0.8 replicas.test\n127.0.0.9 replicas.test\n");
    let Some(mut command) = with_hosts(&hosts) else { return };
    command.args(["getent", "ahostsv4", "replicas.test"]);
    let found = run_command(command).stdout;
    assert!(found.contains("127.0.0.8") && found.contains("127.0.0.9"), "{found}");
}
