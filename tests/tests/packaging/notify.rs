//! What both programs tell systemd, read from a socket in its place.

use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use fleet_tests::client::Client;
use fleet_tests::file_server::{FileServer, Reply, Then};
use fleet_tests::process::{Folder, JOIN_KEY, Server, program};
use fleet_tests::{SOON, demo_model};
use rustix::process::{Signal, kill_process};

/// The longest time without a sign of life that is asked for here.
const WATCHDOG: Duration = Duration::from_secs(4);

/// Stands where systemd does.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
    folder: Folder,
}

impl Manager {
    fn new() -> Self {
        let folder = Folder::new();
        let path = folder.path().join("notify");
        Self { socket: UnixDatagram::bind(&path).unwrap(), path, folder }
    }

    fn start(&self, name: &str, arguments: &[&str]) -> Server {
        let mut command = program(name, arguments);
        command.env("NOTIFY_SOCKET", &self.path);
        command.env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        Server::spawn(command)
    }

    /// The next message, where one comes within this time.
    fn next(&self, within: Duration) -> Option<String> {
        let mut buffer = [0; 4096];
        self.socket.set_read_timeout(Some(within)).unwrap();
        let length = self.socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8(buffer[..length].to_vec()).unwrap())
    }

    /// All messages up to one with this line.
    fn until(&self, line: &str) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(message) = self.next(SOON) {
            let found = message.lines().any(|l| l.starts_with(line));
            all.push(message);
            if found {
                return all;
            }
        }
        panic!("'{line}' was not told: {all:?}");
    }

    /// Three signs of life, none of them late.
    fn sees_life(&self) {
        for _ in 0..3 {
            loop {
                let message = self.next(WATCHDOG).expect("a sign of life in time");
                if message == "WATCHDOG=1\n" {
                    break;
                }
            }
        }
    }
}

fn has_line(messages: &[String], line: &str) -> bool {
    messages.iter().any(|m| m.lines().any(|l| l.starts_with(line)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_tells_when_it_serves_reloads_lives_and_stops() {
    let manager = Manager::new();
    manager.folder.write("join.key", JOIN_KEY);
    let text = "listen: 127.0.0.1:0\nallow_anonymous: true\nnodes: {join_key_file: join.key}\n";
    let config = manager.folder.write("gateway.yaml", text);
    let path = config.to_str().unwrap();
    let mut gateway = manager.start("flotilla-gateway", &["run", "--config", path]);
    assert!(has_line(&manager.until("READY=1"), "STATUS="));
    // It serves at this moment.
    let client = Client::new(gateway.address(), None);
    assert_eq!(client.get("/livez").await.status, 200);
    assert!(has_line(&manager.until("STATUS=0 of 0 nodes ready"), "WATCHDOG=1"));

    std::fs::write(&config, format!("{text}retries_max: 1\n")).unwrap();
    gateway.signal(Signal::HUP);
    let told = manager.until("RELOADING=1");
    assert!(!has_line(&told, "READY=1"), "{told:?}");
    assert!(has_line(&told, "MONOTONIC_USEC="), "{told:?}");
    assert!(has_line(&manager.until("READY=1"), "STATUS=configuration loaded"));

    std::fs::write(&config, "retries_max: many\n").unwrap();
    gateway.signal(Signal::HUP);
    manager.until("RELOADING=1");
    let told = manager.until("READY=1");
    assert!(has_line(&told, "STATUS=configuration refused; the old one stays: "), "{told:?}");

    manager.sees_life();
    gateway.signal(Signal::TERM);
    manager.until("STOPPING=1");
    assert_eq!(gateway.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_extends_the_time_to_start() {
    let manager = Manager::new();
    let server = FileServer::start(|asked| Reply::file(asked, &[7; 1000], "").cut(9, Then::Stall));
    let url = server.url("/m.gguf");
    let mut command = program("flotilla-agent", &["serve", &url]);
    command.env("NOTIFY_SOCKET", &manager.path).env("FLOTILLA_CACHE_DIR", manager.folder.path());
    let mut agent = Server::spawn(command);
    let told = manager.until("EXTEND_TIMEOUT_USEC=900000000");
    assert!(has_line(&told, "STATUS=downloading http://"), "{told:?}");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(143));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_cannot_serve_is_never_ready() {
    let manager = Manager::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    manager.folder.write("join.key", JOIN_KEY);
    let text =
        format!("listen: {listen}\nallow_anonymous: true\nnodes: {{join_key_file: join.key}}\n");
    let config = manager.folder.write("gateway.yaml", text);
    let path = config.to_str().unwrap();
    let mut gateway = manager.start("flotilla-gateway", &["run", "--config", path]);
    assert_eq!(gateway.ended().await, Some(69));
    // What a process sent is there before its end is.
    assert_eq!(manager.next(Duration::from_millis(1)), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_ready_with_its_model_and_tells_of_its_engine() {
    let manager = Manager::new();
    let model = demo_model();
    let arguments =
        ["serve", "--model", model.to_str().unwrap(), "--listen", "127.0.0.1:0", "--threads", "1"];
    let mut agent = manager.start("flotilla-agent", &arguments);
    let told = manager.until("READY=1");
    assert!(has_line(&told, "STATUS=loading flotilla-demo"), "{told:?}");
    assert!(has_line(&told, "STATUS=serving flotilla-demo, 4 slots"), "{told:?}");
    let client = Client::new(agent.address(), None);
    assert_eq!(client.get("/readyz").await.status, 200, "its model is loaded at this moment");
    manager.sees_life();

    kill_process(agent.children()[0], Signal::KILL).unwrap();
    manager.until("STATUS=the engine died");
    manager.until("STATUS=serving flotilla-demo");
    agent.signal(Signal::TERM);
    manager.until("STOPPING=1");
    assert_eq!(agent.ended().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_model_cannot_be_loaded_is_never_ready() {
    let manager = Manager::new();
    let mut text = std::fs::read(demo_model()).unwrap();
    text.truncate(text.len() / 2);
    let model = manager.folder.write("half.gguf", text);
    let arguments = ["serve", "--model", model.to_str().unwrap(), "--listen", "127.0.0.1:0"];
    let mut agent = manager.start("flotilla-agent", &arguments);
    assert_eq!(agent.ended().await, Some(65));
    while let Some(message) = manager.next(Duration::from_millis(1)) {
        assert!(!message.contains("READY=1"), "{message}");
    }
}
