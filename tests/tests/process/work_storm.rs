//! A storm of stored work: two gateways that share a PostgreSQL run jobs, responses in the
//! background and batches, while gateways, nodes and the database are killed and the database is
//! slow. What was acknowledged ends once, with the right content, nothing is made more often than
//! faults explain, and no budget is exceeded. Which fault comes when is a function of the seed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fleet_tests::batches::{create, line, lines_of, upload};
use fleet_tests::client::{Answer, Client};
use fleet_tests::events::Events;
use fleet_tests::mock_node::{Asked, MockNode, healthy};
use fleet_tests::postgres::{Postgres, SlowLink};
use fleet_tests::process::Fleet;
use fleet_tests::{chat, eventually_within};
use hyper::Method;
use inference_protocol::resume::{Mark, Usage};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::interval;

use super::shared_store::{Shared, until_available};

mod spending;

use spending::Spending;

/// Faults of a storm, unless `FLOTILLA_STORM_FAULTS` says otherwise.
const FAULTS: usize = 12;
/// What is asked for during each fault.
const ASKED: usize = 5;
/// Nodes of a gateway, and slots of each.
const NODES: usize = 2;
const SLOTS: u32 = 2;
/// Most tokens of a response.
const TOKENS_MAX: usize = 200;
/// Tokens of a tenant's budget, which is used up during the storm.
const BUDGET: usize = 4000;
/// Time for a token.
const PACE: Duration = Duration::from_millis(8);
/// Longest time until everything has ended.
const ENDED: Duration = Duration::from_secs(180);

/// How many tokens the response to a prompt has.
fn length(prompt: u64) -> usize {
    10 + (prompt * 37 % (TOKENS_MAX as u64 - 10)) as usize
}

fn word(prompt: u64, token: usize) -> String {
    format!("{prompt}.{token} ")
}

fn text(prompt: u64) -> String {
    (0..length(prompt)).map(|token| word(prompt, token)).collect()
}

/// What nodes have done, and what went wrong there.
#[derive(Debug, Default)]
struct Made {
    tokens: watch::Sender<usize>,
    wrong: Mutex<Vec<String>>,
}

/// Makes a response, or what is left of it.
async fn make(asked: Asked, made: Arc<Made>) {
    let last = asked.body["messages"].as_array().and_then(|messages| messages.last());
    let prompt: u64 = last.unwrap()["content"].as_str().unwrap().parse().unwrap();
    let known = asked.resume.choices.first().map_or(0, |choice| choice.tokens.len());
    let right = asked
        .resume
        .choices
        .iter()
        .all(|choice| choice.tokens.iter().zip(0..).all(|(token, place)| *token == place));
    if !right || known > length(prompt) {
        made.wrong.lock().unwrap().push(format!("{prompt} continues after {:?}", asked.resume));
    }
    let skipped = asked.resume.choices.first().map_or(0, |choice| choice.events as usize);
    let is_streamed = asked.body["stream"] == true;
    // The prompt has a token.
    let granted = asked.resume.usage_max.map_or(usize::MAX, |max| max as usize - 1);
    let length = length(prompt).min(granted);
    let (stream, mut pace) = (asked.stream(), interval(PACE));
    for token in 0..length {
        let mut event = String::new();
        if token >= known {
            pace.tick().await;
            made.tokens.send_modify(|tokens| *tokens += 1);
            Mark::Tokens { choice: 0, tokens: vec![token as u32] }.write(&mut event);
        }
        match is_streamed {
            true if token >= skipped => event += &delta(prompt, token),
            true => {}
            false => event.push('\n'),
        }
        if event.len() > 1 && !stream.offer(event).await {
            return;
        }
    }
    let _ = stream.offer(end(prompt, length, is_streamed)).await;
}

fn delta(prompt: u64, token: usize) -> String {
    let finish = (token + 1 == length(prompt)).then_some("stop");
    let choice =
        json!({"index": 0, "delta": {"content": word(prompt, token)}, "finish_reason": finish});
    format!("data: {}\n\n", json!({"choices": [choice]}))
}

fn end(prompt: u64, length: usize, is_streamed: bool) -> String {
    let (mut event, completion) = (String::new(), length as u64);
    Mark::Usage(Usage { prompt: 1, completion, cached: 0 }).write(&mut event);
    let usage = json!({"prompt_tokens": 1, "completion_tokens": completion});
    if is_streamed {
        return format!(
            "{event}data: {}\n\ndata: [DONE]\n\n",
            json!({"choices": [], "usage": usage})
        );
    }
    let message = json!({"role": "assistant", "content": text(prompt)});
    let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
    format!("{event}data: {}\n\n", json!({"choices": [choice], "usage": usage}))
}

