//! The files of examples/openai, langchain, litellm and open-webui, with the real packages before a
//! real gateway. Of Open WebUI, which `make test-clients` runs, the recorded requests.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fleet_tests::client::Client;
use fleet_tests::process::Fleet;
use fleet_tests::raw::Raw;
use fleet_tests::{chat, eventually, root, streamed};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};

use crate::sdk::{gateway_with_limited_key, needs};

const ANSWER: &str = "The capital of France is Paris.\n";
const REFUSED: &str = "\"client\":\"127.0.0.1\",\"api\":\"chat_completions\",\
    \"tenant\":\"limited\",\"class\":\"standard\",\"outcome\":\"rate_limit_exceeded\"";

/// A program that runs an example, told about the gateway as the example's first lines say.
fn example(program: &Path, file: &Path, fleet: &Fleet, key: &str) -> Command {
    let mut command = Command::new(program);
    command.arg(file).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("OPENAI_BASE_URL", format!("{}/v1", fleet.url)).env("OPENAI_API_KEY", key);
    // Otherwise litellm fetches a list of prices.
    command.env("MODEL", "flotilla-demo").env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    command
}

fn printed(child: Child) -> String {
    let output = tokio::task::block_in_place(|| child.wait_with_output().unwrap());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn python(package: &str) -> PathBuf {
    let python = root().join(format!("target/sdk/{package}/bin/python"));
    needs(&python);
    python
}

async fn prints(package: &str, file: &str, expected: &str) {
    let fleet = Fleet::start("").await;
    let _node = fleet.join("a", &[]).await;
    let file = root().join("examples").join(file);
    let child = example(&python(package), &file, &fleet, &fleet.key).spawn().unwrap();
    assert_eq!(printed(child), expected);
}

/// A request whose body does not come keeps the key at its limit until the example has been
/// refused: the package's own retries are what makes it succeed.
async fn succeeds_once_the_key_is_free_again(program: &Path, file: &Path, expected: &str) {
    let (fleet, limited) = gateway_with_limited_key().await;
    let _node = fleet.join("a", &[]).await;
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {limited}\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n"
    );
    let client = Client::new(fleet.client.address(), Some(&limited));
    let question = chat("What is the capital of France?");
    let running = eventually("the key to be at its limit", async || {
        let elsewhere = "127.0.0.2".parse().unwrap();
        let mut raw = Raw::connect_from(elsewhere, fleet.client.address()).await.unwrap();
        assert!(raw.send(head.as_bytes()).await);
        (client.chat(&question).await.status == 429).then_some(raw)
    })
    .await;
    fleet.server.wait_for_line(REFUSED);
    let child = example(program, file, &fleet, &limited).spawn().unwrap();
    fleet.server.wait_for_line(REFUSED);
    drop(running);
    assert_eq!(printed(child), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_for_the_openai_package_streams_retries_and_calls_tools() {
    let expected = "The capital of France is Paris. (8 tokens)\ncapital='Paris'\n\
                    It is 10:20 in Madrid.\n404 model_not_found True\n";
    let file = root().join("examples/openai/chat.py");
    succeeds_once_the_key_is_free_again(&python("openai"), &file, expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_for_the_openai_package_for_node_does_the_same() {
    let folder = root().join("target/sdk/node");
    if !folder.join("done").exists() {
        eprintln!("skipped: this test needs the openai package for Node (npm; make setup-test)");
        return;
    }
    // Node looks for packages beside the script.
    let file = folder.join("chat.mjs");
    std::fs::copy(root().join("examples/openai/chat.mjs"), &file).unwrap();
    let expected = format!("{ANSWER}Paris\nIt is 10:20 in Madrid.\n404 model_not_found true\n");
    succeeds_once_the_key_is_free_again(Path::new("node"), &file, &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_for_langchain_streams_and_calls_tools() {
    let expected = format!("{ANSWER}capital='Paris'\nIt is 10:20 in Madrid.\n");
    prints("langchain", "langchain/chat.py", &expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_for_litellm_falls_back_to_another_gateway() {
    prints("litellm", "litellm/chat.py", &ANSWER.repeat(3)).await;
}

/// LiteLLM's proxy, which ends with its handle.
struct Proxy(Child);

impl Drop for Proxy {
    fn drop(&mut self) {
        // Its own children end on SIGTERM only.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn litellms_proxy_passes_requests_as_the_example_says() {
    let python = root().join("target/sdk/litellm-proxy/bin/python");
    if !python.exists() {
        eprintln!("skipped: this test needs LiteLLM's proxy (make setup-test)");
        return;
    }
    let fleet = Fleet::start("").await;
    let _node = fleet.join("a", &[]).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut command = Command::new(python);
    command.args(["-c", "from litellm import run_server; run_server()", "--config"]);
    command.arg(root().join("examples/litellm/config.yaml"));
    command.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
    command.env("FLOTILLA_URL", format!("{}/v1", fleet.url)).env("FLOTILLA_API_KEY", &fleet.key);
    command.env("LITELLM_MASTER_KEY", "sk-of-the-proxy").current_dir(fleet.folder().path());
    command.env("LITELLM_LOCAL_MODEL_COST_MAP", "True").stdin(Stdio::null());
    let _proxy = Proxy(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    eventually("the proxy", async || TcpStream::connect(address).await.ok()).await;

    let client = Client::new(address, Some("sk-of-the-proxy"));
    let models = client.get("/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "flotilla-demo", "{models}");
    let question = chat("What is the capital of France?");
    assert_eq!(client.chat(&question).await.content(), ANSWER.trim());
    let told = client.stream(&streamed(question.clone())).await.finish().await;
    assert_eq!((told.text.as_str(), told.done), (ANSWER.trim(), true));
    let stranger = Client::new(address, Some("sk-wrong"));
    // It looks for other keys in a database, and there is none.
    assert_eq!(stranger.chat(&question).await.status, 400);
}

/// What Open WebUI 0.12.4 sent with the settings of the example, when somebody signed up and asked
/// one question: the list of models, the chat, and the chat's title.
#[tokio::test(flavor = "multi_thread")]
async fn every_request_of_open_webui_is_answered() {
    let fleet = Fleet::start("").await;
    let _node = fleet.join("a", &[]).await;
    let recorded = std::fs::read_to_string(root().join("tests/sdk/open_webui.jsonl")).unwrap();
    let mut count = 0;
    for line in recorded.lines() {
        let request: Value = serde_json::from_str(line).unwrap();
        let headers = request["headers"].as_object().unwrap().iter();
        let client = headers.fold(fleet.client.clone(), |client, (name, value)| {
            client.with_header(name, value.as_str().unwrap())
        });
        let (path, body) = (request["path"].as_str().unwrap(), request["body"].as_str().unwrap());
        let answer = match request["method"].as_str() {
            Some("GET") => client.get(path).await,
            _ => client.post(path, body.to_string()).await,
        };
        assert_eq!(answer.status, 200, "{body}: {answer:?}");
        if body.contains("\"stream\":true") {
            let text = String::from_utf8(answer.body.to_vec()).unwrap();
            assert!(text.contains("\"usage\":{") && text.ends_with("data: [DONE]\n\n"), "{text}");
        }
        count += 1;
    }
    assert_eq!(count, 3);
}
