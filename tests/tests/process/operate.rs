//! What an operator does from a shell while a fleet works: keys, nodes, SIGHUP.

use fleet_tests::batches::{begun, ended, line};
use fleet_tests::process::{Fleet, Folder, Ran, run};
use fleet_tests::{chat, eventually, root, streamed};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Runs a command against the fleet's gateway.
fn operate(fleet: &Fleet, arguments: &[&str]) -> Ran {
    let key = fleet.folder().path().join("admin.key");
    let url = format!("http://{}", fleet.admin.address());
    let more = ["--url", &url, "--key-file", key.to_str().unwrap()];
    let all = [arguments, &more].concat();
    tokio::task::block_in_place(|| run("flotilla-gateway", &all))
}

fn succeeds(ran: Ran) -> String {
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    ran.stdout
}

fn fails(ran: Ran, code: i32, says: &str) {
    assert_eq!(ran.code, Some(code), "{}", ran.stderr);
    assert!(ran.stderr.contains(says), "{}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_listed_cordoned_drained_and_let_back_in() {
    let fleet = Fleet::start("").await;
    let _a = fleet.join("a", &["--slots", "2"]).await;
    let table = succeeds(operate(&fleet, &["nodes"]));
    let (head, row) = table.trim_end().split_once('\n').unwrap();
    assert!(head.starts_with("NAME"), "{table}");
    assert!(row.starts_with("a ") && row.contains("ready") && row.contains("0/2"), "{table}");
    assert!(row.contains("flotilla-demo"), "{table}");
    let list = succeeds(operate(&fleet, &["nodes", "--json"]));
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((&list["nodes"][0]["name"], &list["nodes"][0]["slots"]), (&json!("a"), &json!(2)));
    succeeds(operate(&fleet, &["cordon", "a"]));
    assert_eq!(fleet.client.get("/readyz").await.status, 503);
    assert!(succeeds(operate(&fleet, &["nodes"])).contains("ready,cordoned"));
    succeeds(operate(&fleet, &["uncordon", "a"]));
    assert_eq!(fleet.client.get("/readyz").await.status, 200);
    fails(operate(&fleet, &["drain", "nobody"]), 69, "unknown node 'nobody'");
}

/// Long enough to be drained in the middle of it.
fn long() -> Value {
    let mut request = streamed(chat("Count from 1 to 20."));
    request["temperature"] = json!(0);
    request["ignore_eos"] = json!(true);
    request["max_tokens"] = json!(400);
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_of_a_drained_node_go_on_elsewhere_word_for_word() {
    let fleet = Fleet::start("").await;
    let _a = fleet.join("a", &[]).await;
    let whole = fleet.client.stream(&long()).await.finish().await;
    let mut stream = fleet.client.stream(&long()).await;
    assert!(stream.next_chunk().await);
    let _b = fleet.join("b", &[]).await;
    let drained = succeeds(operate(&fleet, &["drain", "a"]));
    assert_eq!(drained, "a: drained\n");
    let said = stream.finish().await;
    assert!(said.done && said.errors.is_empty(), "{said:?}");
    assert_eq!(said.text, whole.text);
    assert_eq!(fleet.in_flight().await, [0; 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_nowhere_to_go_is_drained_when_its_answers_are_done() {
    let fleet = Fleet::start("").await;
    let _a = fleet.join("a", &[]).await;
    let mut stream = fleet.client.stream(&long()).await;
    assert!(stream.next_chunk().await);
    assert_eq!(succeeds(operate(&fleet, &["drain", "a", "--wait-s", "0"])), "a: done\n");
    let said = stream.finish().await;
    assert!(said.done && said.errors.is_empty(), "{said:?}");
    assert_eq!(succeeds(operate(&fleet, &["drain", "a"])), "a: drained\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_work_is_listed_and_canceled() {
    let folder = Folder::new();
    let fleet = Fleet::start(&format!("store: {{dir: '{}'}}\n", folder.path().display())).await;
    let batch = begun(&fleet.client, &line("id-1", "a secret question")).await;
    let body = json!({"url": "/v1/chat/completions", "body": chat("a secret question")});
    let job = fleet.client.post("/v1/jobs", body.to_string()).await.json();
    let job = job["id"].as_str().unwrap();
    let table = succeeds(operate(&fleet, &["batches"]));
    let (head, row) = table.trim_end().split_once('\n').unwrap();
    assert!(head.starts_with("ID ") && head.ends_with("GATEWAY"), "{table}");
    assert!(row.starts_with(&batch) && row.contains(" test ") && row.ends_with("this"), "{table}");
    let table = succeeds(operate(&fleet, &["jobs", "--tenant", "test", "--limit", "1"]));
    assert!(table.lines().nth(1).unwrap().starts_with(job), "{table}");
    assert!(table.contains("job ") && table.contains("flotilla-demo"), "{table}");
    let others = succeeds(operate(&fleet, &["jobs", "--tenant", "a&b"]));
    assert_eq!(others.lines().count(), 1, "only the head: {others}");
    let list = succeeds(operate(&fleet, &["batches", "--json"]));
    assert!(!list.contains("secret"), "{list}");
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["batches"][0]["id"], json!(batch));
    let canceled = succeeds(operate(&fleet, &["jobs", "cancel", job]));
    assert_eq!(canceled, format!("{job}: cancelled\n"));
    let canceled = succeeds(operate(&fleet, &["batches", "cancel", &batch]));
    assert!(canceled.starts_with(&format!("{batch}: cancel")), "{canceled}");
    assert_eq!(ended(&fleet.client, &batch).await["status"], "cancelled");
    fails(operate(&fleet, &["batches", "cancel", &batch]), 69, "has ended already");
    fails(operate(&fleet, &["jobs", "cancel", "job_0"]), 69, "there is no 'job_0'");
    fails(operate(&fleet, &["jobs", "cancel", "../nodes/a"]), 69, "invalid id");
    fails(operate(&fleet, &["jobs", "--limit", "1001"]), 64, "1001");
}

/// Runs the commands of a page about stored work, for the entry with this id.
fn follow(fleet: &Fleet, page: &str, example: &str, id: &str) -> Vec<String> {
    let page = std::fs::read_to_string(root().join("docs").join(page)).unwrap();
    let commands = page.lines().filter_map(|line| line.strip_prefix("flotilla-gateway "));
    let ran = commands.map(|command| {
        let command = command.replace(example, id);
        succeeds(operate(fleet, &command.split(' ').collect::<Vec<_>>()))
    });
    ran.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_about_stored_work_show_commands_that_work() {
    let folder = Folder::new();
    let fleet = Fleet::start(&format!("store: {{dir: '{}'}}\n", folder.path().display())).await;
    let batch = begun(&fleet.client, &line("id-1", "Hi")).await;
    let ran = follow(&fleet, "batches.md", "batch_1a2b", &batch);
    assert!(ran.len() == 3 && ran[2].starts_with(&batch), "{ran:?}");
    let asked = json!({"model": "flotilla-demo", "input": "Hi", "background": true});
    let response = fleet.client.post("/v1/responses", asked.to_string()).await.json();
    let id = response["id"].as_str().unwrap();
    let ran = follow(&fleet, "background.md", "resp_1a2b", id);
    assert_eq!(ran[1..], [format!("{id}: cancelled\n")], "{ran:?}");
    let ran = follow(&fleet, "usage.md", "", "");
    let heads = ["hour,tenant,", "hour,tenant,", "minute,tenant,", "BilledCost,"];
    assert_eq!(ran.len(), heads.len());
    assert!(ran.iter().zip(heads).all(|(table, head)| table.starts_with(head)), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_say_what_is_wrong() {
    let fleet = Fleet::start("").await;
    let folder = Folder::new();
    let wrong = folder.write("wrong.key", "not-the-key-of-these-operators");
    let url = format!("http://{}", fleet.admin.address());
    let ask = |url: &str, key: &str| {
        let arguments = ["nodes", "--url", url, "--key-file", key];
        tokio::task::block_in_place(|| run("flotilla-gateway", &arguments))
    };
    fails(ask(&url, wrong.to_str().unwrap()), 69, "the admin key is missing or wrong");
    fails(ask(&url, "/nonexistent"), 64, "/nonexistent");
    fails(operate(&fleet, &["batches"]), 69, "this gateway has no store");
    let key = fleet.folder().path().join("admin.key");
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    fails(
        ask(&format!("http://{nobody}"), key.to_str().unwrap()),
        69,
        "cannot reach the gateway at",
    );
    let bare = folder
        .write("bare.yaml", "allow_anonymous: true\nnodes: {static: [{url: 'http://h:1'}]}\n");
    let bare = run("flotilla-gateway", &["nodes", "--config", bare.to_str().unwrap()]);
    fails(bare, 64, "set admin.listen");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_made_listed_and_revoked_while_the_gateway_serves() {
    let fleet = Fleet::start("keys_file: keys.yaml\n").await;
    let config = fleet.folder().path().join("gateway.yaml");
    let key = |arguments: &[&str]| {
        let all = [&["key"], arguments, &["--config", config.to_str().unwrap()]].concat();
        tokio::task::block_in_place(|| run("flotilla-gateway", &all))
    };
    let limits = [
        ["--class-max", "batch"],
        ["--external", "never"],
        ["--requests-per-minute", "7"],
        ["--deadline-ms", "900"],
        ["--max-tokens", "50"],
        ["--models", "a,b"],
    ];
    let made = succeeds(key(&[
        &["new", "--name", "ada", "--prefix-group", "team", "--force-trace"][..],
        &limits.concat(),
    ]
    .concat()));
    let secret = made.lines().nth(1).unwrap().to_string();
    assert!(secret.starts_with("sk-flotilla-") && made.lines().count() == 2, "{made}");
    let file = fleet.folder().path().join("keys.yaml");
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(!kept.contains(&secret), "only its digest");
    assert!(kept.contains("deadline_ms: 900") && kept.contains("max_tokens: 50"), "{kept}");
    assert!(kept.contains("force_trace: true") && kept.contains("prefix_group: team"), "{kept}");
    let asks = async |status| {
        eventually("the key to be known, or not", async || {
            let answer = fleet.client.with_key(Some(&secret)).get("/v1/models").await;
            (answer.status == status).then_some(())
        })
        .await;
    };
    asks(200).await;
    fails(key(&["new", "--name", "ada"]), 64, "exists; revoke it first");
    fails(key(&["new", "--name", "bob", "--prefix-group", "a b"]), 64, "--prefix-group: expected");
    fails(key(&["new", "--name", "test"]), 64, "exists; revoke it first");
    let listed = succeeds(key(&["list"]));
    let row = listed.lines().find(|l| l.starts_with("ada")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[2..], ["batch", "never", "7", "-", "-", "a,b"], "{listed}");
    assert!(listed.lines().any(|l| l.starts_with("test")), "{listed}");
    succeeds(key(&["revoke", "ada"]));
    asks(401).await;
    fails(key(&["revoke", "ada"]), 64, "no key named 'ada'");
    assert_eq!(fleet.client.get("/v1/models").await.status, 200, "the other one stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_single_key_nobody_gets_in() {
    let folder = Folder::new();
    folder.write("join.key", "a-join-key-of-16-bytes");
    let config = "listen: 127.0.0.1:0\nkeys_file: keys.yaml\nnodes: {join_key_file: join.key}\n";
    let config = folder.write("gateway.yaml", config);
    let server = fleet_tests::process::Server::start(
        "flotilla-gateway",
        &["run", "--config", config.to_str().unwrap()],
    );
    let client = fleet_tests::client::Client::new(server.address(), None);
    assert_eq!(client.get("/v1/models").await.status, 401);
    assert_eq!(client.with_key(Some("sk-x")).get("/v1/models").await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_loads_the_configuration_at_once_and_a_bad_one_is_only_complained_about() {
    let fleet = Fleet::start("").await;
    let path = fleet.folder().path().join("gateway.yaml");
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, good.replace("listen:", "lisen:")).unwrap();
    fleet.server.signal(Signal::HUP);
    let line = fleet.server.wait_for_line("configuration refused");
    assert!(line.contains("lisen: unknown key"), "{line}");
    std::fs::write(&path, format!("{good}retries_max: 3\n")).unwrap();
    fleet.server.signal(Signal::HUP);
    fleet.server.wait_for_line("configuration loaded");
    assert_eq!(fleet.client.get("/v1/models").await.status, 200);
}
