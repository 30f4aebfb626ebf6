//! From nothing to an answer: a gateway that makes its own configuration, and the node that it says
//! how to join.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;

use fleet_tests::client::Client;
use fleet_tests::process::{Folder, Ran, Server, binary, run_command};
use fleet_tests::tools::skipped;
use fleet_tests::{chat, demo_model, eventually};
use rustix::process::Pid;

/// A user who has only the programs.
pub struct User {
    pub folder: Folder,
    pub public: SocketAddr,
    admin: SocketAddr,
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl User {
    pub fn new() -> Self {
        Self { folder: Folder::new(), public: free_address(), admin: free_address() }
    }

    pub fn bash(&self, script: &str) -> Command {
        let programs = binary("flotilla-gateway").parent().unwrap().to_path_buf();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", script]).current_dir(self.folder.path());
        for name in ["XDG_STATE_HOME", "FLOTILLA_HOME", "FLOTILLA_CONFIG"] {
            command.env_remove(name);
        }
        command
            .env("PATH", path)
            .env("HOME", self.folder.path())
            .env("FLOTILLA_CACHE_DIR", "/dev/null")
            .env("FLOTILLA_GATEWAY_LISTEN", self.public.to_string())
            .env("FLOTILLA_GATEWAY_ADMIN_LISTEN", self.admin.to_string());
        command
    }

    pub fn run(&self, script: &str) -> Ran {
        run_command(self.bash(script))
    }

    /// Starts the gateway.
    fn gateway(&self) -> Server {
        let server = Server::spawn(self.bash("exec flotilla-gateway run > printed"));
        server.wait_for_line("\"admin listener: listening on http");
        server.wait_for_line("\"listening on http");
        server
    }

    /// Starts it for the first time, and returns what it prints.
    pub async fn first_run(&self) -> (Server, String) {
        let server = self.gateway();
        let printed = eventually("the welcome", async || {
            let printed = std::fs::read_to_string(self.folder.path().join("printed")).ok()?;
            printed.contains("Configuration: ").then_some(printed)
        });
        (server, printed.await)
    }

    /// Starts a node by a command that the gateway has printed.
    pub fn node(&self, command: &str) -> Server {
        let model = demo_model().display().to_string();
        let command = command.replace("serve MODEL ", &format!("serve {model} "));
        let assignments = command.split(' ').take_while(|word| word.contains('=')).count();
        let words: Vec<&str> = command.split(' ').collect();
        let (set, program) = words.split_at(assignments);
        Server::spawn(self.bash(&format!("{} exec {}", set.join(" "), program.join(" "))))
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join(".local/state/flotilla")
    }
}

/// The rest of the line that begins so.
pub fn after<'a>(printed: &'a str, beginning: &str) -> &'a str {
    let mut lines = printed.lines();
    lines.find_map(|line| line.strip_prefix(beginning)).unwrap_or_else(|| panic!("{printed}"))
}

async fn answers(user: &User, key: &str) -> Option<()> {
    let client = Client::new(user.public, Some(key));
    let answer = client.chat(&chat("What is the capital of France?")).await;
    (answer.status == 200).then_some(())
}

#[tokio::test]
async fn a_gateway_without_a_configuration_makes_one_and_says_how_to_use_it() {
    let user = User::new();
    let (first, printed) = user.first_run().await;
    assert_eq!(after(&printed, "Endpoint: "), format!("http://{}/v1", user.public));
    let key = after(&printed, "API key, shown once: ").to_string();
    let node = user.node(after(&printed, "Join a node on this machine: "));
    node.wait_for_line("joined");
    eventually("an answer", async || answers(&user, &key).await).await;
    // All other commands find the same configuration.
    for (script, wanted) in [
        ("flotilla-gateway check", "ok"),
        ("flotilla-gateway key list", "default"),
        ("flotilla-gateway nodes", "flotilla-demo"),
        ("flotilla-gateway top --once", "flotilla-demo"),
        ("flotilla-gateway health", "ready"),
        ("flotilla-gateway config print", "keys.yaml"),
    ] {
        let ran = user.run(script);
        assert_eq!(ran.code, Some(0), "{script}: {ran:?}");
        assert!(ran.stdout.contains(wanted), "{script}: {ran:?}");
    }
    let log = first.log();
    assert!(!log.contains(&key), "{log}");
    drop(first);
    // The second run says nothing, and knows the key.
    let _second = user.gateway();
    eventually("an answer", async || answers(&user, &key).await).await;
    let printed = std::fs::read_to_string(user.folder.path().join("printed")).unwrap();
    assert_eq!(printed, "");
}

