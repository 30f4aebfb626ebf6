//! External endpoints that say by themselves what they serve and whether they are ready, each as
//! its engine does.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fleet_tests::process::Fleet;
use fleet_tests::{chat, eventually, eventually_within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

type Answers = Arc<Mutex<BTreeMap<&'static str, (u16, String)>>>;
/// How often the list of models was asked for.
type Asked = Arc<AtomicUsize>;

/// An engine: what it answers at each path; 404 elsewhere.
struct Engine {
    url: String,
    answers: Answers,
    asked: Asked,
}

impl Engine {
    async fn start(version: &str, answers: &[(&'static str, u16, Value)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}{version}", listener.local_addr().unwrap());
        let engine = Self { url, answers: Answers::default(), asked: Asked::default() };
        answers.iter().for_each(|(path, status, body)| engine.answers(path, *status, body));
        let (all, asked) = (engine.answers.clone(), engine.asked.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, all.clone(), asked.clone()));
            }
        });
        engine
    }

    /// From now on it answers this.
    fn answers(&self, path: &'static str, status: u16, body: &Value) {
        self.answers.lock().unwrap().insert(path, (status, body.to_string()));
    }

    async fn gateway(&self, more: &str) -> Fleet {
        Fleet::start(&format!("external: [{{name: gpu, url: '{}'{more}}}]\n", self.url)).await
    }
}

/// One request. A chat is answered with the name of the model that it asks for.
async fn serve(mut stream: TcpStream, answers: Answers, asked: Asked) {
    let mut request = String::new();
    let mut buffer = [0; 4096];
    let body = loop {
        let Ok(read @ 1..) = stream.read(&mut buffer).await else { return };
        request.push_str(&String::from_utf8_lossy(&buffer[..read]));
        let Some((head, body)) = request.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
            break body;
        }
    };
    let path = request.split(' ').nth(1).unwrap();
    asked.fetch_add(path.ends_with("/models").into(), Ordering::Relaxed);
    let known = answers.lock().unwrap().get(path).cloned();
    let (status, answer) = known.unwrap_or_else(|| match path.ends_with("/chat/completions") {
        true => (200, echo(body)),
        false => (404, String::new()),
    });
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        answer.len()
    );
    let _ = stream.write_all(format!("{head}{answer}").as_bytes()).await;
}

fn echo(body: &str) -> String {
    let asked: Value = serde_json::from_str(body).unwrap();
    let message = json!({"role": "assistant", "content": asked["model"]});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2});
    json!({"object": "chat.completion", "choices": [choice], "usage": usage}).to_string()
}

fn openai(names: &[&str]) -> Value {
    let models: Vec<Value> =
        names.iter().map(|name| json!({"id": name, "object": "model"})).collect();
    json!({"object": "list", "data": models})
}

async fn is_ready(gateway: &Fleet) -> bool {
    gateway.health().await["external"]["ready"] == 1
}

async fn ready(gateway: &Fleet) {
    eventually("the endpoint to be ready", async || is_ready(gateway).await.then_some(())).await;
}

async fn served(gateway: &Fleet) -> Vec<String> {
    let listed = gateway.client.get("/v1/models").await.json();
    let names = listed["data"].as_array().unwrap().iter();
    names.map(|model| model["id"].as_str().unwrap().to_string()).collect()
}

async fn asked_for(gateway: &Fleet, model: &str) -> String {
    let mut request = chat("Hi");
    request["model"] = model.into();
    gateway.client.chat(&request).await.content()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_models_that_an_engine_lists_are_served_as_they_come_and_go() {
    let engine = Engine::start("/v1", &[("/v1/models", 200, openai(&["b", "org/a"]))]).await;
    let gateway = engine.gateway("").await;
    ready(&gateway).await;
    assert_eq!(served(&gateway).await, ["b", "org/a"]);
    assert_eq!(asked_for(&gateway, "org/a").await, "org/a");
    engine.answers("/v1/models", 200, &openai(&["b", "c"]));
    eventually("the new list", async || (served(&gateway).await == ["b", "c"]).then_some(())).await;
    assert_eq!(asked_for(&gateway, "c").await, "c");
    let mut request = chat("Hi");
    request["model"] = "org/a".into();
    assert_eq!(gateway.client.chat(&request).await.error_code(), "model_not_found");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_has_only_ollamas_list_is_understood() {
    let tags = json!({"models": [{"name": "llama3:latest", "size": 1}]});
    let engine = Engine::start("/v1", &[("/api/tags", 200, tags)]).await;
    let gateway = engine.gateway("").await;
    ready(&gateway).await;
    assert_eq!(served(&gateway).await, ["llama3:latest"]);
    // Configured without the tag, it is the same model, and nobody is warned.
    let gateway = engine.gateway(", models: {small: llama3}").await;
    ready(&gateway).await;
    assert_eq!(asked_for(&gateway, "small").await, "llama3");
    assert!(!gateway.server.log().contains("models not listed"), "{}", gateway.server.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_loads_its_model_or_is_dead_is_not_ready_though_it_lists_it() {
    let listed = ("/v1/models", 200, openai(&["m"]));
    let loading = ("/health", 503, json!({"error": {"message": "Loading model"}}));
    let engine = Engine::start("/v1", &[listed, loading]).await;
    let gateway = engine.gateway("").await;
    gateway.server.wait_for_line("the endpoint responds with status 503");
    assert!(!is_ready(&gateway).await);
    engine.answers("/health", 200, &json!({"status": "ok"}));
    ready(&gateway).await;
    assert_eq!(asked_for(&gateway, "m").await, "m");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_too_busy_to_list_its_models_serves_those_that_it_listed_before() {
    let engine = Engine::start("/v1", &[("/v1/models", 429, json!({}))]).await;
    let gateway = engine.gateway("").await;
    gateway.server.wait_for_line("the endpoint is too busy to list its models");
    assert!(!is_ready(&gateway).await);
    engine.answers("/v1/models", 200, &openai(&["m"]));
    ready(&gateway).await;
    engine.answers("/v1/models", 429, &json!({}));
    let asked = engine.asked.load(Ordering::Relaxed);
    // Once the second of these checks has begun, the first has been taken into account.
    eventually_within(Duration::from_secs(60), "two checks", async || {
        (engine.asked.load(Ordering::Relaxed) >= asked + 2).then_some(())
    })
    .await;
    assert!(is_ready(&gateway).await);
    assert_eq!(asked_for(&gateway, "m").await, "m");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_no_engine_is_not_ready() {
    // Neither a list nor a health check: something else listens there.
    let engine = Engine::start("/v1", &[]).await;
    let gateway = engine.gateway(", models: [m]").await;
    gateway.server.wait_for_line("the endpoint responds with status 404");
    // Without a list, but healthy, as engines of one model are; what it serves must be configured.
    engine.answers("/health", 200, &json!({}));
    ready(&gateway).await;
    let unknown = engine.gateway("").await;
    unknown.server.wait_for_line("the endpoint lists no models: name them in 'models'");
    assert!(!is_ready(&unknown).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configured_model_that_the_engine_does_not_list_is_named_in_the_log_and_served() {
    let engine = Engine::start("/v3", &[("/v3/models", 200, openai(&["other"]))]).await;
    let gateway = engine.gateway(", models: {m: mine, o: other}").await;
    ready(&gateway).await;
    let line = gateway.server.wait_for_line("models not listed by endpoint");
    assert!(line.contains("mine") && !line.contains("other"), "{line}");
    assert_eq!(asked_for(&gateway, "m").await, "mine");
}
