//! Nodes die again and again under load (`make kills KILLS=1000` for as often as one likes):
//! every client reads what one node that lives would have told it.

use std::time::{Duration, Instant};

use fleet_tests::client::Client;
use fleet_tests::process::{Agent, Fleet, metric};
use fleet_tests::wire::Wire;
use fleet_tests::{chat, eventually, streamed};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::task::JoinSet;

/// Nodes side by side.
const NODES: usize = 3;
/// Requests side by side: more than two nodes have slots for.
const CLIENTS: u64 = 6;
/// Deaths that hit an answer, unless `FLOTILLA_KILLS` says otherwise.
const KILLS: u64 = 24;

/// The same, of nodes that have not said anything of an answer yet.
const EARLY_KILLS: u64 = 8;

/// A node with free slots is asked sooner.
const ASKED_WITHIN: Duration = Duration::from_secs(1);

/// How a node dies.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Death {
    /// Agent and engine, as if the machine were switched off.
    Machine,
    /// Agent and engine stand still, and hold their connection.
    Stop,
    /// The connection is cut.
    Link,
    /// The engine alone.
    Engine,
}

pub(crate) struct Node {
    name: String,
    agent: Agent,
    engine: Pid,
    wire: Wire,
}

impl Node {
    async fn start(fleet: &Fleet, name: &str) -> Self {
        let wire = Wire::to(fleet.client.address()).await;
        let agent = join(fleet, name, &wire).await;
        Self { name: name.into(), engine: agent.engine(), agent, wire }
    }

    /// Dies; what has to be awaited until it has lived again is the caller's.
    pub(crate) fn dies(&self, death: Death) {
        match death {
            Death::Machine => self.agent.kill(),
            Death::Link => self.wire.cut(),
            Death::Engine => drop(kill_process(self.engine, Signal::KILL)),
            Death::Stop => {
                self.agent.server.signal(Signal::STOP);
                let _ = kill_process(self.engine, Signal::STOP);
            }
        }
    }

    /// Its engine stands still: what is asked of it gets no first token.
    fn holds_its_breath(&self) {
        kill_process(self.engine, Signal::STOP).unwrap();
    }

    /// Unless its agent has taken the engine for hung, and has killed it.
    fn breathes(&self) {
        let _ = kill_process(self.engine, Signal::CONT);
    }

    pub(crate) async fn lives_again(&mut self, fleet: &Fleet, death: Death) {
        if matches!(death, Death::Machine | Death::Stop) {
            self.agent.kill();
            self.agent = join(fleet, &self.name, &self.wire).await;
        }
        let dead = matches!(death, Death::Engine).then_some(self.engine);
        self.engine = eventually("a living engine", async || {
            let engines = self.agent.server.children();
            engines.into_iter().find(|engine| Some(*engine) != dead)
        })
        .await;
        fleet.wait_for_slots(&self.name).await;
    }
}

async fn join(fleet: &Fleet, name: &str, wire: &Wire) -> Agent {
    let key = fleet.folder().path().join("join.key");
    let key = key.to_str().unwrap();
    let url = wire.url();
    let all = ["--name", name, "--join", &url, "--join-key-file", key, "--slots", "2"];
    let agent = Agent::start(&all).await;
    fleet.wait_for_slots(name).await;
    agent
}

pub(crate) async fn nodes(fleet: &Fleet) -> Vec<Node> {
    let mut nodes = Vec::new();
    for number in 0..NODES {
        nodes.push(Node::start(fleet, &format!("n{number}")).await);
    }
    nodes
}

/// How often nodes are to die.
fn wanted(otherwise: u64) -> u64 {
    std::env::var("FLOTILLA_KILLS").map_or(otherwise, |n| n.parse().unwrap())
}

pub(crate) fn drawn(number: u64) -> Death {
    match number {
        0..=2 => Death::Machine,
        3 => Death::Stop,
        4 | 5 => Death::Link,
        _ => Death::Engine,
    }
}

pub(crate) async fn all_slots_are_given_back(fleet: &Fleet) {
    eventually("the gateway to be idle", async || {
        (fleet.in_flight().await == [0; 4]).then_some(())
    })
    .await;
}

/// "1, 2, ..."
fn counted(to: u64) -> String {
    (1..=to).map(|n| n.to_string()).collect::<Vec<_>>().join(", ")
}

/// Asks, and checks the answer.
async fn ask(client: Client, kind: u64) {
    let to = 20 + kind % 21;
    let question = chat(&format!("Count from 1 to {to}."));
    let expected = counted(to);
    if kind.is_multiple_of(3) {
        let answer = client.chat(&question).await;
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        return assert_eq!(answer.content(), expected);
    }
    let mut request = streamed(question);
    request["stream_options"] = json!({"include_usage": true});
    let said = client.stream(&request).await.finish().await;
    assert!(said.done && said.errors.is_empty(), "a stream that ends without its end: {said:?}");
    assert_eq!((said.text, said.finish.as_deref()), (expected, Some("stop")));
    assert!(said.usage.is_some());
}

