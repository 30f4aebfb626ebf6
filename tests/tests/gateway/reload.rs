//! The configuration changes while the gateway serves, and operators move nodes in and out.

use std::net::SocketAddr;
use std::sync::Arc;

use fleet_tests::client::Client;
use fleet_tests::mock_node::{MockNode, healthy};
use fleet_tests::process::{Folder, metric, run};
use fleet_tests::{chat, eventually, streamed};
use serde_json::Value;
use tokio_rustls::TlsConnector;

use super::Gateway;

const OPEN: &str = "allow_anonymous: true\n";

fn key(name: &str) -> (String, String) {
    let made = run("flotilla-gateway", &["key", "new", "--name", name]).stdout;
    let entry = made[made.find("keys:").unwrap() + 6..].to_string();
    (made.lines().nth(1).unwrap().to_string(), entry)
}

async fn node(gateway: &Gateway, name: &str) -> Value {
    let listed = gateway.admin.get("/admin/v1/nodes").await.json();
    let nodes = listed["nodes"].as_array().unwrap().iter();
    nodes.into_iter().find(|n| n["name"] == name).cloned().unwrap_or(Value::Null)
}

#[tokio::test]
async fn keys_come_and_go_without_a_restart() {
    let ((ada, entry), (bob, other)) = (key("ada"), key("bob"));
    let gateway = Gateway::start_with_keys(&format!("keys:\n{entry}"), "").await;
    let asks = async |key: &str| gateway.client.with_key(Some(key)).get("/v1/models").await.status;
    assert_eq!((asks(&ada).await, asks(&bob).await), (200, 401));
    gateway.reconfigure(&format!("keys:\n{other}")).await;
    assert_eq!((asks(&ada).await, asks(&bob).await), (401, 200));
}

#[tokio::test]
async fn a_request_keeps_the_settings_that_it_began_with() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let running = gateway.streams("one");
    let stream = a.asked().await.stream();
    gateway.reconfigure(&format!("{OPEN}timeouts: {{idle_ms: 1}}\n")).await;
    stream.say("still").await;
    stream.done().await;
    let said = running.await.unwrap();
    assert!(said.done && said.errors.is_empty(), "{said:?}");
}

#[tokio::test]
async fn a_configuration_with_a_mistake_is_refused_and_the_old_one_stays() {
    let gateway = Gateway::start("").await;
    let refused = "gateway_config_reloads_total{outcome=\"refused\"}";
    gateway.folder.write("gateway.yaml", "listen: nowhere\n");
    eventually("the file to be refused", async || {
        (metric(&gateway.admin, refused).await > 0.0).then_some(())
    })
    .await;
    assert_eq!(metric(&gateway.admin, "gateway_config_last_reload_successful").await, 0.0);
    assert_eq!(gateway.client.get("/v1/models").await.status, 200);
    gateway.reconfigure(OPEN).await;
    assert_eq!(metric(&gateway.admin, "gateway_config_last_reload_successful").await, 1.0);
}

#[tokio::test]
async fn listeners_move_and_what_came_through_the_old_one_goes_on() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let running = gateway.streams("one");
    let stream = a.asked().await.stream();
    stream.say("begun").await;
    let text = std::fs::read_to_string(gateway.folder.path().join("gateway.yaml")).unwrap();
    let mut changes = gateway.settings.public().changes();
    changes.mark_unchanged();
    gateway
        .folder
        .write("gateway.yaml", text.replace("listen: 127.0.0.1:0", "listen: 127.0.0.2:0"));
    changes.changed().await.unwrap();
    let address = gateway.settings.public().address().unwrap();
    assert_eq!(address.ip().to_string(), "127.0.0.2");
    assert_eq!(Client::new(address, None).get("/livez").await.status, 200);
    eventually("the old port to be closed", async || {
        tokio::net::TcpStream::connect(gateway.address).await.is_err().then_some(())
    })
    .await;
    stream.say(" and done").await;
    stream.done().await;
    assert!(running.await.unwrap().done);
}

