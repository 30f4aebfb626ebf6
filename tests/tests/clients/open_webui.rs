//! Open WebUI with the settings of `examples/open-webui`, and two of its users in Chromium.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use fleet_tests::client::Client;
use fleet_tests::mock_node::{Asked, MockNode};
use fleet_tests::process::{Fleet, Server, metric};
use fleet_tests::{eventually, root};
use inference_protocol::resume::Usage;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

use crate::program::Home;
use crate::script::{MODEL, Part, node, text};
use crate::web_page::{PASSWORD, WebPage};

const USAGE: Usage = Usage { prompt: 9, completion: 5, cached: 0 };

/// Settings that the example leaves to its user, and those of a test.
const SETTINGS: [(&str, &str); 6] = [
    // The example says to set this when the gateway has the alias.
    ("TASK_MODEL_EXTERNAL", "titles"),
    ("WEBUI_SECRET_KEY", "a-secret-of-32-bytes-for-tests-only"),
    // As in its slim image: what the other images need is not installed.
    ("USE_SLIM_DOCKER", "true"),
    ("OFFLINE_MODE", "true"),
    ("ENABLE_VERSION_UPDATE_CHECK", "false"),
    ("ANONYMIZED_TELEMETRY", "false"),
];

/// A gateway with a key for many users, and an alias for titles of chats.
async fn fleet(model: &str) -> Fleet {
    let aliases = format!("aliases: {{titles: {{model: {model}, class: batch}}}}\n");
    let nodes = "nodes: {join_key_file: join.key}\nhealth: {probe_interval_ms: 0}\n";
    Fleet::start(&format!("  users: header\n{nodes}{aliases}")).await
}

/// The variables that the example sets.
fn example() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(root().join("examples/open-webui/compose.yaml")).unwrap();
    let compose: Value = serde_yaml::from_str(&text).unwrap();
    let variables = compose["services"]["open-webui"]["environment"].as_object().unwrap().iter();
    variables.map(|(name, value)| (name.clone(), value.as_str().unwrap().into())).collect()
}

/// Open WebUI with an administrator and two users, Ada and Bob.
struct OpenWebUi {
    _server: Server,
    _home: Home,
    url: String,
}

impl OpenWebUi {
    async fn start(fleet: &Fleet) -> Self {
        let home = Home::new();
        // It does not log the port that it gets.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let program = root().join("target/clients/open-webui/bin/open-webui");
        let mut command = home.server(&program);
        command.args(["serve", "--host", "127.0.0.1", "--port", &address.port().to_string()]);
        command.envs(example()).envs(SETTINGS).env("DATA_DIR", home.work());
        command.env("OPENAI_API_BASE_URL", format!("{}/v1", fleet.url));
        command.env("OPENAI_API_KEY", &fleet.key);
        let server = Server::spawn(command);
        eventually("Open WebUI", async || TcpStream::connect(address).await.ok()).await;
        create_accounts(address).await;
        Self { _server: server, _home: home, url: format!("http://{address}/") }
    }

    fn sign_in(&self, name: &str) -> WebPage {
        WebPage::sign_in(&self.url, &format!("{name}@example.com"))
    }
}