/// Attempts on another node, before and after the first token.
pub(crate) async fn again(client: &Client) -> [u64; 2] {
    let body = client.get("/metrics").await.body;
    let text = String::from_utf8(body.to_vec()).unwrap();
    ["gateway_retries_total{", "gateway_resumes_total{"].map(|name| {
        let lines = text.lines().filter(|line| line.starts_with(name));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    })
}

/// A long run that fails is known to have come so far.
fn tell_now_and_then(deaths: u64, hits: u64) {
    if deaths.is_multiple_of(100) {
        eprintln!("{deaths} deaths, {hits} of them counted");
    }
}

#[tokio::test]
async fn nodes_that_die_again_and_again_are_not_noticed() {
    let kills = wanted(KILLS);
    let fleet = Fleet::start("retries_max: 5\n").await;
    let mut nodes = nodes(&fleet).await;
    let mut rng = Pcg64::seed_from_u64(1);
    let mut pick = move |n: u64| rng.next_u64() % n;
    let (begun, mut hits, mut deaths) = (Instant::now(), 0, 0);
    while hits < kills {
        let before = again(&fleet.admin).await;
        let mut clients = JoinSet::new();
        (0..CLIENTS).for_each(|_| drop(clients.spawn(ask(fleet.client.clone(), pick(1000)))));
        // Deaths that come too late do not count.
        let mut watched = fleet.client.stream(&streamed(chat("Count from 1 to 40."))).await;
        for _ in 0..pick(100) {
            watched.next_chunk().await;
        }
        let victim = &mut nodes[pick(NODES as u64) as usize];
        let death = drawn(pick(8));
        victim.dies(death);
        let said = watched.finish().await;
        assert_eq!((said.text, said.done), (counted(40), true));
        while let Some(done) = clients.join_next().await {
            done.unwrap();
        }
        victim.lives_again(&fleet, death).await;
        let after = again(&fleet.admin).await;
        deaths += 1;
        hits += u64::from(after.iter().sum::<u64>() > before.iter().sum());
        tell_now_and_then(deaths, hits);
    }
    let [retries, resumes] = again(&fleet.admin).await;
    let seconds = begun.elapsed().as_secs();
    eprintln!(
        "{deaths} deaths, {hits} of them at work: {retries} retries, {resumes} resumes, {seconds} s"
    );
    assert!(resumes > 0);
    all_slots_are_given_back(&fleet).await;
}

#[tokio::test]
async fn nodes_that_die_before_the_first_token_are_not_noticed() {
    let kills = wanted(EARLY_KILLS);
    let fleet = Fleet::start("retries_max: 5\n").await;
    let mut nodes = nodes(&fleet).await;
    let mut rng = Pcg64::seed_from_u64(2);
    let mut pick = move |n: u64| rng.next_u64() % n;
    let (begun, mut answers, mut hits, mut deaths) = (Instant::now(), 0, 0, 0);
    while hits < kills {
        // A node whose link was cut may still be letting go of what came over it.
        all_slots_are_given_back(&fleet).await;
        let [before, _] = again(&fleet.admin).await;
        let victim = &mut nodes[pick(NODES as u64) as usize];
        victim.holds_its_breath();
        let mut clients = JoinSet::new();
        (0..CLIENTS).for_each(|_| drop(clients.spawn(ask(fleet.client.clone(), pick(1000)))));
        let busy = format!("gateway_node_slots_busy{{node=\"{}\"}}", victim.name);
        // It may be ejected, or asked nothing but a probe: such deaths do not count.
        let asked = async { while metric(&fleet.admin, &busy).await < 1.0 {} };
        let _ = tokio::time::timeout(ASKED_WITHIN, asked).await;
        let death = drawn(pick(8));
        victim.dies(death);
        while let Some(done) = clients.join_next().await {
            done.unwrap();
            answers += 1;
        }
        if matches!(death, Death::Link) {
            victim.breathes();
        }
        victim.lives_again(&fleet, death).await;
        let [after, _] = again(&fleet.admin).await;
        deaths += 1;
        hits += u64::from(after > before);
        tell_now_and_then(deaths, hits);
    }
    let ([retries, resumes], seconds) = (again(&fleet.admin).await, begun.elapsed().as_secs());
    eprintln!(
        "{deaths} deaths, {hits} of them before a first token: {answers} answers, {retries} retries, \
         {resumes} resumes, {seconds} s"
    );
    assert_eq!(resumes, 0, "none had begun");
    all_slots_are_given_back(&fleet).await;
}