#[tokio::test]
async fn an_address_that_is_taken_leaves_everything_as_it_is() {
    let gateway = Gateway::start("").await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = std::fs::read_to_string(gateway.folder.path().join("gateway.yaml")).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let text = text.replace("listen: 127.0.0.1:0", &format!("listen: {address}"));
    gateway.folder.write("gateway.yaml", text);
    eventually("the file to be refused", async || {
        let told = metric(&gateway.admin, "gateway_config_last_reload_successful").await;
        (told == 0.0).then_some(())
    })
    .await;
    assert_eq!(gateway.client.get("/livez").await.status, 200);
}

#[tokio::test]
async fn nodes_of_the_list_are_dialled_and_let_go_as_the_list_changes() {
    let (at_a, mut a) = MockNode::listen(healthy("a", 1)).await;
    let (at_b, _b) = MockNode::listen(healthy("b", 1)).await;
    let with = |address| format!("{OPEN}nodes: {{static: [{{url: 'http://{address}'}}]}}\n");
    let gateway = Gateway::start_with_keys("", &with(at_a)).await;
    let linked = async |name: &str| {
        eventually("a node to be linked", async || {
            (node(&gateway, name).await["state"] == "ready").then_some(())
        })
        .await;
    };
    linked("a").await;
    let running = gateway.streams("one");
    let stream = a.asked().await.stream();
    stream.say("begun").await;
    gateway.reconfigure(&with(at_b)).await;
    linked("b").await;
    // What runs on it cannot go on elsewhere, as it has no marks: it may finish.
    assert_eq!(node(&gateway, "a").await["cordoned"], true);
    stream.say(" and done").await;
    stream.done().await;
    assert!(running.await.unwrap().done);
    a.is_put_out().await;
}

#[tokio::test]
async fn a_cordoned_node_gets_nothing_new_even_when_it_comes_back() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 4).await;
    let running = gateway.asks("one");
    let asked = a.asked().await;
    assert_eq!(gateway.admin.post("/admin/v1/nodes/a/cordon", "").await.status, 200);
    assert_eq!(node(&gateway, "a").await["cordoned"], true);
    assert_eq!(metric(&gateway.admin, "gateway_node_cordoned{node=\"a\"}").await, 1.0);
    assert_eq!(gateway.client.get("/readyz").await.status, 503);
    let mut b = gateway.node("b", 1).await;
    let other = gateway.asks("two");
    b.asked().await.answer("from b");
    assert_eq!(other.await.unwrap().content(), "from b");
    asked.answer("from a");
    assert_eq!(running.await.unwrap().content(), "from a", "what it had goes on");
    drop(a);
    eventually("a to be gone", async || (gateway.linked().await == 1).then_some(())).await;
    let mut a = gateway.node("a", 4).await;
    let third = gateway.asks("three");
    b.asked().await.answer("from b again");
    assert_eq!(third.await.unwrap().content(), "from b again");
    drop(b);
    eventually("b to be gone", async || (gateway.linked().await == 1).then_some(())).await;
    assert_eq!(gateway.admin.post("/admin/v1/nodes/a/uncordon", "").await.status, 200);
    let last = gateway.asks("four");
    a.asked().await.answer("from a");
    assert_eq!(last.await.unwrap().content(), "from a");
    gateway.is_idle().await;
}

#[tokio::test]
async fn a_drained_node_hands_its_answers_over() {
    let gateway = Gateway::start("").await;
    let mut a = gateway.node("a", 1).await;
    let running = gateway.streams("one");
    let stream = a.asked().await.stream();
    stream.say_marked(&[1], "begun").await;
    let mut b = gateway.node("b", 1).await;
    assert_eq!(gateway.admin.post("/admin/v1/nodes/a/drain", "").await.status, 200);
    let goes_on = b.asked().await;
    assert_eq!(goes_on.resume.choices[0].tokens, [1]);
    stream.is_given_up().await;
    goes_on.stream().done().await;
    let _ = running.await.unwrap();
    gateway.is_idle().await;
    // It may come back, and is not told again that it leaves.
    gateway.admin.post("/admin/v1/nodes/a/uncordon", "").await;
    drop(b);
    let again = gateway.streams("two");
    let stream = a.asked().await.stream();
    stream.say("whole").await;
    stream.done().await;
    assert!(again.await.unwrap().done);
}