/// A node that makes responses until it is killed.
struct Node(JoinHandle<()>);

impl Node {
    async fn join(gateway: &Fleet, name: &str, made: &Arc<Made>) -> Self {
        let mut node = MockNode::join(gateway.client.address(), healthy(name, SLOTS)).await;
        gateway.wait_for_slots(name).await;
        let made = made.clone();
        Self(tokio::spawn(async move {
            let mut making = tokio::task::JoinSet::new();
            while let Some(asked) = node.next().await {
                making.spawn(make(asked, made.clone()));
            }
        }))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Job,
    Response,
    Batch,
}

/// Work that a gateway has acknowledged.
#[derive(Debug)]
struct Work {
    kind: Kind,
    id: String,
    prompts: Vec<u64>,
    /// True if its end was asked for.
    is_canceled: bool,
}

impl Work {
    fn path(&self) -> String {
        let all = match self.kind {
            Kind::Job => "jobs",
            Kind::Response => "responses",
            Kind::Batch => "batches",
        };
        format!("/v1/{all}/{}", self.id)
    }
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Gateway(usize),
    Node(usize),
    Database,
    SlowDatabase,
}

struct Storm {
    server: Postgres,
    link: SlowLink,
    _shared: Shared,
    gateways: [Fleet; 2],
    nodes: [VecDeque<Node>; 2],
    made: Arc<Made>,
    random: Pcg64,
    joined: usize,
    asked: u64,
    work: Vec<Work>,
    spending: Spending,
}

impl Storm {
    /// `None` without a server.
    async fn start(seed: u64) -> Option<Self> {
        let server = Postgres::start(&[]).await?;
        let link = SlowLink::start(server.port).await;
        let url = server.database("flotilla");
        let through = url.replace(&format!(":{}", server.port), &format!(":{}", link.port));
        let shared = Shared::new(&through);
        let (key, keys) = shared.key(&format!("tokens_per_month: {BUDGET}"));
        let first = Fleet::start(&format!("keys_file: {keys}\n{}", shared.store())).await;
        let gateways = [first.another(), first];
        let addresses = gateways.each_ref().map(|gateway| gateway.client.address());
        let random = Pcg64::seed_from_u64(seed);
        let mut storm = Self {
            server,
            link,
            _shared: shared,
            gateways,
            nodes: Default::default(),
            made: Arc::default(),
            random,
            joined: 0,
            asked: 0,
            work: Vec::new(),
            spending: Spending::start(addresses, &key, BUDGET),
        };
        for gateway in [0, 1] {
            storm.join_nodes(gateway).await;
        }
        Some(storm)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.random.next_u64() % bound as u64) as usize
    }

    async fn join_nodes(&mut self, gateway: usize) {
        while self.nodes[gateway].len() < NODES {
            self.joined += 1;
            let name = format!("n{}", self.joined);
            let node = Node::join(&self.gateways[gateway], &name, &self.made).await;
            self.nodes[gateway].push_back(node);
        }
    }

    fn next_fault(&mut self) -> Fault {
        match self.below(5) {
            0 | 1 => Fault::Gateway(self.below(2)),
            2 => Fault::Node(self.below(2)),
            3 => Fault::Database,
            _ => Fault::SlowDatabase,
        }
    }

