//! Webhooks: a receiver that uses OpenAI's package verifies them, whatever is killed meanwhile.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver as Lines, sync_channel};
use std::time::Duration;

use fleet_tests::batches::{begun, line};
use fleet_tests::postgres::free_port;
use fleet_tests::process::{Fleet, Folder, metric, run};
use fleet_tests::{eventually_within, root};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::background::python;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// A second attempt follows after five seconds.
const SENT: Duration = Duration::from_secs(60);

/// A receiver in another process.
struct Receiver {
    child: Child,
    lines: Lines<String>,
    port: u16,
}

impl Receiver {
    /// Starts one; port 0 is any.
    fn start(python: &PathBuf, secret: &str, port: u16) -> Self {
        let mut command = Command::new(python);
        command.arg(root().join("tests/sdk/webhook_receiver.py"));
        command.args([secret, &port.to_string()]).stdout(Stdio::piped());
        let mut receiver = Self::spawn(command, port);
        receiver.port = receiver.next()["port"].as_u64().unwrap() as u16;
        receiver
    }

    fn spawn(mut command: Command, port: u16) -> Self {
        let mut child = command.spawn().unwrap();
        let (sender, lines) = sync_channel(1000);
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok())
        });
        Self { child, lines, port }
    }

    fn next(&self) -> Value {
        let line = self.lines.recv_timeout(SENT).expect("no webhook in time");
        serde_json::from_str(&line).unwrap()
    }

    fn is_told(&self, event: &str, object: &str) {
        let told = self.next();
        assert_eq!((&told["type"], &told["object"]), (&json!(event), &json!(object)));
        assert_eq!(told["id"], told["webhook_id"]);
    }

    fn nothing_more(&self) {
        assert!(self.lines.try_recv().is_err());
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A store, and receivers with these names and URLs, each with more settings.
fn settings(folder: &Folder, receivers: &[(&str, String, &str)]) -> String {
    let secret = folder.write("hook.secret", format!("{OTHER}\n{SECRET}\n"));
    let one = |(name, url, more): &(&str, String, &str)| {
        format!("{{name: {name}, url: '{url}', secret_file: '{}'{more}}}", secret.display())
    };
    let all: Vec<String> = receivers.iter().map(one).collect();
    let folder = folder.path().display();
    format!("store: {{dir: '{folder}/store'}}\nwebhooks: [{}]\n", all.join(", "))
}

async fn posted(fleet: &Fleet, path: &str, body: &Value) -> String {
    let answer = fleet.client.post(path, body.to_string()).await;
    assert!(answer.status < 300, "{:?}", answer.body);
    answer.json()["id"].as_str().unwrap().into()
}

async fn response(fleet: &Fleet, more: &Value) -> String {
    let mut request = json!({"model": "flotilla-demo", "input": "Hi", "background": true});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    posted(fleet, "/v1/responses", &request).await
}

/// Waits until so many attempts had this outcome.
async fn counted(fleet: &Fleet, webhook: &str, outcome: &str, count: f64) {
    let name = format!("gateway_webhooks_total{{outcome=\"{outcome}\",webhook=\"{webhook}\"}}");
    eventually_within(SENT, "attempts to be counted", async || {
        let text = fleet.admin.get("/metrics").await.body;
        let text = String::from_utf8(text.to_vec()).unwrap();
        text.contains(&format!("{name} {count}\n")).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_package_of_openai_verifies_what_it_is_told_about_each_kind_of_work() {
    let Some(python) = python() else { return };
    let receiver = Receiver::start(&python, SECRET, 0);
    let url = format!("http://127.0.0.1:{}/ok", receiver.port);
    let folder = Folder::new();
    let more = ", allow_private: true, tenants: [test]";
    let deaf = ", allow_private: true, tenants: [nobody]";
    let settings = settings(&folder, &[("all", url.clone(), more), ("deaf", url, deaf)]);
    let fleet = Fleet::start(&settings).await;
    let _agent = fleet.join("a", &["--slots", "2"]).await;
    let chat = json!({"model": "flotilla-demo", "messages": [{"role": "user", "content": "Hi"}]});
    let job = json!({"url": "/v1/chat/completions", "body": chat});
    let cut = response(&fleet, &json!({"max_output_tokens": 1})).await;
    receiver.is_told("response.incomplete", &cut);
    let whole = response(&fleet, &json!({})).await;
    receiver.is_told("response.completed", &whole);
    let job = posted(&fleet, "/v1/jobs", &job).await;
    receiver.is_told("job.completed", &job);
    let batch = begun(&fleet.client, &line("x", "Hi")).await;
    receiver.is_told("batch.completed", &batch);
    let broken = begun(&fleet.client, "no line\n").await;
    receiver.is_told("batch.failed", &broken);
    counted(&fleet, "all", "delivered", 5.0).await;
    receiver.nothing_more();
    // Somebody who does not know the secret notices that.
    let other = Receiver::start(&python, "whsec_c29tZWJvZHkgd2hvIGd1ZXNzZXMgc2VjcmV0cw==", 0);
    drop(fleet);
    let url = format!("http://127.0.0.1:{}/ok", other.port);
    let folder = Folder::new();
    let fleet =
        Fleet::start(&self::settings(&folder, &[("other", url, ", allow_private: true")])).await;
    let id = response(&fleet, &json!({})).await;
    fleet.client.post(&format!("/v1/responses/{id}/cancel"), "").await;
    assert_eq!(other.next()["type"], "refused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_is_sent_until_it_is_taken_though_gateway_and_receiver_are_killed() {
    let Some(python) = python() else { return };
    let receiver = Receiver::start(&python, SECRET, 0);
    let port = receiver.port;
    let at = |path: &str| format!("http://127.0.0.1:{port}/{path}");
    let folder = Folder::new();
    let settings = settings(
        &folder,
        &[
            ("ok", at("ok"), ", allow_private: true, events: [response.cancelled]"),
            ("once", at("once"), ", allow_private: true, events: [job.completed]"),
            ("gone", at("gone"), ", allow_private: true, events: [response.cancelled]"),
            ("moved", at("moved"), ", allow_private: true, events: [response.completed]"),
        ],
    );
    drop(receiver);
    let mut fleet = Fleet::start(&settings).await;
    let id = response(&fleet, &json!({})).await;
    let canceled = fleet.client.post(&format!("/v1/responses/{id}/cancel"), "").await.json();
    assert_eq!(canceled["status"], "cancelled");
    // Nobody is there: it waits.
    counted(&fleet, "ok", "failed", 1.0).await;
    assert_eq!(metric(&fleet.admin, "gateway_webhooks_waiting").await, 2.0);
    fleet.server.signal(Signal::KILL);
    fleet.server.ended().await;
    let receiver = Receiver::start(&python, SECRET, port);
    fleet.restart();
    let mut told: Vec<Value> = (0..2).map(|_| receiver.next()).collect();
    told.sort_by_key(|told| told["path"].to_string());
    assert_eq!((&told[0]["path"], &told[1]["path"]), (&json!("/gone"), &json!("/ok")));
    assert!(told.iter().all(|told| told["type"] == "response.cancelled"));
    counted(&fleet, "gone", "dropped", 1.0).await;
    counted(&fleet, "ok", "delivered", 1.0).await;
    receiver.nothing_more();

    let _agent = fleet.join("a", &["--slots", "2"]).await;
    let chat = json!({"model": "flotilla-demo", "messages": [{"role": "user", "content": "Hi"}]});
    posted(&fleet, "/v1/jobs", &json!({"url": "/v1/chat/completions", "body": chat})).await;
    let first = receiver.next();
    assert_eq!(receiver.next(), first, "the same message, once more");
    counted(&fleet, "once", "delivered", 1.0).await;
    response(&fleet, &json!({})).await;
    counted(&fleet, "moved", "failed", 1.0).await;
    eventually_within(SENT, "all receivers to be asked", async || {
        (metric(&fleet.admin, "gateway_webhooks_waiting").await == 1.0).then_some(())
    })
    .await;
    let paths: Vec<String> = receiver.lines.try_iter().collect();
    assert!(paths.iter().any(|line| line.contains("/moved")), "{paths:?}");
    assert!(!paths.iter().any(|line| line.contains("/ok")), "no redirect is followed: {paths:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receiver_in_the_documentation_verifies_webhooks() {
    let Some(python) = python() else { return };
    let page = std::fs::read_to_string(root().join("docs/webhooks.md")).unwrap();
    let example = page.split("```python\n").nth(1).unwrap().split("```").next().unwrap();
    let folder = Folder::new();
    folder.write("orders.secret", format!("{SECRET}\n"));
    let port = free_port();
    assert!(example.contains("8099"));
    let mut command = Command::new(python);
    command.arg("-c").arg(example.replace("8099", &port.to_string()));
    command.env("OPENAI_API_KEY", "none").current_dir(folder.path()).stdout(Stdio::piped());
    let receiver = Receiver::spawn(command, port);
    let url = format!("http://127.0.0.1:{port}/");
    let fleet = Fleet::start(&settings(&folder, &[("orders", url, ", allow_private: true")])).await;
    let id = response(&fleet, &json!({})).await;
    fleet.client.post(&format!("/v1/responses/{id}/cancel"), "").await;
    let told = receiver.lines.recv_timeout(SENT).expect("no webhook in time");
    assert_eq!(told, format!("response.cancelled {id}"));
    counted(&fleet, "orders", "delivered", 1.0).await;
}

#[test]
fn a_receiver_on_a_private_address_is_refused_unless_that_is_allowed() {
    let folder = Folder::new();
    folder.write("hook.secret", SECRET);
    folder.write("join.key", "a-join-key-for-tests-only");
    for (url, more, message) in [
        ("https://10.1.2.3/hook", "", "webhooks[0]: its address is private"),
        ("https://[::1]/hook", "", "webhooks[0]: its address is private"),
        ("http://hooks.example.com/", "", "webhooks[0]: expected https://"),
        ("https://hooks.example.com/", ", events: [x.y]", "webhooks[0].events: x.y is unknown"),
        ("https://hooks.example.com/", ", secret_file: none", "webhooks[0].secret_file: "),
    ] {
        let secret = if more.contains("secret_file") { "" } else { ", secret_file: hook.secret" };
        let config = folder.write(
            "gateway.yaml",
            format!(
                "allow_anonymous: true\nnodes: {{join_key_file: join.key}}\nstore: {{dir: store}}\n\
                 webhooks: [{{name: a, url: '{url}'{secret}{more}}}]\n"
            ),
        );
        let checked = run("flotilla-gateway", &["check", "--config", config.to_str().unwrap()]);
        assert_eq!(checked.code, Some(64), "{}", checked.stderr);
        assert!(checked.stderr.contains(message), "{message}: {}", checked.stderr);
    }
}
