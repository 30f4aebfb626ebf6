//! The operator's choice of a chat template.

use std::path::PathBuf;

use fleet_tests::process::{Agent, Fleet, Folder, run};
use fleet_tests::{chat, demo_model};
use serde_json::{Value, json};

/// The demo model, with `name` instead of the key of its chat template: it has none.
fn without_template(folder: &Folder) -> PathBuf {
    let (mut file, key) = (std::fs::read(demo_model()).unwrap(), b"tokenizer.chat_template");
    let at = file.windows(key.len()).position(|window| window == key).unwrap();
    file[at + key.len() - 1] = b'_';
    folder.write("flotilla-demo.gguf", file)
}

async fn prompt(agent: &Agent, request: &Value) -> String {
    let rendered = agent.client.post("/apply-template", request.to_string()).await;
    assert_eq!(rendered.status, 200, "{}", String::from_utf8_lossy(&rendered.body));
    rendered.json()["prompt"].as_str().unwrap().into()
}

const SHOUT: &str = "{% for message in messages %}{{ message.content | upper }}!{% endfor %}";

#[tokio::test]
async fn the_operators_template_replaces_that_of_the_model_file() {
    let folder = Folder::new();
    let file = folder.write("t.jinja", SHOUT);
    for flags in [["--chat-template", SHOUT], ["--chat-template-file", file.to_str().unwrap()]] {
        let agent = Agent::start(&flags).await;
        assert_eq!(prompt(&agent, &chat("Hello")).await, "HELLO!");
        assert_eq!(agent.client.chat(&chat("Hello")).await.status, 200);
        let mut own = chat("Hello");
        own["chat_template"] = json!("{{ messages }}");
        for path in ["/v1/chat/completions", "/apply-template"] {
            let refused = agent.client.post(path, own.to_string()).await;
            assert_eq!((refused.status, refused.error_code().as_str()), (400, "invalid_value"));
            let message = refused.json()["error"]["message"].to_string();
            assert!(message.contains("--allow-chat-template"), "{message}");
        }
    }
}

#[tokio::test]
async fn requests_bring_a_template_where_the_operator_allows_it() {
    let fleet = Fleet::start("").await;
    let node = fleet.join("a", &["--allow-chat-template"]).await;
    let mut own = chat("Hello");
    own["chat_template"] = json!(SHOUT);
    assert_eq!(prompt(&node, &own).await, "HELLO!");
    for client in [&node.client, &fleet.client] {
        let said = client.chat(&own).await;
        assert_eq!(said.status, 200);
        // "HELLO!" has at most as many tokens as bytes, and one at the beginning.
        assert!(said.json()["usage"]["prompt_tokens"].as_u64().unwrap() <= 7);
        let mut invalid = own.clone();
        invalid["chat_template"] = json!("{% for %}");
        let refused = client.chat(&invalid).await;
        assert_eq!((refused.status, refused.error_code().as_str()), (400, "invalid_value"));
        assert_eq!(refused.json()["error"]["param"], "chat_template");
    }
}

#[tokio::test]
async fn a_template_that_fails_is_to_blame_and_not_the_messages() {
    let broken = "{{ messages | nothing }}";
    let refusing = "{{ raise_exception('roles must alternate') }}";
    let agent = Agent::start(&["--allow-chat-template", "--chat-template", broken]).await;
    for (own, param, said) in [
        (None, Value::Null, "the chat template of this model failed"),
        (Some(broken), json!("chat_template"), "the chat template of the request failed"),
        (Some(refusing), json!("messages"), "refused the messages: roles must alternate"),
    ] {
        let mut request = chat("Hello");
        request["chat_template"] = json!(own);
        let refused = agent.client.chat(&request).await;
        assert_eq!((refused.status, refused.error_code().as_str()), (400, "chat_template_error"));
        let error = refused.json()["error"].clone();
        assert_eq!(error["param"], param, "{error}");
        assert!(error["message"].as_str().unwrap().contains(said), "{error}");
    }
}

#[tokio::test]
async fn chatml_replaces_a_missing_template_only_where_the_operator_says_so() {
    let folder = Folder::new();
    let model = without_template(&folder);
    let refusing = Agent::start_with_model(&model, &[]).await;
    assert_eq!(refusing.client.chat(&chat("Hello!")).await.error_code(), "no_chat_template");
    let agent = Agent::start_with_model(&model, &["--chatml-fallback"]).await;
    let expected = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt(&agent, &chat("Hello!")).await, expected);
    assert_eq!(agent.client.chat(&chat("Hello!")).await.status, 200);
}

#[test]
fn a_template_with_a_mistake_is_refused_at_the_start() {
    let folder = Folder::new();
    let file = folder.write("t.jinja", "{% if %}");
    let (model, file) = (demo_model(), file.to_str().unwrap().to_string());
    let model = model.to_str().unwrap();
    for (flags, said) in [
        (["--chat-template", "{{ messages"], "--chat-template: "),
        (["--chat-template-file", &file], "--chat-template-file: "),
        (["--chat-template-file", "/nonexistent"], "/nonexistent"),
        (["--chat-template", "vicuna"], "chatml"),
    ] {
        let ran = run("flotilla-agent", &["serve", model, flags[0], flags[1]]);
        assert_eq!(ran.code, Some(65), "{}", ran.stderr);
        assert!(ran.stderr.contains(said), "{}", ran.stderr);
    }
}

#[tokio::test]
async fn a_mistake_in_the_template_of_the_model_file_is_logged_at_the_start() {
    let folder = Folder::new();
    let mut file = std::fs::read(demo_model()).unwrap();
    let start = b"{%- for";
    let key = b"tokenizer.chat_template";
    let after = file.windows(key.len()).position(|window| window == key).unwrap();
    let found = file[after..].windows(2).position(|window| window == b"{%").unwrap();
    file[after + found..after + found + start.len()].copy_from_slice(b"{%- (((");
    let model = folder.write("flotilla-demo.gguf", file);
    let agent = Agent::start_with_model(&model, &[]).await;
    let line = agent.server.wait_for_line("chat template is invalid");
    assert!(line.contains("--chat-template-file"), "{line}");
    assert_eq!(agent.client.chat(&chat("Hi")).await.error_code(), "no_chat_template");
}