    async fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Gateway(which) => {
                self.gateways[which].server.signal(Signal::KILL);
                self.gateways[which].server.ended().await;
                self.nodes[which].clear();
            }
            Fault::Node(which) => drop(self.nodes[which].pop_front()),
            Fault::Database => self.server.kill(),
            Fault::SlowDatabase => self.link.delay(Duration::from_millis(20)),
        }
    }

    async fn repair(&mut self, fault: Fault) {
        match fault {
            Fault::Gateway(which) => {
                self.gateways[which].restart();
                let gateway = &mut self.gateways[which];
                gateway.client = Client::new(gateway.client.address(), Some(&gateway.key));
                self.join_nodes(which).await;
            }
            Fault::Node(which) => self.join_nodes(which).await,
            Fault::Database => {
                self.server.restart().await;
                // Until a second after their last attempt to connect, gateways still refuse.
                let [a, b] = &self.gateways;
                tokio::join!(until_available(a, true), until_available(b, true));
            }
            Fault::SlowDatabase => self.link.delay(Duration::ZERO),
        }
    }

    /// The gateway that lives, or one of both.
    fn living(&mut self, fault: Fault) -> Client {
        let which = match fault {
            Fault::Gateway(killed) => 1 - killed,
            _ => self.below(2),
        };
        self.gateways[which].client.clone()
    }

    fn prompt(&mut self) -> u64 {
        self.asked += 1;
        self.asked
    }

    /// Asks for work. Whatever is not acknowledged does not count.
    async fn ask(&mut self, fault: Fault) {
        let client = self.living(fault);
        let kind = [Kind::Job, Kind::Response, Kind::Batch][self.below(3)];
        let count = if kind == Kind::Batch { 4 } else { 1 };
        let prompts: Vec<u64> = (0..count).map(|_| self.prompt()).collect();
        let answer = match kind {
            Kind::Job => {
                let body = chat(&prompts[0].to_string());
                let asked = json!({"url": "/v1/chat/completions", "body": body});
                client.post("/v1/jobs", asked.to_string()).await
            }
            Kind::Response => {
                let asked = json!({"model": "flotilla-demo", "input": prompts[0].to_string(),
                    "background": true, "stream": prompts[0].is_multiple_of(2)});
                return self.ask_for_response(&client, prompts, &asked, fault).await;
            }
            Kind::Batch => match ask_for_batch(&client, &prompts).await {
                Ok(answer) => answer,
                Err(refused) => refused,
            },
        };
        self.note(kind, prompts, &answer, fault);
    }

    /// Of a stream, only the first event is read.
    async fn ask_for_response(
        &mut self,
        client: &Client,
        prompts: Vec<u64>,
        asked: &Value,
        fault: Fault,
    ) {
        let path = "/v1/responses";
        if asked["stream"] == false {
            let answer = client.post(path, asked.to_string()).await;
            return self.note(Kind::Response, prompts, &answer, fault);
        }
        let mut events = Events::ask(client, Method::POST, path, &asked.to_string()).await.unwrap();
        match events.status {
            200 => {
                let id = events.next().await.unwrap()["response"]["id"].as_str().unwrap().into();
                self.work.push(Work { kind: Kind::Response, id, prompts, is_canceled: false });
            }
            status => self.expect_refusal(status, fault),
        }
    }

    fn note(&mut self, kind: Kind, prompts: Vec<u64>, answer: &Answer, fault: Fault) {
        match answer.status {
            200 | 202 => {
                let id = answer.json()["id"].as_str().unwrap().into();
                self.work.push(Work { kind, id, prompts, is_canceled: false });
            }
            status => self.expect_refusal(status, fault),
        }
    }

    /// Nothing may be refused unless the database is at fault.
    fn expect_refusal(&self, status: u16, fault: Fault) {
        let may_fail = matches!(fault, Fault::Database | Fault::SlowDatabase);
        assert!(status == 503 && may_fail, "{status} during {fault:?}");
    }

    /// Cancels something, which may have ended.
    async fn cancel(&mut self, fault: Fault) {
        if self.work.is_empty() || self.below(3) > 0 {
            return;
        }
        let client = self.living(fault);
        let at = self.below(self.work.len());
        let path = self.work[at].path() + "/cancel";
        let answer = client.post(&path, "").await;
        match answer.status {
            200 => self.work[at].is_canceled = true,
            // It has ended.
            400 | 409 => {}
            503 => self.work[at].is_canceled = true,
            status => panic!("{status} for {path} during {fault:?}"),
        }
    }

    /// A request that needs no store is served, whatever happens to it.
    async fn chat(&mut self, fault: Fault) {
        let (client, prompt) = (self.living(fault), self.prompt());
        let answer = client.chat(&chat(&prompt.to_string())).await;
        assert_eq!((answer.status, answer.content()), (200, text(prompt)), "during {fault:?}");
    }

    /// Waits until some tokens were made, or nobody makes any.
    async fn pass(&mut self) {
        let more = 20 + self.below(600);
        let mut tokens = self.made.tokens.subscribe();
        let enough = *tokens.borrow() + more;
        let made = tokens.wait_for(|tokens| *tokens >= enough);
        let _ = tokio::time::timeout(Duration::from_secs(2), made).await;
    }

    /// Checks that all that was acknowledged has ended, at both gateways alike. Returns the tokens
    /// of it.
    async fn check(&self) -> usize {
        let mut needed = 0;
        for work in &self.work {
            let [a, b] = &self.gateways;
            let end = eventually_within(ENDED, &format!("{work:?} to end"), async || {
                let known = a.client.get(&work.path()).await.json();
                let running = ["queued", "in_progress", "validating", "finalizing", "cancelling"];
                (!running.contains(&known["status"].as_str()?)).then_some(known)
            })
            .await;
            assert_eq!(end, b.client.get(&work.path()).await.json());
            match end["status"].as_str().unwrap() {
                "completed" => check_content(a, work, &end).await,
                "cancelled" if work.is_canceled => {}
                status => panic!("{status}: {work:?} {end}"),
            }
            needed += work.prompts.iter().map(|prompt| length(*prompt)).sum::<usize>();
        }
        needed
    }
}