/// The first account that signs up is the administrator, who adds the others.
async fn create_accounts(address: SocketAddr) {
    let account = |name: &str| {
        let email = format!("{name}@example.com");
        json!({"name": name, "email": email, "password": PASSWORD, "role": "user"})
    };
    let stranger = Client::new(address, None);
    let answer = stranger.post("/api/v1/auths/signup", account("root").to_string()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let root = stranger.with_key(answer.json()["token"].as_str());
    for name in ["ada", "bob"] {
        let answer = root.post("/api/v1/auths/add", account(name).to_string()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}

/// The last message of a request.
fn question(asked: &Asked) -> &str {
    let messages = asked.body["messages"].as_array().unwrap();
    messages.last().unwrap()["content"].as_str().unwrap()
}

/// Waits until so many requests wait in the gateway's queue.
async fn waits(fleet: &Fleet, depth: u64) {
    eventually("requests to wait", async || {
        (fleet.health().await["queue_depth"] == depth).then_some(())
    })
    .await;
}

/// The users, as pseudonyms, and the classes of so many chat completions, as they ended.
async fn requests(fleet: &Fleet, count: usize) -> Vec<(String, String)> {
    let said = |line: &Value, field: &str| line[field].as_str().unwrap().to_string();
    eventually("lines in the access log", async || {
        let log = fleet.server.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let chats = lines.filter(|line| line["api"] == "chat_completions");
        let all: Vec<_> = chats.map(|line| (said(&line, "user"), said(&line, "class"))).collect();
        (all.len() == count).then_some(all)
    })
    .await
}

fn asks_for_a_title(asked: &Asked) -> bool {
    question(asked).starts_with("### Task:\nGenerate a concise title")
}

fn titled(asked: Asked, title: &str) {
    asked.answer(&json!({ "title": title }).to_string());
}

/// The first message of a chat, and the request for the chat's title. They come in any order.
async fn chat_and_title(node: &mut MockNode) -> (Asked, Asked) {
    let (one, other) = (node.asked().await, node.asked().await);
    let is_swapped = asks_for_a_title(&one);
    let (chat, title) = if is_swapped { (other, one) } else { (one, other) };
    assert!(asks_for_a_title(&title) && !asks_for_a_title(&chat), "{}", chat.body);
    (chat, title)
}

/// Ada's node is lost in the middle of her response. The other node has one slot for both users.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Open WebUI: make test-clients"]
async fn open_webui_shows_two_users_whole_answers_while_a_node_is_lost() {
    let fleet = fleet(MODEL).await;
    let mut first = node(&fleet, "first", 2).await;
    let site = OpenWebUi::start(&fleet).await;
    let (mut ada, mut bob) = (site.sign_in("ada"), site.sign_in("bob"));

    let parts: Vec<Part> = text(&["The tide ", "rises, ", "the tide ", "falls."]);
    ada.ask("Tell me about tides");
    let (asked, title) = chat_and_title(&mut first).await;
    titled(title, "Ebb and flood");
    let stream = asked.stream();
    for (token, (delta, finish)) in parts[..3].iter().enumerate() {
        stream.say_delta(token as u32, delta, finish).await;
    }
    ada.answers_are(&["The tide rises,"]);
    ada.is_titled("Ebb and flood");
    let mut second = node(&fleet, "second", 1).await;
    first.dies();
    let asked = second.asked().await;
    assert_eq!(asked.resume.choices[0].events, 3);
    bob.ask("Why is the sea salty?");
    waits(&fleet, 2).await;
    asked.stream().say_all(&parts[3..], USAGE).await;
    ada.answers_are(&["The tide rises, the tide falls."]);

    // The title of Bob's chat waits for that chat, and for Ada's next one, which arrives later.
    let asked = second.asked().await;
    assert_eq!(question(&asked), "Why is the sea salty?");
    ada.ask("And at night?");
    waits(&fleet, 2).await;
    asked.stream().say_all(&text(&["Rivers ", "bring salt."]), USAGE).await;
    bob.answers_are(&["Rivers bring salt."]);
    let asked = second.asked().await;
    assert_eq!(question(&asked), "And at night?");
    assert_eq!(asked.body["messages"][1]["content"], "The tide rises, the tide falls.");
    asked.stream().say_all(&text(&["The ", "same."]), USAGE).await;
    ada.answers_are(&["The tide rises, the tide falls.", "The same."]);
    let title = second.asked().await;
    assert!(asks_for_a_title(&title), "{}", title.body);
    titled(title, "Salt water");
    bob.is_titled("Salt water");

    ada.stayed_here();
    bob.stayed_here();
    assert_eq!(metric(&fleet.admin, "gateway_users{tenant=\"test\"}").await, 2.0);
    let requests = requests(&fleet, 5).await;
    let users: BTreeSet<_> = requests.iter().map(|(user, _)| user).collect();
    let classes: Vec<_> = requests.iter().map(|(_, class)| class.as_str()).collect();
    assert_eq!(users.len(), 2, "{requests:?}");
    assert_eq!(classes, ["batch", "standard", "standard", "standard", "batch"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Open WebUI: make test-clients"]
async fn open_webui_shows_the_answers_of_a_real_node() {
    let fleet = fleet("flotilla-demo").await;
    let _real = fleet.join("real", &[]).await;
    let site = OpenWebUi::start(&fleet).await;
    for name in ["ada", "bob"] {
        let mut page = site.sign_in(name);
        page.ask("What is the capital of France?");
        page.answers_are(&["The capital of France is Paris."]);
        page.stayed_here();
    }
    // Each of two users sent a chat and asked for its title.
    let requests = BTreeSet::from_iter(requests(&fleet, 4).await);
    assert_eq!(requests.len(), 4, "{requests:?}");
}
