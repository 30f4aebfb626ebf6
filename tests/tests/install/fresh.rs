//! The README's commands on a clean system without a compiler: from install.sh to a node that
//! answers the `openai` package over https.

use std::fs::{File, read_to_string};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use fleet_tests::process::Folder;
use fleet_tests::{demo_model, eventually, root};

use crate::release::{Release, URL, own_architecture};
use crate::system::{System, done};

const ASK: &str = r#"
from openai import OpenAI

client = OpenAI()
messages = [{"role": "user", "content": "What is the capital of France?"}]
answer = client.chat.completions.create(model="flotilla-demo", messages=messages)
print(answer.choices[0].message.content)
"#;

/// A process that ends with its handle, and logs to a file.
struct Running(Child);

impl Running {
    fn start(command: &mut Command, log: &Path) -> Self {
        let log = File::create(log).unwrap();
        Self(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The README's commands for a new machine: install, create the configuration, run.
fn commands() -> Vec<String> {
    let readme = read_to_string(root().join("README.md")).unwrap();
    let blocks = readme.split("```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut found = blocks.filter(|block| block.contains("install.sh | sh\n"));
    let block = found.next().expect("a block that installs a release");
    assert!(found.next().is_none(), "one block installs a release");
    block.lines().map(String::from).collect()
}

/// The value after a label on a line of its own.
fn after<'a>(printed: &'a str, label: &str) -> &'a str {
    let found = printed.lines().find_map(|line| line.strip_prefix(label));
    found.unwrap_or_else(|| panic!("no '{label}' in: {printed}"))
}

async fn install_and_ask(suite: &str) {
    if let Some(release) = Release::usual() {
        install_release_and_ask(suite, own_architecture(), release).await;
    }
}

async fn install_release_and_ask(suite: &str, architecture: &str, release: &Release) {
    let names = ["releases.example", "gateway.example"];
    let Some(system) = System::start(suite, architecture, &names).await else { return };
    assert!(!system.run("command -v cc || command -v cargo").ok, "a compiler is installed");
    let mut server = system.outside("python3");
    server.args(["-m", "http.server", "-b", "127.0.0.1", "-d"]).arg(release.path()).arg("80");
    let logs = Folder::new();
    let log = |name: &str| logs.path().join(name);
    let _server = Running::start(&mut server, &log("mirror"));
    eventually("the mirror", async || {
        system.run(&format!("curl -sf {URL}/SHA256SUMS")).ok.then_some(())
    })
    .await;

    let commands = commands();
    let [install, init, run] = &commands[..] else { panic!("{commands:?}") };
    let address = install.split_whitespace().find(|word| word.starts_with("https://")).unwrap();
    let printed = system.succeed(&install.replace(address, &format!("{URL}/install.sh")));
    assert!(printed.contains("Installed flotilla-agent"), "{printed}");

    let printed = system.succeed(init);
    let key = after(&printed, "API key, shown once: ");
    let certificate = after(&printed, "Certificate: ");
    let join = after(&printed, "Join a node: ");
    let _gateway = Running::start(&mut system.shell(&format!("exec {run}")), &log("gateway"));
    std::fs::copy(demo_model(), system.path("/root/flotilla-demo.gguf")).unwrap();
    let join = join.replace("serve MODEL ", "serve flotilla-demo.gguf ");
    let (variable, serve) = join.split_once(' ').unwrap();
    let mut node = system.shell(&format!("export {variable}\nexec {serve}"));
    let _node = Running::start(&mut node, &log("node"));
    let url = "https://gateway.example:8443";
    eventually("the node to join", async || {
        system.run(&format!("curl -sf --cacert {certificate} {url}/readyz")).ok.then_some(())
    })
    .await;

    let python = root().join("target/sdk/openai/bin/python");
    let mut ask = system.outside(python.to_str().unwrap());
    ask.args(["-c", ASK]).env("OPENAI_BASE_URL", format!("{url}/v1"));
    ask.env("OPENAI_API_KEY", key).env("SSL_CERT_FILE", system.path(certificate));
    let answer = done(&mut ask);
    let logged = ["gateway", "node"].map(|name| read_to_string(log(name)).unwrap()).concat();
    let is_right = answer.ok && answer.printed.contains("Paris");
    assert!(is_right, "{}\n{logged}", answer.printed);
    // Nobody else is served: neither without the key, nor without TLS.
    let status = "curl -s -o /dev/null -w %{http_code}";
    let list = format!("{status} --cacert {certificate} {url}/v1/models");
    assert_eq!(system.succeed(&list), "401");
    assert!(!system.run(&format!("curl -sf {}/livez", url.replace("https", "http"))).ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_debian_12_is_a_fleet_after_four_commands() {
    install_and_ask("bookworm").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_debian_13_is_a_fleet_after_four_commands() {
    install_and_ask("trixie").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs programs for ARM64 and is emulated: make test-arm64"]
async fn a_clean_debian_on_arm64_is_a_fleet_after_four_commands() {
    let release = Release::build("arm64").expect("packages can be built");
    for suite in ["bookworm", "trixie"] {
        install_release_and_ask(suite, "arm64", &release).await;
    }
}
