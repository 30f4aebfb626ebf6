//! What operators set at one gateway holds at all that share its store, in a real PostgreSQL: API
//! keys, and which nodes are cordoned.

use fleet_tests::eventually;
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::postgres::Postgres;
use fleet_tests::process::{Fleet, Ran, run};
use serde_json::Value;

use super::shared_store::Shared;

fn store(shared: &Shared) -> String {
    shared.store().replace("store: {", "store: {keys: true, ")
}

/// Runs a command with the configuration of a gateway.
fn command(fleet: &Fleet, arguments: &[&str]) -> Ran {
    let config = fleet.folder().path().join("gateway.yaml");
    let admin = format!("http://{}", fleet.admin.address());
    let file = fleet.folder().path().join("admin.key");
    let at = [
        "--config",
        config.to_str().unwrap(),
        "--url",
        &admin,
        "--key-file",
        file.to_str().unwrap(),
    ];
    tokio::task::block_in_place(|| run("flotilla-gateway", &[arguments, &at].concat()))
}

fn succeeds(ran: Ran) -> String {
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.stdout
}

async fn until_status(fleet: &Fleet, key: &str, status: u16) {
    eventually("the key to be known, or not", async || {
        let answer = fleet.client.with_key(Some(key)).get("/v1/models").await;
        (answer.status == status).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_made_at_one_gateway_counts_at_all_and_is_revoked_at_another() {
    let Some(mut server) = Postgres::start(&[]).await else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let a = Fleet::start(&store(&shared)).await;
    let b = a.another();
    let made =
        succeeds(command(&a, &["key", "new", "--name", "ada", "--store", "--max-tokens", "7"]));
    let ada = made.lines().nth(1).unwrap().to_string();
    assert!(ada.starts_with("sk-flotilla-") && made.lines().count() == 2, "{made}");
    assert_eq!(a.client.with_key(Some(&ada)).get("/v1/models").await.status, 200, "at once");
    until_status(&b, &ada, 200).await;
    let exists = command(&b, &["key", "new", "--name", "ada", "--store"]);
    assert!(
        exists.code == Some(69) && exists.stderr.contains("a key named 'ada' exists"),
        "{}",
        exists.stderr
    );
    let listed = succeeds(command(&b, &["key", "list", "--store"]));
    assert!(listed.lines().count() == 2 && listed.contains("ada"), "{listed}");

    // Exported, changed, and imported again.
    let exported = succeeds(command(&b, &["key", "export"]));
    assert!(exported.contains("max_tokens: 7") && !exported.contains(&ada), "{exported}");
    let changed = exported.replace("max_tokens: 7", "models: [none]");
    let file = shared.folder.write("exported.yaml", changed);
    let imported = succeeds(command(&b, &["key", "import", file.to_str().unwrap()]));
    assert_eq!(imported.trim(), "0 keys added, 1 replaced");
    eventually("the model to be refused", async || {
        let request = fleet_tests::chat("Hi");
        let refused = a.client.with_key(Some(&ada)).chat(&request).await;
        (refused.error_code() == "model_not_allowed").then_some(())
    })
    .await;

    // Nobody is turned away because the database is gone.
    server.kill();
    assert_eq!(a.client.with_key(Some(&ada)).get("/v1/models").await.status, 200);
    let gone = command(&a, &["key", "revoke", "ada", "--store"]);
    assert!(
        gone.code == Some(69) && gone.stderr.contains("store cannot be used"),
        "{}",
        gone.stderr
    );
    server.restart().await;
    eventually("the key to be revoked", async || {
        (command(&b, &["key", "revoke", "ada", "--store"]).code == Some(0)).then_some(())
    })
    .await;
    until_status(&b, &ada, 401).await;
    until_status(&a, &ada, 401).await;
}

async fn is_cordoned(fleet: &Fleet, node: &str) -> bool {
    let nodes = fleet.admin.get("/admin/v1/nodes").await.json();
    let found = nodes["nodes"].as_array().unwrap().iter().find(|n| n["name"] == node);
    found.is_some_and(|node| node["cordoned"] == Value::Bool(true))
}

async fn until_cordoned(fleet: &Fleet, expected: bool) {
    eventually("the node to be cordoned, or not", async || {
        (is_cordoned(fleet, "n").await == expected).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_cordoned_at_one_gateway_is_so_at_all_also_after_a_restart() {
    let Some(mut server) = Postgres::start(&[]).await else { return };
    let shared = Shared::new(&server.database("flotilla"));
    let a = Fleet::start(&shared.store()).await;
    let mut b = a.another();
    let _of_a = MockNode::join(a.client.address(), healthy("n", 1)).await;
    let _of_b = MockNode::join(b.client.address(), healthy("n", 1)).await;
    a.wait_for_slots("n").await;
    b.wait_for_slots("n").await;
    succeeds(command(&a, &["cordon", "n"]));
    assert!(is_cordoned(&a, "n").await, "at once");
    until_cordoned(&b, true).await;

    // A gateway that starts knows it, before the node joins.
    b.restart();
    let _of_b = MockNode::join(b.client.address(), healthy("n", 1)).await;
    until_cordoned(&b, true).await;

    // While the database is gone, it holds where it was said, and everywhere later.
    server.kill();
    succeeds(command(&b, &["uncordon", "n"]));
    assert!(!is_cordoned(&b, "n").await, "at once");
    assert!(is_cordoned(&a, "n").await);
    server.restart().await;
    until_cordoned(&a, false).await;
    assert!(!is_cordoned(&b, "n").await);
}
