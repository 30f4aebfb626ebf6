//! A real fleet under load, and a real Prometheus that scrapes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fleet_tests::client::Client;
use fleet_tests::mock_node::MockNode;
use fleet_tests::process::{Agent, Fleet, Folder};
use fleet_tests::{chat, eventually, streamed};
use serde_json::{Value, json};
use tokio::task::{JoinHandle, JoinSet};

use super::expressions;
use super::prometheus::{Prometheus, is_clean};

/// An external endpoint with prices: for the nodes' model, and for one that no node has.
fn config(url: &str) -> String {
    format!(
        "nodes: {{join_key_file: join.key, price_per_hour: 0.01}}\n\
         external: [{{name: gpu, url: '{url}', models: {{flotilla-demo: big/demo, gpu-only: big/demo}}, \
         prompt_price_per_million: 100, completion_price_per_million: 400}}]\n"
    )
}

/// A store, and a receiver of webhooks.
fn store(folder: &Folder) -> String {
    let secret = folder.write("hook.secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
    format!(
        "store: {{dir: '{}'}}\nwebhooks: [{{name: hook, url: 'https://example.com/', secret_file: '{}'}}]\n",
        folder.path().join("store").display(),
        secret.display()
    )
}

/// The endpoint answers whatever it is asked.
fn answers(mut gpu: MockNode) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            let message = json!({"role": "assistant", "content": "From the GPU."});
            let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
            let usage = json!({"prompt_tokens": 900, "completion_tokens": 40, "total_tokens": 940});
            let body = json!({"model": "big/demo", "choices": [choice], "usage": usage});
            gpu.asked().await.reply(200, "application/json", body.to_string());
        }
    })
}

/// Long enough to be remembered by where it was sent.
fn conversation(turn: usize) -> Value {
    let mut request = chat(&format!("What is {} plus 2?", turn % 7));
    let system = "You answer in one short sentence. ".repeat(12);
    let system = json!({"role": "system", "content": system});
    request["messages"].as_array_mut().unwrap().insert(0, system);
    request
}

/// Requests of every kind until `stop`.
async fn traffic(client: Client, stop: Arc<AtomicBool>) {
    let mut turn = 0;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let class = ["interactive", "standard", "batch"][turn % 3];
        let client = client.with_header("x-flotilla-class", class);
        client.stream(&streamed(chat("Count from 1 to 20."))).await.finish().await;
        assert_eq!(client.chat(&conversation(turn)).await.status, 200);
        let mut asked = chat("Hello?");
        asked["model"] = "gpu-only".into();
        assert_eq!(client.chat(&asked).await.status, 200);
        asked["model"] = "nobody-has-this".into();
        assert_eq!(client.chat(&asked).await.status, 404);
    }
}

struct Watched {
    fleet: Fleet,
    agents: [Agent; 2],
    gpu: JoinHandle<()>,
    stop: Arc<AtomicBool>,
    load: JoinSet<()>,
    _folder: Folder,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.gpu.abort();
    }
}

impl Watched {
    async fn start() -> Self {
        let (url, gpu) = MockNode::external().await;
        let gpu = answers(gpu);
        let folder = Folder::new();
        let fleet = Fleet::start(&(config(&url) + &store(&folder))).await;
        let agents = [fleet.join("one", &[]).await, fleet.join("two", &[]).await];
        eventually("the endpoint to be ready", async || {
            let health = fleet.health().await;
            (health["external"]["ready"] == 1).then_some(())
        })
        .await;
        let (stop, mut load) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        for _ in 0..3 {
            load.spawn(traffic(fleet.client.clone(), stop.clone()));
        }
        Self { fleet, agents, gpu, stop, load, _folder: folder }
    }

    async fn is_done(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.load.join_next().await {
            ended.unwrap();
        }
    }
}

/// Rates of a second's scrapes need some of them, under a load that goes on.
const WITHIN: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn every_expression_has_data_while_a_real_prometheus_scrapes_a_real_fleet() {
    let mut watched = Watched::start().await;
    let agents = watched.agents.each_ref().map(|agent| agent.client.address());
    let Some(prometheus) = Prometheus::start(watched.fleet.admin.address(), &agents) else {
        return;
    };
    let mut missing = expressions::all();
    if !std::path::Path::new("/proc/pressure/memory").exists() {
        eprintln!("skipped: expressions of pressure, which this kernel does not measure");
        missing.retain(|expression| !expression.text.contains("pressure"));
    }
    // Only a gateway with tls.acme has these; tests/tests/process/acme.rs reads them.
    missing.retain(|expression| !expression.text.contains("gateway_certificate_"));
    let begun = std::time::Instant::now();
    while !missing.is_empty() && begun.elapsed() < WITHIN {
        let mut still = Vec::new();
        for expression in missing {
            let data = prometheus.ask(&expression.text).await;
            let data = data.unwrap_or_else(|why| panic!("{expression:?}: {why}"));
            if !data.iter().any(|value| value.is_finite()) {
                still.push(expression);
            }
        }
        missing = still;
    }
    assert!(missing.is_empty(), "without data: {missing:#?}");
    assert_eq!(prometheus.broken_rules().await, Vec::<String>::new());
    let rising = prometheus.ask("count(ALERTS{alertstate=\"firing\"})").await.unwrap();
    assert_eq!(rising, Vec::<f64>::new(), "a healthy fleet raises no alert");
    watched.is_done().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_fleet_under_load_tells_is_clean_and_is_what_the_reference_says() {
    let mut watched = Watched::start().await;
    let [one, _] = &watched.agents;
    let text = async |client: &Client| {
        String::from_utf8(client.get("/metrics").await.body.to_vec()).unwrap()
    };
    // Nothing of a client gets into a label: a model that nobody has is 'unknown'.
    let waited_for = [
        "gateway_spent_total{endpoint=\"external:gpu\"",
        "model=\"unknown\",outcome=\"model_not_found\",tenant=\"test\"",
    ];
    let gateway =
        eventually("what external endpoints cost, and a model that nobody has", async || {
            let told = text(&watched.fleet.admin).await;
            waited_for.iter().all(|part| told.contains(part)).then_some(told)
        })
        .await;
    let agent = text(&one.client).await;
    watched.is_done().await;
    assert!(!gateway.contains("nobody-has-this"), "{gateway}");
    for (told, listed) in
        [(&gateway, super::reference::gateway()), (&agent, super::reference::agent())]
    {
        is_clean(told);
        let types = told.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        for line in types {
            let (name, kind) = line.split_once(' ').unwrap();
            let made = listed.iter().find(|made| made.name == name);
            assert_eq!(made.map(|made| made.kind), Some(kind), "{name}");
        }
    }
}
