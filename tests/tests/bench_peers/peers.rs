//! The servers that are compared, each as its users start it.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use fleet_tests::client::{Answer, Client};
use fleet_tests::eventually;
use fleet_tests::process::{Folder, binary, run};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::work::SLOTS;

/// Tokens that all requests of one server may hold together. llama-server and Flotilla share them
/// between slots as needed; Paddler gives each slot its part.
const CONTEXT: &str = "16384";

/// A server of the OpenAI API, with the processes that it consists of.
pub struct Peer {
    /// Its name in figures.
    pub name: &'static str,
    /// A client of it.
    pub client: Client,
    second_user: Option<Client>,
    limit: &'static str,
    extra: Value,
    processes: Vec<Process>,
    folder: Folder,
}

/// A process that ends with its handle, as when its machine is switched off.
pub struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        for pid in self.pids() {
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

impl Process {
    fn start(command: &mut Command, log: &Path) -> Self {
        let log = std::fs::File::create(log).unwrap();
        let (out, err) = (log.try_clone().unwrap(), log);
        let child = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
        Self(child.unwrap_or_else(|e| panic!("{command:?}: {e}")))
    }

    /// A program that computes all the time.
    pub fn busy() -> Self {
        let mut shell = Command::new("sh");
        Self(shell.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).spawn().unwrap())
    }

    /// Itself and its children, whichever of its threads has started them.
    fn pids(&self) -> Vec<Pid> {
        let pid = self.0.id();
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten();
        let children = threads.flatten().map(|thread| thread.path().join("children"));
        let children: String =
            children.filter_map(|list| std::fs::read_to_string(list).ok()).collect();
        let all = children.split_whitespace().filter_map(|child| child.parse().ok());
        all.chain([pid as i32]).filter_map(Pid::from_raw).collect()
    }

    /// Largest resident memory so far, in MiB.
    fn peak_mib(&self) -> f64 {
        let peak = |pid: &Pid| {
            let path = format!("/proc/{}/status", pid.as_raw_nonzero());
            let status = std::fs::read_to_string(path).ok()?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
            line.trim().trim_end_matches(" kB").parse::<f64>().ok()
        };
        self.pids().iter().filter_map(peak).sum::<f64>() / 1024.0
    }
}

/// Fields for servers with llama.cpp's: responses do not end early, and each token is a character.
/// Tokens that are parts of one (bytes from 128 on, which models of `flotilla-agent synth` have at
/// 94 to 187 and from 222 to 255) show nothing, and make one gap of two between tokens.
fn extra() -> Value {
    let parts = (94..=187).chain(222..=255).map(|token: u32| (token.to_string(), json!(-100)));
    json!({"ignore_eos": true, "logit_bias": parts.collect::<serde_json::Map<_, _>>()})
}

impl Peer {
    fn new(name: &'static str, address: SocketAddr, extra: Value, folder: Folder) -> Self {
        let client = Client::new(address, None);
        let limit = "max_tokens";
        Self { name, client, second_user: None, limit, extra, processes: Vec::new(), folder }
    }

    fn start(&mut self, command: &mut Command) {
        let log = format!("{}.log", self.processes.len());
        self.processes.push(Process::start(command, &self.folder.path().join(log)));
    }

    /// A streamed chat of exactly `tokens` tokens, where the server can promise that.
    pub fn request(&self, messages: Value, tokens: u32) -> Value {
        let usage = json!({"include_usage": true});
        let mut request = json!({"model": "m", "messages": messages, "stream": true,
            "stream_options": usage});
        request[self.limit] = tokens.into();
        for (name, value) in self.extra.as_object().into_iter().flatten() {
            request[name] = value.clone();
        }
        request
    }

    /// The same server for another of its users; where it knows no users, for the same.
    pub fn of_second_user(&self) -> Self {
        let client = self.second_user.as_ref().unwrap_or(&self.client).clone();
        let (limit, extra) = (self.limit, self.extra.clone());
        let folder = Folder::new();
        let (name, processes) = (self.name, Vec::new());
        Self { name, client, second_user: None, limit, extra, processes, folder }
    }