#[tokio::test]
async fn only_operators_see_nodes_and_move_them() {
    let gateway = Gateway::start("").await;
    let _a = gateway.node("a", 1).await;
    for key in [None, Some("wrong")] {
        let stranger = gateway.admin.with_key(key);
        for answer in [
            stranger.get("/admin/v1/nodes").await,
            stranger.post("/admin/v1/nodes/a/drain", "").await,
        ] {
            assert_eq!((answer.status, answer.error_code()), (401, "invalid_admin_key".into()));
        }
        assert_eq!(stranger.get("/metrics").await.status, 200);
    }
    let refused = [
        ("/admin/v1/nodes/nobody/drain", 404, "node_not_found"),
        ("/admin/v1/nodes/a/explode", 404, "unknown_url"),
        ("/admin/v1/nodes", 405, "method_not_allowed"),
        ("/v1/chat/completions", 404, "unknown_url"),
    ];
    for (path, status, code) in refused {
        let answer = gateway.admin.post(path, "").await;
        assert_eq!((answer.status, answer.error_code()), (status, code.into()), "{path}");
    }
    // And clients see neither.
    for path in ["/metrics", "/admin/v1/nodes"] {
        assert_eq!(gateway.client.get(path).await.status, 404);
    }
    assert_eq!(node(&gateway, "a").await["cordoned"], false);
    let asked = streamed(chat("x"));
    assert_eq!(gateway.admin.chat(&asked).await.status, 404);
}

#[tokio::test]
async fn without_a_key_of_operators_nobody_moves_nodes() {
    let gateway = Gateway::start_with_keys(OPEN, "").await;
    let text = std::fs::read_to_string(gateway.folder.path().join("gateway.yaml")).unwrap();
    let mut changes = gateway.settings.changes();
    changes.mark_unchanged();
    gateway.folder.write("gateway.yaml", text.replace(", key_file: admin.key", ""));
    changes.changed().await.unwrap();
    for path in ["/admin/v1/nodes", "/admin/v1/batches", "/admin/v1/tasks"] {
        let answer = gateway.admin.get(path).await;
        assert_eq!((answer.status, answer.error_code()), (403, "admin_disabled".into()));
    }
}

type Certificate = rcgen::CertifiedKey<rcgen::KeyPair>;

/// Whether the server shows that certificate, for that name.
async fn has_certificate(address: SocketAddr, name: &str, made: &Certificate) -> bool {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = name.to_string().try_into().unwrap();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.is_ok()
}

#[tokio::test]
async fn a_certificate_is_taken_over_when_its_file_changes() {
    let certificate = |name: &str| rcgen::generate_simple_self_signed([name.to_string()]).unwrap();
    let write = |folder: &Folder, made: &Certificate| {
        folder.write("key.pem", made.signing_key.serialize_pem());
        folder.write("cert.pem", made.cert.pem());
    };
    let gateway = Gateway::start("").await;
    let (old, new) = (certificate("old.test"), certificate("new.test"));
    write(&gateway.folder, &old);
    gateway.reconfigure(&format!("{OPEN}tls: {{cert_file: cert.pem, key_file: key.pem}}\n")).await;
    assert!(has_certificate(gateway.address, "old.test", &old).await);
    let mut changes = gateway.settings.changes();
    changes.mark_unchanged();
    write(&gateway.folder, &new);
    changes.changed().await.unwrap();
    assert!(has_certificate(gateway.address, "new.test", &new).await);
}