#[tokio::test]
async fn one_line_joins_a_node_from_another_machine_and_its_engine_never_has_the_key() {
    let user = User::new();
    let (_gateway, _) = user.first_run().await;
    let line = user.run("flotilla-gateway join-command");
    let line = line.stdout.trim();
    assert!(line.starts_with("FLOTILLA_JOIN_KEY="), "{line}");
    let node = user.node(line);
    node.wait_for_line("joined");
    let key = std::fs::read_to_string(user.state().join("join.key")).unwrap();
    let has_key = |process: Pid| {
        let path = format!("/proc/{}/environ", process.as_raw_nonzero());
        String::from_utf8_lossy(&std::fs::read(path).unwrap()).contains(key.trim())
    };
    node.wait_for_line("engine ready");
    let engines = node.children();
    assert!(has_key(node.pid()) && engines.len() == 1 && !has_key(engines[0]));
    let file = user.run("flotilla-gateway join-command --key-file --url https://gateway.example/");
    let path = user.state().join("join.key");
    let expected = format!("--join https://gateway.example --join-key-file {}", path.display());
    assert!(file.stdout.trim().ends_with(&expected), "{file:?}");
}

#[test]
fn the_nearest_configuration_is_used_and_one_that_exists_is_never_replaced() {
    let user = User::new();
    let none = user.run("flotilla-gateway check");
    assert_eq!(none.code, Some(64), "{none:?}");
    assert!(none.stderr.contains("flotilla-gateway init"), "{none:?}");
    let made = user.run("flotilla-gateway init --dir own");
    assert_eq!(made.code, Some(0), "{made:?}");
    let again = user.run("flotilla-gateway init --dir own");
    assert_eq!((again.code, again.stdout.as_str()), (Some(64), ""), "{again:?}");
    assert!(again.stderr.contains("own/gateway.yaml exists"), "{again:?}");
    let named = user.run("FLOTILLA_CONFIG=own/gateway.yaml flotilla-gateway check");
    assert_eq!(named.stdout, "ok\n", "{named:?}");
    let wrong = user.run("FLOTILLA_CONFIG=nowhere.yaml flotilla-gateway check");
    assert!(wrong.stderr.contains("nowhere.yaml"), "{wrong:?}");
    let here = user.run("cd own && flotilla-gateway config print");
    assert!(here.stdout.contains(&user.public.to_string()), "{here:?}");
    let unwritable = user.run("FLOTILLA_HOME=/proc/nowhere flotilla-gateway run");
    assert_eq!(unwritable.code, Some(74), "{unwritable:?}");
    assert!(unwritable.stderr.contains("/proc/nowhere"), "{unwritable:?}");
}

#[tokio::test]
async fn a_node_joins_by_the_pin_of_a_self_signed_certificate_and_no_other() {
    let mut user = User::new();
    // A gateway that listens on all addresses gets TLS.
    user.public.set_ip([0, 0, 0, 0].into());
    let (_gateway, printed) = user.first_run().await;
    let certificate = after(&printed, "Certificate, for clients: ");
    let url = format!("https://localhost:{}", user.public.port());
    let line = user.run(&format!("flotilla-gateway join-command --url {url}")).stdout;
    assert!(line.contains(&format!(" --join {url} --join-pin sha256:")), "{line}");
    user.node(line.trim()).wait_for_line("joined");
    let asked = user.run(&format!("curl -sS --cacert '{certificate}' {url}/livez"));
    assert_eq!(asked.code, Some(0), "{asked:?}");
    let (unpinned, _) = line.split_once(" --join-pin").unwrap();
    let wrong = format!("{unpinned} --join-pin sha256:{} --name other", "0".repeat(64));
    user.node(&wrong).wait_for_line("not that of --join-pin");
    user.node(&format!("{unpinned} --name third")).wait_for_line("invalid peer certificate");
    let ran = user.run("flotilla-agent serve --model x --join https://a --join-pin sha256:1 2>&1");
    assert!(ran.stdout.contains("sha256: and 64 hex digits"), "{ran:?}");
}

