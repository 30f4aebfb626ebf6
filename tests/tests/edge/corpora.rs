//! Public collections of what breaks parsers, on their way through the gateway. What an agent makes
//! of them is tried in `tests/process/hostile`.

use std::path::PathBuf;

use bytes::Bytes;
use fleet_tests::client::Answer;
use fleet_tests::mock_node::MockNode;
use fleet_tests::process::Fleet;
use fleet_tests::root;
use hyper::Method;
use serde_json::{Value, json};

use super::join;

const CHAT: &str = "/v1/chat/completions";
const PARAMETERS: &str = "limits: {connections_per_ip_max: 2000}\n";

fn data(name: &str) -> Option<PathBuf> {
    let path = root().join("../shared/data").join(name);
    if !path.exists() {
        eprintln!("skipped: there is no {}", path.display());
        return None;
    }
    Some(path)
}

/// Files of the suite: name and content. A name begins with what must become of it.
fn json_files() -> Option<Vec<(String, Vec<u8>)>> {
    let folder = data("json-test-suite/test_parsing")?;
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read(entry.path()).unwrap())
    };
    let files: Vec<_> = std::fs::read_dir(folder).unwrap().map(read).collect();
    assert!(files.len() > 300);
    Some(files)
}

/// A refusal in OpenAI's form.
fn is_refused(name: &str, answer: &Answer) {
    assert!((400..500).contains(&answer.status), "{name}: {}", answer.status);
    assert_eq!(answer.header("content-type"), Some("application/json"), "{name}");
    assert!(!answer.error_code().is_empty(), "{name}");
}

/// Sends a body; what the node got, if it was asked, which then answers.
async fn pass(fleet: &Fleet, node: &mut MockNode, body: &[u8]) -> (Answer, Option<(Bytes, Value)>) {
    let (client, body) = (fleet.client.clone(), body.to_vec());
    let asking = tokio::spawn(async move { client.post(CHAT, body).await });
    tokio::pin!(asking);
    tokio::select! {
        answer = &mut asking => (answer.unwrap(), None),
        asked = node.asked() => {
            let got = (asked.raw.clone(), asked.body.clone());
            asked.answer("Hello");
            (asking.await.unwrap(), Some(got))
        }
    }
}

#[tokio::test]
async fn every_file_of_the_json_test_suite_is_refused_as_a_request() {
    let Some(files) = json_files() else { return };
    let fleet = Fleet::start(PARAMETERS).await;
    let mut node = join(&fleet, 4).await;
    for (name, content) in &files {
        let (answer, got) = pass(&fleet, &mut node, content).await;
        assert!(got.is_none(), "{name} reached the node");
        is_refused(name, &answer);
    }
}

#[tokio::test]
async fn what_is_json_passes_byte_for_byte_and_what_is_none_goes_nowhere() {
    let Some(files) = json_files() else { return };
    let fleet = Fleet::start(PARAMETERS).await;
    let mut node = join(&fleet, 4).await;
    let begin = br#"{"model":"flotilla-demo","messages":[],"metadata":"#;
    let (mut passed, mut refused) = (0, 0);
    for (name, content) in &files {
        let body = [begin, &content[..], b"}"].concat();
        let (answer, got) = pass(&fleet, &mut node, &body).await;
        match &got {
            Some((raw, _)) => {
                assert!(!name.starts_with("n_"), "{name} is no JSON");
                assert_eq!((answer.status, raw), (200, &Bytes::from(body)), "{name}");
                passed += 1;
            }
            None => {
                assert!(!name.starts_with("y_"), "{name} is JSON: {:?}", answer.body);
                is_refused(name, &answer);
                refused += 1;
            }
        }
    }
    eprintln!("{passed} passed on, {refused} refused");
}

#[tokio::test]
async fn naughty_strings_reach_the_node_byte_for_byte() {
    let Some(strings) = naughty_strings() else { return };
    let fleet = Fleet::start(PARAMETERS).await;
    let mut node = join(&fleet, 4).await;
    for text in &strings {
        let message = json!({"role": "user", "content": text, "name": text});
        let body =
            json!({"model": "flotilla-demo", "messages": [message], "user": text, "stop": text});
        let (answer, got) = pass(&fleet, &mut node, body.to_string().as_bytes()).await;
        let (raw, got) = got.unwrap_or_else(|| panic!("{text:?}: {:?}", answer.body));
        assert_eq!((answer.status, got), (200, body.clone()));
        assert_eq!(raw, body.to_string());
    }
    for text in &strings {
        let body = json!({"model": text, "messages": []});
        let (answer, got) = pass(&fleet, &mut node, body.to_string().as_bytes()).await;
        assert!(got.is_none());
        is_refused(text, &answer);
        let named: String = text.chars().take(128).collect();
        let message = answer.json()["error"]["message"].as_str().unwrap().to_string();
        assert!(message.contains(&named), "{message} does not name {named}");
    }
    let panicked = fleet.server.log().contains("panicked");
    assert!(!panicked && fleet.in_flight().await == [0; 4]);
}

fn naughty_strings() -> Option<Vec<String>> {
    let path = data("naughty-strings/blns.json")?;
    let strings: Vec<String> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert!(strings.len() > 400);
    Some(strings)
}

#[tokio::test]
async fn naughty_strings_in_headers_and_paths_hurt_nobody() {
    let Some(strings) = naughty_strings() else { return };
    let fleet = Fleet::start(PARAMETERS).await;
    let mut tried = 0;
    for text in &strings {
        for name in ["x-request-id", "x-flotilla-class", "x-flotilla-deadline-ms", "x-other"] {
            let asking = fleet.client.with_header(name, text);
            // What can be no header is not sent.
            let Ok(answer) = asking.try_send(Method::POST, CHAT, Bytes::from("{")).await else {
                continue;
            };
            is_refused(text, &answer);
            let id = answer.headers["x-request-id"].to_str().unwrap();
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            assert!(id.len() <= 64 && id.chars().all(is_plain), "{id}");
            tried += 1;
        }
        let asking = fleet.client.with_key(Some(text));
        if let Ok(answer) = asking.try_send(Method::GET, "/v1/models", Bytes::new()).await {
            assert_eq!(answer.status, 401, "{text:?} is a key");
        }
        let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = fleet.client.get(&format!("/v1/models/{encoded}")).await;
        // Without a name it is the list.
        if !text.is_empty() {
            is_refused(text, &answer);
        }
    }
    assert!(tried > 1000, "only {tried} headers could be sent");
    // One line for each request, whatever was in it.
    let log = fleet.server.log();
    let broken = log.lines().find(|line| serde_json::from_str::<Value>(line).is_err());
    assert_eq!(broken, None);
}
