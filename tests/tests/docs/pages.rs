//! Every command of the documentation, run by bash in a folder of its own, with our programs in its
//! path, the demo model as `model.gguf`, and every address on loopback.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use fleet_tests::postgres::free_port;
use fleet_tests::process::{Folder, Server, binary};
use fleet_tests::{demo_model, root};

use crate::blocks::{Block, Do, blocks};
use crate::current;

/// Pages whose commands are run here, each in its test below.
const RUN: [&str; 11] = [
    "app-developer.md",
    "README.md",
    "quick-start.md",
    "config.md",
    "gpu-overflow.md",
    "models.md",
    "tuning.md",
    "capacity.md",
    "security.md",
    "failures.md",
    "webhooks.md",
];

/// A page under way.
pub struct Page {
    name: String,
    pub folder: Folder,
    /// Where the page's ports are here.
    pub ports: BTreeMap<u16, u16>,
    /// Further variables of its commands.
    pub variables: Vec<(&'static str, String)>,
    servers: Vec<Server>,
    ran: usize,
}

impl Page {
    pub fn new(name: &str) -> Self {
        let folder = Folder::new();
        std::fs::copy(demo_model(), folder.path().join("model.gguf")).unwrap();
        let (ports, variables) = (BTreeMap::new(), Vec::new());
        Self { name: name.into(), folder, ports, variables, servers: Vec::new(), ran: 0 }
    }

    /// The text with ports that are free here: the same one for the same one.
    fn here(&mut self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(':') {
            let (before, after) = rest.split_at(at);
            let from = before.rfind(|c: char| !(c.is_ascii_alphanumeric() || ".-_".contains(c)));
            let from = from.map_or(0, |at| at + 1);
            let host = &before[from..];
            let digits: String = after[1..].chars().take_while(char::is_ascii_digit).collect();
            let is_ours =
                ["127.0.0.1", "0.0.0.0", "localhost"].contains(&host) || host.ends_with(".example");
            match digits.parse::<u16>() {
                Ok(port) if is_ours && digits.len() >= 4 => {
                    let free = *self.ports.entry(port).or_insert_with(free_port);
                    out.push_str(&format!("{}127.0.0.1:{free}", &before[..from]));
                }
                _ => out.push_str(&format!("{before}:{digits}")),
            }
            rest = &after[1 + digits.len()..];
        }
        out + rest
    }

    /// A script in the page's folder, with our programs in its path.
    pub fn bash(&mut self, script: &str) -> Command {
        let programs = binary("flotilla-gateway").parent().unwrap().to_path_buf();
        let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        for name in ["XDG_STATE_HOME", "FLOTILLA_HOME", "FLOTILLA_CONFIG"] {
            command.env_remove(name);
        }
        command
            .env("FLOTILLA_GATEWAY_LISTEN", self.here("127.0.0.1:8080"))
            .env("FLOTILLA_GATEWAY_ADMIN_LISTEN", self.here("127.0.0.1:8081"))
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(self.folder.path())
            .env("PATH", path)
            .env("FLOTILLA_CACHE_DIR", self.folder.path().join("cache"))
            .env("HOME", self.folder.path())
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null());
        command
    }

    pub fn follow(&mut self, block: &Block) {
        let text = self.here(&block.text);
        match &block.then {
            Do::Write(name) => {
                self.folder.write(name, text);
            }
            Do::Run(wanted) => {
                let output = self.bash(&text).output().unwrap();
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                let complained = String::from_utf8_lossy(&output.stderr);
                let name = &self.name;
                assert!(
                    output.status.success(),
                    "{name}: {text}\n{said}{complained}{}",
                    self.logs()
                );
                if let Some(wanted) = wanted {
                    assert!(said.contains(wanted), "{name}: {text}\nno '{wanted}' in {said}");
                }
                self.ran += 1;
            }
            Do::Serve => {
                let server = Server::spawn(self.bash(&format!("exec {text}")));
                server.wait_for_line(if text.contains("--join") {
                    "joined"
                } else {
                    "listening on http"
                });
                self.servers.push(server);
                self.ran += 1;
            }
            Do::Leave(_) | Do::Show => {}
        }
    }

    fn logs(&self) -> String {
        self.servers.iter().map(Server::log).collect()
    }
}

