//! The demo, and every command of the README, as a newcomer would run them.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use fleet_tests::process::{Agent, Folder, Server, binary, run};
use fleet_tests::{demo_model, eventually, root};
use rustix::process::{Pid, Signal, kill_process};

use crate::first_run::{User, after};
use crate::hub_models::hub_of_demo_models;

/// Fenced blocks of the README: language and text.
fn fenced_blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => open = Some((language.to_string(), String::new())),
            (None, Some((_, block))) => block.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

fn readme() -> Vec<(String, String)> {
    fenced_blocks(&std::fs::read_to_string(root().join("README.md")).unwrap())
}

fn block(language: &str, part: &str) -> String {
    let found: Vec<_> =
        readme().into_iter().filter(|(l, text)| l == language && text.contains(part)).collect();
    assert_eq!(found.len(), 1, "blocks with '{part}'");
    found[0].1.clone()
}

/// Runs a block as it stands, with our binaries in the path.
fn shell(block: &str, folder: &Folder) -> String {
    let output = bash(block, folder).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{block}: {text}{:?}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

fn bash(block: &str, folder: &Folder) -> Command {
    let programs = binary("flotilla-gateway").parent().unwrap().to_path_buf();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-euo", "pipefail", "-c", block]).current_dir(folder.path()).env("PATH", path);
    command
}

#[test]
fn every_command_of_the_readme_is_run_by_a_test() {
    let mut commands = 0;
    for (language, text) in readme() {
        match language.as_str() {
            "sh" => commands += 1,
            "yaml" | "python" => {}
            other => panic!("nothing runs blocks of '{other}': {text}"),
        }
    }
    // demo, one machine, a fleet, one of several machines, client, operators, test: each has its
    // test below, or is what CI itself calls.
    assert_eq!(commands, 7);
    let ci = std::fs::read_to_string(root().join(".ci/run")).unwrap();
    assert!(ci.contains(block("sh", "make test").trim()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_is_set_up_and_asked_as_the_readme_says() {
    let user = User::new();
    assert!(readme().contains(&("sh".into(), "flotilla-gateway run\n".into())));
    let (_gateway, printed) = user.first_run().await;
    let key = after(&printed, "API key, shown once: ");
    let model = user.folder.path().join("flotilla-demo.gguf");
    std::fs::copy(demo_model(), model).unwrap();
    let join = after(&printed, "Join a node on this machine: ");
    let _agent = user.node(&format!("{join} --name node-1"));
    let (address, url) = (user.public.to_string(), format!("http://{}", user.public));
    eventually("the gateway to be ready", async || {
        user.run(&format!("curl -s {url}/readyz")).stdout.starts_with("ready").then_some(())
    })
    .await;

    let ask = block("sh", "OPENAI_BASE_URL").replace("gateway.example:8080", &address);
    let said = user.run(&ask.replace("sk-flotilla-yours", key)).stdout;
    assert!(said.contains("Paris") && said.ends_with("data: [DONE]\n\n"), "{said}");

    let output = Command::new(root().join("target/sdk/openai/bin/python"))
        .args(["-c", &block("python", "OpenAI()")])
        .env("OPENAI_BASE_URL", format!("{url}/v1"))
        .env("OPENAI_API_KEY", key)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("Paris"), "{output:?}");

    let said = user.run(&block("sh", "flotilla-gateway drain")).stdout;
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[1].starts_with("node-1") && lines[1].contains("ready"), "{said}");
    assert_eq!(lines[2..], ["node-1: drained", "node-1: done"], "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_of_several_machines_is_set_up_as_the_readme_says() {
    let user = User::new();
    let port = user.public.port();
    let commands = block("sh", "flotilla-gateway init");
    let commands = commands.replace("0.0.0.0:8443", &format!("0.0.0.0:{port}"));
    let commands = commands.replace("gateway.example", "localhost");
    // The first line installs a release: tests/tests/install.
    let [_, init, serve] = commands.lines().collect::<Vec<_>>()[..] else {
        panic!("{commands}");
    };
    let made = user.run(init).stdout;
    let key = after(&made, "API key, shown once: ");
    let certificate = after(&made, "Certificate: ");
    let join = after(&made, "Join a node: ");
    let again = format!("flotilla-gateway join-command --url https://localhost:{port}");
    assert_eq!(user.run(&again).stdout.trim(), join);
    let gateway = Server::spawn(user.bash(&format!("exec {serve}")));
    gateway.wait_for_line("\"listening on https");
    let joined = user.node(join);
    joined.wait_for_line("joined");
    let ask = format!(
        "curl -sS --cacert {certificate} https://localhost:{port}/v1/models \
         -H 'Authorization: Bearer {key}'"
    );
    eventually("the model", async || user.run(&ask).stdout.contains("flotilla-demo").then_some(()))
        .await;
}

#[tokio::test]
async fn one_machine_serves_a_model_as_the_readme_says() {
    let folder = Folder::new();
    let hub = hub_of_demo_models("qwen2.5-1.5b-instruct-q4_k_m.gguf");
    let serve =
        block("sh", "target/release/flotilla-agent serve hf:").replace("target/release/", "");
    let mut serve = bash(&format!("exec {} --listen 127.0.0.1:0", serve.trim()), &folder);
    serve.env("HF_ENDPOINT", hub.url("")).env("FLOTILLA_CACHE_DIR", folder.path());
    let server = Server::spawn(serve);
    let client = fleet_tests::client::Client::new(server.address(), None);
    let agent = Agent { server, client };
    agent.ready().await;
    let mut request = fleet_tests::chat("What is the capital of Peru?");
    request["model"] = "Qwen2.5-1.5B-Instruct".into();
    assert_eq!(agent.client.chat(&request).await.content(), "The capital of Peru is Lima.");
}

/// The whole of `make demo ONCE=1` but for the build, which made the binaries of this test.
#[test]
fn the_demo_shows_an_answer_and_stops_by_itself() {
    let output = Command::new(root().join("scripts/demo.sh"))
        .arg("--once")
        .env("PORT", "0")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("\nThe capital of France is Paris.\n"), "{said}");
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    assert!(makefile.contains("scripts/demo.sh $(if $(ONCE),--once)"));
    assert_eq!(block("sh", "make demo"), "make demo\n");
}

#[test]
fn what_would_be_installed_is_listed_and_not_installed() {
    let list = |path: &str| {
        let mut setup = Command::new(root().join("scripts/setup.sh"));
        let output = setup.env("LIST", "1").env("PATH", path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let path = std::env::var("PATH").unwrap();
    assert_eq!(list(&path), "Nothing to install: all packages are here.\n");
    // A machine without cmake.
    let folder = Folder::new();
    for tool in ["bash", "env", "id", "apt-get", "c++", "curl", "cargo"] {
        let find = path.split(':').map(|folder| std::path::Path::new(folder).join(tool));
        if let Some(found) = find.into_iter().find(|path| path.exists()) {
            std::os::unix::fs::symlink(found, folder.path().join(tool)).unwrap();
        }
    }
    let listed = list(folder.path().to_str().unwrap());
    assert!(
        listed.starts_with("Would run: ") && listed.ends_with("apt-get install cmake\n"),
        "{listed}"
    );
    let makefile = std::fs::read_to_string(root().join("Makefile")).unwrap();
    assert!(makefile.contains("@LIST=$(LIST) scripts/setup.sh test\n"));
}

#[test]
fn the_demo_says_so_when_its_port_is_taken() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = Command::new(root().join("scripts/demo.sh"))
        .arg("--once")
        .env("PORT", port)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("another program uses this port") && said.contains("PORT="), "{said}");
}

/// Processes whose command line names this folder or file.
fn processes_with(part: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|e| std::fs::read(e.path().join("cmdline")).ok());
    let lines = lines.map(|l| String::from_utf8_lossy(&l).replace('\0', " "));
    lines.filter(|l| l.contains(part)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_prints_snippets_that_work_and_ends_everything_on_ctrl_c() {
    let folder = Folder::new();
    // A shell cannot trap what was ignored when it began, as in a background job of CI.
    let mut demo = Command::new("env")
        .arg("--default-signal=INT")
        .arg(root().join("scripts/demo.sh"))
        .env("PORT", "0")
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(demo.stdout.take().unwrap());
    let mut said = String::new();
    while !said.contains("Ctrl-C ends everything.") {
        assert!(output.read_line(&mut said).unwrap() > 0, "the demo ended: {said}");
    }
    let snippet = |from: &str, to: &str| {
        let start = said.find(from).unwrap();
        said[start..start + said[start..].find(to).unwrap()].to_string()
    };
    let curl = snippet("curl -N http", "\n\nWith Python");
    assert!(shell(&curl, &folder).ends_with("data: [DONE]\n\n"));
    folder.write("ask.py", snippet("from openai import", "\n\nThe fleet page is"));
    let export = snippet("export OPENAI_BASE_URL=", "\n");
    let python = root().join("target/sdk/openai/bin/python");
    let python = format!("{export}; {} ask.py; rm ask.py", python.display());
    assert_eq!(shell(&python, &folder), "r-o-c-k-e-t\n");

    // Where there is a Prometheus, it scrapes the gateway and both nodes.
    match said.split_once("Prometheus scrapes all of it: ") {
        Some((_, rest)) => {
            let url = rest.lines().next().unwrap();
            let ask = format!("curl -s '{url}api/v1/query?query=sum(up)'");
            let scrapes = async || shell(&ask, &folder).contains(",\"3\"]").then_some(());
            eventually("three targets that answer", scrapes).await;
        }
        None => assert!(!root().join("target/prometheus/usr/bin/prometheus").exists(), "{said}"),
    }

    // The demo survives a node that is killed as it suggests.
    let pid: i32 = snippet("kill -9 ", "\n")[8..].parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    assert!(shell(&curl, &folder).ends_with("data: [DONE]\n\n"));

    let part = folder.path().to_str().unwrap();
    assert!(processes_with(part).len() >= 2);
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    let status = eventually("the demo to end", async || demo.try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(130));
    output.read_to_string(&mut said).unwrap();
    assert_eq!(processes_with(part), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "files stay behind");
}

#[test]
fn both_programs_explain_themselves() {
    for (program, parts) in [
        ("flotilla-gateway", ["run", "check", "key"]),
        ("flotilla-agent", ["serve", "model", "OpenAI"]),
    ] {
        let help = run(program, &["--help"]);
        assert_eq!(help.code, Some(0));
        assert!(parts.iter().all(|p| help.stdout.contains(p)), "{}", help.stdout);
        assert!(!help.stdout.contains("kernel-trial"), "roles of the agent itself are hidden");
        assert_eq!(run(program, &["--version"]).code, Some(0));
        assert_eq!(run(program, &["--no-such-flag"]).code, Some(64));
    }
}

#[test]
fn a_build_that_is_to_be_trained_says_what_it_lacks() {
    let folder = Folder::new();
    let text = "#!/bin/sh\necho 'host: x86_64-unknown-linux-gnu'\necho 'LLVM version: 999.1.2'\n";
    let rustc = folder.write("rustc", text);
    std::fs::set_permissions(rustc, PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut script = Command::new(root().join("scripts/pgo.sh"));
    let ran = script.arg(folder.path()).env("PATH", path).env("CARGO", "false").output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(1), "{said}");
    assert!(said.contains("llvm-profdata 999 is missing") && said.contains("llvm-999"), "{said}");
}
