//! Real gateways and agents as child processes.

use std::collections::VecDeque;
use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::client::Client;
use crate::{SOON, config_validator, demo_model, eventually};

/// The join key of all test fleets.
pub const JOIN_KEY: &str = "a-join-key-for-tests-only";

/// The operators' key of all test gateways.
pub const ADMIN_KEY: &str = "an-operators-key-for-tests";

/// The binary that `cargo build --release` made, beside this test, or the one in the folder that
/// FLOTILLA_BINARIES names.
pub fn binary(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("FLOTILLA_BINARIES") {
        return Path::new(&folder).join(name);
    }
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(Path::parent).unwrap().join(name);
    assert!(path.exists(), "{} is missing: run 'make build' first", path.display());
    path
}

/// A folder that is removed with its handle.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// A new empty folder.
    pub fn new() -> Self {
        let mut random = [0u8; 8];
        getrandom::fill(&mut random).unwrap();
        let name = format!("flotilla-test-{:016x}", u64::from_le_bytes(random));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file into it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Writes a file into it that only its owner may read.
    pub fn write_private(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        write_private(&self.0, name, content)
    }
}

/// Writes a file into a folder that only its owner may read.
pub fn write_private(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A program that runs to its end.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A program of ours. It finds nothing that was tuned on this machine, and keeps nothing.
pub fn program(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary(name));
    command.args(arguments).env("FLOTILLA_CACHE_DIR", "/dev/null");
    command
}

/// Runs a program that is expected to end by itself.
pub fn run(name: &str, arguments: &[&str]) -> Ran {
    run_command(program(name, arguments))
}