async fn ask_for_batch(client: &Client, prompts: &[u64]) -> Result<Answer, Answer> {
    let lines: String =
        prompts.iter().map(|prompt| line(&format!("l{prompt}"), &prompt.to_string())).collect();
    let file = upload(client, &lines, &[("purpose", "batch")]).await;
    if file.status != 200 {
        return Err(file);
    }
    Ok(create(client, file.json()["id"].as_str().unwrap()).await)
}

async fn check_content(gateway: &Fleet, work: &Work, end: &Value) {
    let of = |body: &Value| body["choices"][0]["message"]["content"].as_str().map(String::from);
    match work.kind {
        Kind::Job => assert_eq!(of(&end["response"]["body"]), Some(text(work.prompts[0]))),
        Kind::Response => {
            let said = &end["output"][0]["content"][0]["text"];
            assert_eq!(said, &text(work.prompts[0]), "{work:?}");
            if work.prompts[0].is_multiple_of(2) {
                check_events(gateway, work).await;
            }
        }
        Kind::Batch => {
            let output = lines_of(&gateway.client, &end["output_file_id"]).await;
            assert_eq!(output.len(), work.prompts.len(), "{work:?}");
            for (line, prompt) in output.iter().zip(&work.prompts) {
                assert_eq!(line["custom_id"], format!("l{prompt}"));
                assert_eq!(of(&line["response"]["body"]), Some(text(*prompt)));
            }
        }
    }
}

/// Checks that the stream of a response has each event once.
async fn check_events(gateway: &Fleet, work: &Work) {
    let path = work.path() + "?stream=true";
    let events = Events::ask(&gateway.client, Method::GET, &path, "").await.unwrap();
    let events = events.rest().await;
    let numbers = events.iter().map(|event| event["sequence_number"].as_u64().unwrap());
    assert!(numbers.eq(0..events.len() as u64), "{work:?}");
    let said: String = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta")
        .map(|event| event["delta"].as_str().unwrap())
        .collect();
    assert_eq!(said, text(work.prompts[0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_work_ends_once_while_gateways_nodes_and_the_database_fail() {
    let faults = std::env::var("FLOTILLA_STORM_FAULTS").map_or(FAULTS, |n| n.parse().unwrap());
    let seed = std::env::var("FLOTILLA_STORM_SEED").map_or(1, |n| n.parse().unwrap());
    let Some(mut storm) = Storm::start(seed).await else { return };
    let mut chats = 0;
    for number in 0..faults {
        let fault = storm.next_fault();
        println!("seed {seed}, fault {number}: {fault:?}");
        storm.pass().await;
        storm.begin(fault).await;
        for _ in 0..ASKED {
            storm.ask(fault).await;
        }
        storm.cancel(fault).await;
        chats += length(storm.asked + 1);
        storm.chat(fault).await;
        storm.repair(fault).await;
    }
    let needed = storm.check().await + chats;
    let needed = needed + storm.spending.end(&storm.server.url("flotilla")).await;
    let made = *storm.made.tokens.borrow();
    let wrong = storm.made.wrong.lock().unwrap().clone();
    assert!(wrong.is_empty(), "{wrong:?}");
    let ended = storm.work.len();
    println!("{ended} acknowledged, {needed} tokens needed, {made} made");
    // A fault costs at most what all slots of both gateways were making.
    let lost_max = faults * 2 * NODES * SLOTS as usize * TOKENS_MAX;
    assert!(made <= needed + lost_max, "{made} tokens for {needed}");
}