fn follow(name: &str) {
    let mut page = Page::new(name);
    for block in blocks(&current::read(&format!("docs/{name}"))) {
        page.follow(&block);
    }
    eprintln!("{name}: {} blocks were run", page.ran);
}

fn documents() -> Vec<PathBuf> {
    let files = std::fs::read_dir(root().join("docs")).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|e| e == "md")).collect()
}

#[test]
fn the_index_is_followed() {
    follow("README.md");
}

#[test]
fn the_quick_start_is_followed() {
    follow("quick-start.md");
}

#[test]
fn the_reference_of_the_configuration_is_followed() {
    let mut page = Page::new("config.md");
    let yaml = "allow_anonymous: true\nnodes: {static: [{url: 'http://127.0.0.1:9'}]}\n";
    page.folder.write("gateway.yaml", yaml);
    for block in blocks(&current::read("docs/config.md")) {
        page.follow(&block);
    }
    assert_eq!(page.ran, 1);
}

#[test]
fn overflow_to_a_gpu_is_set_up_as_its_page_says() {
    follow("gpu-overflow.md");
}

#[test]
fn a_model_is_named_as_its_page_says() {
    follow("models.md");
}

#[test]
fn a_machine_is_tuned_as_its_page_says() {
    follow("tuning.md");
}

#[test]
fn capacity_is_planned_as_its_page_says() {
    follow("capacity.md");
}

#[test]
fn what_the_page_about_security_says_is_done() {
    follow("security.md");
}

#[test]
fn what_the_page_about_webhooks_says_is_done() {
    follow("webhooks.md");
}

#[test]
fn what_the_handbook_of_failures_says_is_done() {
    follow("failures.md");
}

/// Pages whose commands tests of another kind run, and these tests.
const RUN_BY: [(&str, &str); 8] = [
    ("background.md", "tests/process/operate.rs"),
    ("batches.md", "tests/process/operate.rs"),
    ("containers.md", "tests/packaging/vps.rs"),
    ("kubernetes.md", "chart/test_docs.py"),
    ("logs.md", "tests/process/logs.rs"),
    ("usage.md", "tests/process/operate.rs"),
    ("users.md", "tests/process/users.rs"),
    ("vps.md", "tests/packaging/vps.rs"),
];

/// True if a test of another kind reads the page.
fn is_run_elsewhere(name: &str) -> bool {
    let by = RUN_BY.iter().find(|(page, _)| *page == name);
    by.is_some_and(|(_, test)| current::read(&format!("tests/{test}")).contains(name))
}

#[test]
fn every_command_is_run_or_says_what_it_needs() {
    let mut not_run = Vec::new();
    for path in documents() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let page = blocks(&std::fs::read_to_string(&path).unwrap());
        let runs = page.iter().any(|block| matches!(block.then, Do::Run(_) | Do::Serve));
        let is_run = RUN.contains(&name.as_str()) || is_run_elsewhere(&name);
        not_run.extend((runs && !is_run).then_some(name));
    }
    assert!(not_run.is_empty(), "nothing runs the commands of {not_run:?}");
}

#[test]
fn every_page_is_in_the_index_and_every_link_leads_somewhere() {
    let index = current::read("docs/README.md");
    for path in documents() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            name == "README.md" || index.contains(&format!("]({name})")),
            "{name} is in no index"
        );
        for link in text.split("](").skip(1) {
            let (target, part) = split(link.split(')').next().unwrap());
            if target.contains("://") || later(target) {
                continue;
            }
            let file =
                if target.is_empty() { path.clone() } else { root().join("docs").join(target) };
            assert!(file.exists(), "docs/{name} links to {target}");
            let there = std::fs::read_to_string(&file).unwrap_or_default();
            let has =
                part.is_empty() || there.lines().any(|line| anchor(line) == Some(part.into()));
            assert!(has, "docs/{name} links to {target}#{part}");
        }
    }
}

fn split(link: &str) -> (&str, &str) {
    link.split_once('#').unwrap_or((link, ""))
}

/// Pages that the index names and that this checkout may not have.
fn later(target: &str) -> bool {
    let named = ["kubernetes.md", "vps.md", "containers.md", "metrics.md", "runbooks.md"];
    named.contains(&target) && !root().join("docs").join(target).exists()
}

/// The name by which a heading is linked.
fn anchor(line: &str) -> Option<String> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
}