/// The same with any command.
pub fn run_command(mut command: Command) -> Ran {
    let output = command.stdin(Stdio::null()).output().unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A program that serves.
#[derive(Debug)]
pub struct Server {
    child: Child,
    lines: Receiver<String>,
    log: Arc<Mutex<String>>,
    reads: Arc<AtomicBool>,
}

impl Server {
    /// Starts a program; its log is read all the time.
    pub fn start(name: &str, arguments: &[&str]) -> Self {
        Self::spawn(program(name, arguments))
    }

    /// The same with variables of the environment.
    pub fn start_with(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = program(name, arguments);
        command.env("RUST_LOG", "info").envs(variables.iter().copied());
        Self::spawn(command)
    }

    /// Starts any command that becomes a program of ours.
    pub fn spawn(mut command: Command) -> Self {
        if !command.get_envs().any(|(name, _)| name == "RUST_LOG") {
            command.env("RUST_LOG", "info");
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let (sender, lines) = sync_channel(65_536);
        let log = Arc::new(Mutex::new(String::new()));
        let copy = log.clone();
        let reads = Arc::new(AtomicBool::new(true));
        let still = reads.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                copy.lock().unwrap().push_str(&format!("{line}\n"));
                let _ = sender.try_send(line);
                if !still.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        Self { child, lines, log, reads }
    }

    /// From its next line on nothing that it logs can be written, as on a full disk.
    pub fn stop_reading_log(&self) {
        self.reads.store(false, Ordering::Relaxed);
    }

    /// Waits for a line with `text` in its log.
    pub fn wait_for_line(&self, text: &str) -> String {
        let begun = Instant::now();
        while let Some(left) = SOON.checked_sub(begun.elapsed()) {
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        panic!("no line with '{text}' in:\n{}", self.log());
    }

    /// Everything that it logged.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The address that it says it listens on.
    pub fn address(&self) -> SocketAddr {
        let line = self.wait_for_line("listening on http");
        let from = line.find("://").unwrap() + 3;
        let text: String =
            line[from..].chars().take_while(|c| c.is_ascii_digit() || ".:".contains(*c)).collect();
        text.parse().unwrap_or_else(|e| panic!("{e} in {line}"))
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Its children.
    pub fn children(&self) -> Vec<Pid> {
        let pid = self.pid().as_raw_nonzero();
        let mut all = Vec::new();
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
            let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(list.split_whitespace().filter_map(|p| Pid::from_raw(p.parse().ok()?)));
        }
        all
    }

    /// True if it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end; the exit code, `None` after a signal.
    pub async fn ended(&mut self) -> Option<i32> {
        let child = &mut self.child;
        eventually("a process to end", async || child.try_wait().unwrap()).await.code()
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let tail = log.lines().rev().take(15).collect::<Vec<_>>();
            eprintln!("--- log of {}:", self.pid().as_raw_nonzero());
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// An agent.
#[derive(Debug)]
pub struct Agent {
    /// Its process.
    pub server: Server,
    /// Its own port.
    pub client: Client,
}

impl Agent {
    /// Starts an agent with the demo model and more arguments, and waits for its engine.
    pub async fn start(arguments: &[&str]) -> Self {
        Self::start_with_model(&demo_model(), arguments).await
    }

    /// As [`Agent::start`], with another model.
    pub async fn start_with_model(model: &Path, arguments: &[&str]) -> Self {
        let mut all = vec!["serve", "--model", model.to_str().unwrap(), "--listen", "127.0.0.1:0"];
        // Several engines share two cores here; threads that wait for each other would
        // wait for the scheduler.
        if !arguments.contains(&"--threads") {
            all.extend(["--threads", "1"]);
        }
        all.extend(arguments);
        let server = Server::start("flotilla-agent", &all);
        let client = Client::new(server.address(), None);
        let agent = Self { server, client };
        agent.ready().await;
        agent
    }

    /// Waits until the engine takes requests.
    pub async fn ready(&self) {
        eventually("the engine to be ready", async || {
            (self.client.get("/readyz").await.status == 200).then_some(())
        })
        .await;
    }

    /// The engine's process.
    pub fn engine(&self) -> Pid {
        let children = self.server.children();
        assert_eq!(children.len(), 1, "an agent has one engine");
        children[0]
    }

    /// Ends the machine, as far as a test can: agent and engine at once.
    pub fn kill(&self) {
        for process in self.processes() {
            let _ = kill_process(process, Signal::KILL);
        }
    }

    /// Its process, and that of its engine.
    pub fn processes(&self) -> Vec<Pid> {
        [vec![self.server.pid()], self.server.children()].concat()
    }

    /// How many tokens it has generated.
    pub async fn generated_tokens(&self) -> f64 {
        self.metric("node_generated_tokens_total").await
    }

    /// One of its metrics.
    pub async fn metric(&self, name: &str) -> f64 {
        metric(&self.client, name).await
    }
}

/// The value of a metric, labels included in its name as they are printed.
pub async fn metric(client: &Client, name: &str) -> f64 {
    let body = client.get("/metrics").await.body;
    let text = String::from_utf8(body.to_vec()).unwrap();
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{text}")).parse().unwrap()
}

/// A gateway and what it was told.
#[derive(Debug)]
pub struct Fleet {
    /// Its process.
    pub server: Server,
    /// Its public port, with a key.
    pub client: Client,
    /// Its operators' port, with their key.
    pub admin: Client,
    /// The key.
    pub key: String,
    /// `http://...`, or `https://...`
    pub url: String,
    folder: Folder,
}

impl Fleet {
    /// Starts a gateway that nodes may join. `more` is added to its configuration.
    pub async fn start(more: &str) -> Self {
        let folder = Folder::new();
        folder.write("join.key", JOIN_KEY);
        let made = run("flotilla-gateway", &["key", "new", "--name", "test"]).stdout;
        let key = made.lines().nth(1).unwrap().to_string();
        let entry = &made[made.find("keys:").unwrap()..];
        let nodes = if more.contains("nodes:") { "" } else { "nodes: {join_key_file: join.key}\n" };
        folder.write("admin.key", ADMIN_KEY);
        let admin = "admin: {listen: '127.0.0.1:0', key_file: admin.key}\n";
        let config = format!("listen: 127.0.0.1:0\n{admin}{entry}{nodes}{more}");
        let tree: Value = serde_yaml::from_str(&config).unwrap();
        let wrong = config_validator().validate(&tree).map_err(|e| e.to_string());
        assert_eq!(wrong, Ok(()), "the gateway takes this, and the schema does not: {config}");
        folder.write("gateway.yaml", config);
        let scheme = if more.contains("tls:") { "https" } else { "http" };
        Self::serve(folder, key, scheme)
    }

    /// Another gateway with the same configuration, but other ports.
    pub fn another(&self) -> Self {
        let folder = Folder::new();
        for name in ["join.key", "admin.key", "gateway.yaml"] {
            std::fs::copy(self.folder.path().join(name), folder.path().join(name)).unwrap();
        }
        Self::serve(folder, self.key.clone(), "http")
    }

    /// Starts the gateway of a folder.
    fn serve(folder: Folder, key: String, scheme: &str) -> Self {
        let config = folder.path().join("gateway.yaml");
        let server =
            Server::start("flotilla-gateway", &["run", "--config", config.to_str().unwrap()]);
        // The operators' port is told first.
        let admin = Client::new(server.address(), Some(ADMIN_KEY));
        let address = server.address();
        let client = Client::new(address, Some(&key));
        Self { server, client, admin, key, url: format!("{scheme}://{address}"), folder }
    }

    /// What the gateway takes of the memory, in MiB.
    pub fn rss_mib(&self) -> f64 {
        let pid = self.server.pid().as_raw_nonzero();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }

    /// Starts an agent that joins, and waits until the gateway can use it.
    pub async fn join(&self, name: &str, arguments: &[&str]) -> Agent {
        self.join_with_model(name, &demo_model(), arguments).await
    }

    /// As [`Fleet::join`], with another model.
    pub async fn join_with_model(&self, name: &str, model: &Path, arguments: &[&str]) -> Agent {
        self.join_at(&self.url, name, model, arguments).await
    }

    /// As [`Fleet::join_with_model`], by another address of the gateway.
    pub async fn join_at(&self, url: &str, name: &str, model: &Path, arguments: &[&str]) -> Agent {
        let key = self.folder.path().join("join.key");
        let mut all = vec!["--name", name, "--join", url];
        all.extend(["--join-key-file", key.to_str().unwrap()]);
        all.extend(arguments);
        let agent = Agent::start_with_model(model, &all).await;
        self.wait_for_slots(name).await;
        agent
    }

    /// Waits until the gateway knows slots of a node.
    pub async fn wait_for_slots(&self, name: &str) {
        let metric = format!("gateway_node_slots{{node=\"{name}\"}} ");
        eventually("the gateway to know a node", async || {
            let body = self.admin.get("/metrics").await.body;
            let text = String::from_utf8(body.to_vec()).unwrap();
            let line = text.lines().find(|l| l.starts_with(&metric))?;
            (!line.ends_with(" 0")).then_some(())
        })
        .await;
    }

    /// Kills the gateway, if it still runs, and starts it again on the address that it had.
    pub fn restart(&mut self) {
        self.server.kill();
        let address = self.url.trim_start_matches("http://");
        let path = self.folder.path().join("gateway.yaml");
        let text = std::fs::read_to_string(&path).unwrap();
        let config = self.folder.write("again.yaml", text.replacen("127.0.0.1:0", address, 1));
        let config = config.to_str().unwrap();
        self.server = Server::start("flotilla-gateway", &["run", "--config", config]);
        self.admin = Client::new(self.server.address(), Some(ADMIN_KEY));
        assert_eq!(self.server.address().to_string(), address);
    }

    /// Kills one of the nodes and starts another, or, after so many of them, the gateway, which is
    /// started again and found by the node `a`. Returns how many tokens the killed node has
    /// generated.
    pub async fn kill_in_turn(
        &mut self,
        kill: usize,
        node_kills: usize,
        nodes: &mut VecDeque<Agent>,
    ) -> f64 {
        if kill.is_multiple_of(node_kills + 1) {
            self.server.signal(Signal::KILL);
            self.server.ended().await;
            self.restart();
            self.wait_for_slots("a").await;
            0.0
        } else {
            let node = nodes.pop_front().unwrap();
            let generated = node.generated_tokens().await;
            node.kill();
            nodes.push_back(self.join(&format!("n{kill}"), &["--slots", "2"]).await);
            generated
        }
    }

    /// What `curl`, which trusts `ca` and sends the key, gets for a path; its complaints too.
    pub fn curl(&self, ca: &Path, path: &str, more: &[&str]) -> String {
        let output = Command::new("curl")
            .args(["--silent", "--show-error", "--max-time", "30", "--cacert"])
            .arg(ca)
            .args(["-H", &format!("Authorization: Bearer {}", self.key)])
            .args(more)
            .arg(format!("{}{path}", self.url))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr)
    }

    /// What `/health` says.
    pub async fn health(&self) -> Value {
        self.client.get("/health").await.json()
    }

    /// Every in-flight figure of the gateway.
    pub async fn in_flight(&self) -> [u64; 4] {
        let health = self.health().await;
        ["/slots/leased", "/slots/busy", "/queue_depth", "/requests_in_flight"]
            .map(|path| health.pointer(path).and_then(Value::as_u64).unwrap())
    }

    /// A folder for the test's files.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }
}