    /// The process of its last node, which dies with it.
    pub fn take_node(&mut self) -> Process {
        self.processes.pop().unwrap()
    }

    /// Largest resident memory of all of its processes, in MiB.
    pub fn peak_mib(&self) -> f64 {
        self.processes.iter().map(Process::peak_mib).sum()
    }

    /// The answer, if it is one.
    async fn get(&self, path: &str) -> Option<Answer> {
        get(&self.client, path).await
    }

    async fn answers(&self, path: &str) {
        let log = || std::fs::read_to_string(self.folder.path().join("0.log"));
        let asked = eventually(self.name, async || self.get(path).await);
        tokio::time::timeout(std::time::Duration::from_secs(90), asked)
            .await
            .unwrap_or_else(|_| panic!("{} does not start: {:?}", self.name, log()));
    }
}

async fn get(client: &Client, path: &str) -> Option<Answer> {
    let answer = client.try_send("GET".parse().unwrap(), path, "".into()).await.ok()?;
    (answer.status == 200).then_some(answer)
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A program that scripts/peers.sh has built, if it did.
pub fn built(name: &str) -> Option<PathBuf> {
    let path = fleet_tests::root().join("target/peers/bin").join(name);
    path.exists().then_some(path)
}

/// A gateway and as many agents.
pub async fn flotilla(model: &Path, nodes: usize, slots: usize) -> Peer {
    flotilla_with(model, nodes, slots, &[]).await
}

/// The same, with more flags of the agents.
pub async fn flotilla_with(model: &Path, nodes: usize, slots: usize, flags: &[&str]) -> Peer {
    let (listen, admin, folder) = (free_address(), free_address(), Folder::new());
    let dir = folder.path().join("gateway");
    let config = dir.join("gateway.yaml");
    let text = |path: &Path| path.to_str().unwrap().to_string();
    let (listens, admins) = (listen.to_string(), admin.to_string());
    let made = run(
        "flotilla-gateway",
        &["init", "--dir", &text(&dir), "--listen", &listens, "--admin-listen", &admins],
    );
    let second =
        run("flotilla-gateway", &["key", "new", "--config", &text(&config), "--name", "second"]);
    let key_in = |printed: &str| {
        let mut words = printed.split_whitespace();
        words.find(|word| word.starts_with("sk-")).expect(printed).to_string()
    };
    let mut peer = Peer::new("Flotilla", listen, extra(), folder);
    peer.client = peer.client.with_key(Some(&key_in(&made.stdout)));
    peer.second_user = Some(peer.client.with_key(Some(&key_in(&second.stdout))));
    peer.start(Command::new(binary("flotilla-gateway")).args(["run", "--config", &text(&config)]));
    for node in 0..nodes {
        let mut agent = Command::new(binary("flotilla-agent"));
        agent.arg("serve").arg(model).args(["--model-name", "m", "--join"]);
        agent.arg(format!("http://{listen}")).arg("--join-key-file").arg(dir.join("join.key"));
        agent.args(["--name", &format!("node-{node}"), "--slots", &slots.to_string()]);
        agent.args(["--kv-cells", CONTEXT, "--context-tokens", CONTEXT]).args(flags);
        peer.start(&mut agent);
    }
    let linked = eventually("the nodes", async || {
        let health = peer.get("/health").await?.json();
        (health["nodes"]["ready"] == nodes).then_some(())
    });
    linked.await;
    peer
}

fn llama_server_command(model: &Path, listen: SocketAddr, slots: usize) -> Option<Command> {
    let mut command = Command::new(built("llama-server")?);
    command.arg("-m").arg(model).args(["--host", "127.0.0.1", "--port"]);
    command.arg(listen.port().to_string());
    let slots = slots.to_string();
    command.args(["-np", &slots, "-kvu", "-c", CONTEXT]);
    Some(command)
}

/// One llama-server, with one cache for all of its slots.
pub async fn llama_server(model: &Path) -> Option<Peer> {
    llama_server_with(model, SLOTS, &[]).await
}

/// The same, with more flags.
pub async fn llama_server_with(model: &Path, slots: usize, flags: &[&str]) -> Option<Peer> {
    let listen = free_address();
    let mut command = llama_server_command(model, listen, slots)?;
    command.args(flags);
    let extra = extra();
    let mut peer = Peer::new("llama-server", listen, extra, Folder::new());
    peer.start(&mut command);
    peer.answers("/health").await;
    Some(peer)
}

/// nginx, which balances by least connections, in front of llama-servers.
pub async fn nginx(model: &Path, nodes: usize, slots: usize) -> Option<Peer> {
    let folder = Folder::new();
    let path = folder.path().display().to_string();
    let listen = free_address();
    let addresses: Vec<SocketAddr> = (0..nodes).map(|_| free_address()).collect();
    let servers: String = addresses.iter().map(|address| format!("server {address};")).collect();
    let config = format!(
        "daemon off; pid {path}/pid; error_log {path}/error.log;
        events {{ }}
        http {{ access_log off;
            client_body_temp_path {path}/a; proxy_temp_path {path}/b; fastcgi_temp_path {path}/c;
            uwsgi_temp_path {path}/d; scgi_temp_path {path}/e;
            upstream nodes {{ least_conn; {servers} }}
            server {{ listen {listen}; location / {{
                proxy_pass http://nodes; proxy_http_version 1.1; proxy_buffering off;
                proxy_set_header Connection \"\"; proxy_read_timeout 600s; }} }} }}"
    );
    let config = folder.write("nginx.conf", config);
    let mut peer = Peer::new("nginx", listen, extra(), folder);
    peer.start(Command::new("nginx").arg("-c").arg(config));
    for address in &addresses {
        peer.start(&mut llama_server_command(model, *address, slots)?);
    }
    let front = peer.client.clone();
    for address in addresses {
        peer.client = Client::new(address, None);
        peer.answers("/health").await;
    }
    peer.client = front;
    Some(peer)
}

/// Paddler's balancer and as many agents, with its defaults but for the size of the context: by
/// default, a slot of eight has too little for the prompts.
pub async fn paddler(model: &Path, nodes: usize, slots: usize) -> Option<Peer> {
    let program = built("paddler-peer")?;
    let [listen, inference, management] = [free_address(), free_address(), free_address()];
    let mut peer = Peer::new("Paddler", listen, json!({}), Folder::new());
    peer.limit = "max_completion_tokens";
    let mut balancer = Command::new(&program);
    balancer.args(["balancer", "--inference-addr", &inference.to_string()]);
    balancer.args(["--management-addr", &management.to_string()]);
    balancer.args(["--openai-addr", &listen.to_string()]);
    peer.start(&mut balancer);
    for node in 0..nodes {
        let mut agent = Command::new(&program);
        agent.args(["agent", "--management-addr", &management.to_string()]);
        agent.args(["--slots", &slots.to_string(), "--name", &format!("node-{node}")]);
        peer.start(&mut agent);
    }
    let management = Client::new(management, None);
    let state = "/api/v1/balancer_desired_state";
    let mut wanted = eventually("Paddler's state", async || {
        get(&management, state).await.map(|answer| answer.json())
    })
    .await;
    wanted["model"] = json!({"LocalToAgent": model});
    wanted["inference_parameters"]["context_size"] = CONTEXT.parse::<u32>().unwrap().into();
    let put = management.try_send("PUT".parse().unwrap(), state, wanted.to_string().into()).await;
    assert!(put.is_ok_and(|answer| answer.status < 300), "Paddler takes no model");
    eventually("Paddler's agents", async || {
        let agents = management.get("/api/v1/agents").await.json();
        let agents = agents["agents"].as_array()?;
        let is_ready = |agent: &&Value| agent["slots_total"].as_u64() == Some(slots as u64);
        (agents.iter().filter(is_ready).count() == nodes).then_some(())
    })
    .await;
    Some(peer)
}