#[test]
fn init_prints_a_line_that_joins_the_address_that_it_sets_up() {
    for (flags, url) in [
        ("--listen 127.0.0.1:8099", "--join http://127.0.0.1:8099 "),
        ("--listen 127.0.0.1:8099 --tls-name gateway.example", "--join http://127.0.0.1:8099 "),
        ("--listen 192.0.2.1:8099", "--join https://192.0.2.1:8099 --join-pin sha256:"),
        (
            "--listen 0.0.0.0:8099 --tls-name gateway.example",
            "--join https://gateway.example:8099 --join-pin sha256:",
        ),
        ("--listen 0.0.0.0:8099", "flotilla-gateway join-command --url URL"),
        ("--listen 0.0.0.0:443 --domain llm.example.com", "--join https://llm.example.com "),
    ] {
        let user = User::new();
        let printed = user.run(&format!("flotilla-gateway init --dir fleet {flags}")).stdout;
        let line = format!("{} ", after(&printed, "Join a node: "));
        assert!(line.contains(url), "{flags}: {line}");
    }
}

#[test]
fn a_public_address_is_not_joined_without_tls() {
    let user = User::new();
    let model = demo_model().display().to_string();
    let serve = format!("flotilla-agent serve --model {model} --join http://192.0.2.7:8080");
    let ran = user.run(&format!("FLOTILLA_JOIN_KEY=0123456789abcdef timeout 60 {serve} 2>&1"));
    assert_eq!(ran.code, Some(77), "{ran:?}");
    assert!(ran.stdout.contains("192.0.2.7 is a public address"), "{ran:?}");
    assert!(ran.stdout.contains("--insecure"), "{ran:?}");
    // Neither does the check of a machine send the key there.
    let doctor = "flotilla-agent doctor --quick --join http://192.0.2.7:8080";
    let ran = user.run(&format!("FLOTILLA_JOIN_KEY=0123456789abcdef timeout 60 {doctor} 2>&1"));
    assert!(ran.stdout.contains("192.0.2.7 is a public address"), "{ran:?}");
}

#[test]
fn insecure_joins_a_public_address_without_tls() {
    // A network of its own, in which this machine has that address; and processes of its own,
    // which end with the first.
    let script = "
        ip link set lo up && ip address add 192.0.2.7/32 dev lo
        unset FLOTILLA_GATEWAY_LISTEN
        echo 0123456789abcdef > join.key
        printf '%s\\n' 'listen: 192.0.2.7:8080' 'allow_anonymous: true' \\
            'nodes: {join_key_file: join.key}' > gateway.yaml
        flotilla-gateway run --config gateway.yaml &
        flotilla-agent serve --model $MODEL --join http://192.0.2.7:8080 \\
            --join-key-file join.key --insecure &
        wait";
    let works = Command::new("unshare").args(["-rnpf", "ip", "address"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        skipped("this test needs unshare, ip (apt-get install iproute2) and user namespaces");
        return;
    }
    let user = User::new();
    let inside = user.bash(script);
    let mut command = Command::new("unshare");
    command.args(["-rnpf", "--kill-child", "--"]).arg(inside.get_program()).args(inside.get_args());
    command.current_dir(user.folder.path()).env("MODEL", demo_model());
    for (name, value) in inside.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let both = Server::spawn(command);
    both.wait_for_line("joined");
}
