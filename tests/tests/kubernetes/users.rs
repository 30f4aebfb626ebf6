//! Pods with user ids that a cluster assigns, as on OpenShift: no entry in /etc/passwd, no home
//! folder, group 0, no rights.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use fleet_tests::client::Client;
use fleet_tests::process::{ADMIN_KEY, Folder, JOIN_KEY, Server, binary};
use fleet_tests::tools::has;
use fleet_tests::{chat, demo_model, eventually};
use rustix::process::{Pid, Signal, geteuid};

/// The first of a range that OpenShift gives to a namespace.
const USER: &str = "1000650000";

/// A program that nobody knows runs, with nothing in its environment but these variables.
fn command(program: &Path, arguments: &[&str], variables: &[String]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", USER, "--regid", "0", "--clear-groups", "--no-new-privs"])
        .args(["--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"])
        .args(["env", "--ignore-environment", "RUST_LOG=info"])
        .args(variables)
        .arg(program)
        .args(arguments)
        .current_dir("/");
    command
}

/// User and group of a process.
fn ids(process: Pid) -> [String; 2] {
    let path = format!("/proc/{}/status", process.as_raw_nonzero());
    let status = std::fs::read_to_string(path).unwrap();
    ["Uid:", "Gid:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().to_string()
    })
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Files as a cluster mounts them: Secrets of group 0 that others cannot read, and one folder that
/// the group may write to.
fn files() -> Folder {
    let folder = Folder::new();
    set_mode(folder.path(), 0o755);
    for name in ["flotilla-gateway", "flotilla-agent"] {
        std::fs::copy(binary(name), folder.path().join(name)).unwrap();
    }
    std::fs::copy(demo_model(), folder.path().join("flotilla-demo.gguf")).unwrap();
    for (name, content) in [("join.key", JOIN_KEY), ("admin.key", ADMIN_KEY)] {
        set_mode(&folder.write(name, content), 0o440);
    }
    let state = folder.path().join("state");
    std::fs::create_dir(&state).unwrap();
    set_mode(&state, 0o775);
    let config = "listen: 127.0.0.1:0\nallow_anonymous: true\nstate_file: state/state.json\n\
                  admin: {listen: '127.0.0.1:0', key_file: admin.key}\n\
                  nodes: {join_key_file: join.key}\n";
    folder.write("gateway.yaml", config);
    folder
}

#[tokio::test(flavor = "multi_thread")]
async fn both_programs_run_as_a_user_that_no_file_knows() {
    if !geteuid().is_root() || !has("setpriv", "util-linux") {
        eprintln!("skipped: only root can become any user");
        return;
    }
    let folder = files();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let config = path("gateway.yaml");
    let gateway = folder.path().join("flotilla-gateway");
    let mut gateway = Server::spawn(command(&gateway, &["run", "--config", &config], &[]));
    let _admin = gateway.address();
    let address = gateway.address();

    let (model, join, key) =
        (path("flotilla-demo.gguf"), format!("http://{address}"), path("join.key"));
    let serve = ["serve", "--model", &model, "--threads", "1", "--listen", "127.0.0.1:0"];
    let joins = ["--name", "a", "--join", &join, "--join-key-file", &key];
    let cache = format!("FLOTILLA_CACHE_DIR={}", path("state"));
    let agent = folder.path().join("flotilla-agent");
    let mut agent = Server::spawn(command(&agent, &[&serve[..], &joins].concat(), &[cache]));
    agent.wait_for_line("engine ready");

    let client = Client::new(address, None);
    let answer = eventually("an answer", async || {
        let answer = client.chat(&chat("What is the capital of France?")).await;
        (answer.status == 200).then_some(answer)
    })
    .await;
    assert_eq!(answer.content(), "The capital of France is Paris.");
    let engine = agent.children()[0];
    for process in [gateway.pid(), agent.pid(), engine] {
        assert_eq!(ids(process), [USER, "0"]);
    }
    for server in [&mut agent, &mut gateway] {
        server.signal(Signal::TERM);
        assert_eq!(server.ended().await, Some(0), "{}", server.log());
    }
    assert!(folder.path().join("state/state.json").exists(), "{}", gateway.log());
}
