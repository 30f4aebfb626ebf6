//! Engines in their sandbox: what a hostile model file could make them do, they try to do.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;

use fleet_tests::client::Client;
use fleet_tests::process::{Agent, Folder, Server, run};
use fleet_tests::{chat, demo_model, eventually};
use landlock::{ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
use rustix::process::Pid;
use serde_json::{Value, json};

const QUESTION: &str = "Count from 1 to 5.";
const ANSWER: &str = "1, 2, 3, 4, 5";

/// Whether this machine can confine an engine: its kernel has Landlock and seccomp. Where it has,
/// the agent must find both.
fn can_confine() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    let ruleset = ruleset.handle_access(AccessFs::from_all(ABI::V1));
    let has_landlock = ruleset.and_then(Ruleset::create).is_ok();
    let has_seccomp = Path::new("/proc/sys/kernel/seccomp/actions_avail").exists();
    if !has_landlock || !has_seccomp {
        eprintln!(
            "skipped: this kernel lacks Landlock ({has_landlock}) or seccomp ({has_seccomp})"
        );
        return false;
    }
    let found = run("flotilla-agent", &["sandbox-trial"]).stdout;
    assert_eq!(found, "{\"files\":\"on\",\"system_calls\":\"on\"}\n");
    true
}

/// What a process may do, by /proc.
fn status(process: Pid, field: &str) -> String {
    let path = format!("/proc/{}/status", process.as_raw_nonzero());
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().to_string()
}

/// What an engine attempts, and what there is to be reached.
struct Outside {
    folder: Folder,
    tcp: TcpListener,
    _unix: UnixListener,
}

impl Outside {
    fn new() -> Self {
        let folder = Folder::new();
        std::fs::copy(demo_model(), folder.path().join("model.gguf")).unwrap();
        folder.write("join.key", "a-key-that-nobody-else-should-read");
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let _unix = UnixListener::bind(folder.path().join("socket")).unwrap();
        Self { folder, tcp, _unix }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_string()
    }

    /// An agent whose engine attempts all of it, and what came of that.
    async fn attempts(&self, sandbox: &str, more: &[&str]) -> (Agent, BTreeMap<String, String>) {
        let in_temp = format!("{}-beside", self.folder.path().display());
        let wanted = json!({
            "tcp": self.tcp.local_addr().unwrap(),
            "unix": self.path("socket"),
            "create": [self.path("new"), in_temp],
            "read": ["/etc/passwd", self.path("join.key"), "/proc/self/environ"],
            "write": [self.path("model.gguf"), self.path("join.key"), "/dev/null"],
            "shell": "/bin/sh",
        });
        let model = self.path("model.gguf");
        let usual = ["serve", "--model", &model, "--listen", "127.0.0.1:0", "--threads", "1"];
        let usual = [&usual[..], &["--model-name", "flotilla-demo"]].concat();
        let all = [&usual[..], &["--sandbox", sandbox], more].concat();
        let (wanted, cache) = (wanted.to_string(), self.path("cache"));
        let variables = [("FLOTILLA_FAULT_ESCAPE", &wanted[..]), ("FLOTILLA_CACHE_DIR", &cache)];
        let server = Server::start_with("flotilla-agent", &all, &variables);
        let client = Client::new(server.address(), None);
        let agent = Agent { server, client };
        agent.ready().await;
        let line: Value =
            serde_json::from_str(&agent.server.wait_for_line("escape attempts")).unwrap();
        let results = serde_json::from_value(line["results"].clone()).unwrap();
        let _ = std::fs::remove_file(&in_temp);
        let _ = std::fs::remove_file(self.path("new"));
        (agent, results)
    }
}

#[tokio::test]
async fn an_engine_that_tries_to_break_out_gets_nowhere_and_goes_on_serving() {
    if !can_confine() {
        return;
    }
    let outside = Outside::new();
    // Without a sandbox all of it works: the attempts are real ones.
    let (free, results) = outside.attempts("off", &[]).await;
    assert!(results.len() >= 15, "{results:?}");
    for (attempt, result) in &results {
        // The kernel may ask for more than the same user here.
        let may_fail = attempt == "read the agent's memory";
        assert!(result == "succeeded" || may_fail, "{attempt}: {result}");
    }
    drop(free);
    for more in [&[][..], &["--load", "none", "--no-huge-pages"], &["--load", "mlock"]] {
        let (agent, refused) = outside.attempts("on", more).await;
        for (attempt, result) in &refused {
            assert_ne!(result, "succeeded", "{attempt}");
        }
        assert!(results.keys().all(|attempt| refused.contains_key(attempt)), "{refused:?}");
        // Not merely by Landlock: there is no such system call.
        for attempt in ["become another program", "start another program", "connect to a TCP port"]
        {
            assert!(refused[attempt].contains("os error 38"), "{attempt}: {refused:?}");
        }
        let engine = agent.engine();
        let answer = agent.client.chat(&chat(QUESTION)).await;
        assert_eq!(answer.content(), ANSWER);
        assert_eq!(agent.engine(), engine, "the same engine serves");
        assert_eq!(agent.metric("node_engine_restarts_total").await, 0.0);
    }
}

#[tokio::test]
async fn an_engine_that_saves_prefixes_on_disk_writes_to_nothing_else() {
    if !can_confine() {
        return;
    }
    let outside = Outside::new();
    let (mut agent, refused) = outside.attempts("on", &["--prefix-disk-mib", "64"]).await;
    assert!(refused.len() >= 15, "{refused:?}");
    for (attempt, result) in &refused {
        assert_ne!(result, "succeeded", "{attempt}");
    }
    for attempt in ["become another program", "start another program", "connect to a TCP port"] {
        assert!(refused[attempt].contains("os error 38"), "{attempt}: {refused:?}");
    }
    let long = format!("{QUESTION} {}", "Count again. ".repeat(20));
    assert_eq!(agent.client.chat(&chat(&long)).await.status, 200);
    agent.server.signal(rustix::process::Signal::TERM);
    assert_eq!(agent.server.ended().await, Some(0));
    let files = std::fs::read_dir(outside.path("cache/prefixes")).unwrap().count();
    assert_eq!(files, 1, "{}", agent.server.log());
}

#[tokio::test]
async fn an_engine_that_saves_slots_writes_to_nothing_else() {
    if !can_confine() {
        return;
    }
    let (outside, slots) = (Outside::new(), Folder::new());
    let saves = ["--slot-save-path", slots.path().to_str().unwrap(), "--prefix-disk-mib", "64"];
    let (agent, refused) = outside.attempts("on", &saves).await;
    assert!(refused.len() >= 15, "{refused:?}");
    for (attempt, result) in &refused {
        assert_ne!(result, "succeeded", "{attempt}");
    }
    assert_eq!(agent.client.chat(&chat(QUESTION)).await.status, 200);
    let saved = agent.client.post("/slots/0?action=save", "{\"filename\": \"a\"}").await;
    assert_eq!(saved.status, 200, "{saved:?}");
    assert_eq!(std::fs::read_dir(slots.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn engines_are_confined_unless_somebody_says_otherwise() {
    if !can_confine() {
        return;
    }
    let agent = Agent::start(&[]).await;
    assert_eq!(status(agent.engine(), "Seccomp"), "2");
    assert_eq!(status(agent.engine(), "NoNewPrivs"), "1");
    agent.server.wait_for_line("\"sandbox\":\"files and system calls\"");
    for part in ["files", "system_calls"] {
        let metric = format!("node_engine_sandbox{{part=\"{part}\"}}");
        assert_eq!(agent.metric(&metric).await, 1.0);
    }
    let free = Agent::start(&["--sandbox", "off"]).await;
    let filters = status(free.server.pid(), "Seccomp");
    assert_eq!(status(free.engine(), "Seccomp"), filters, "as its agent");
    free.server.wait_for_line("\"sandbox\":\"none\"");
    assert_eq!(free.metric("node_engine_sandbox{part=\"files\"}").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_parses_a_model_file_is_confined() {
    if !can_confine() {
        return;
    }
    let model = demo_model();
    let model = model.to_str().unwrap();
    let checked = run("flotilla-agent", &["check", "--sandbox", "on", model]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.stdout, checked.stderr);
    let tune = ["tune", "--sandbox", "on", "--threads", "1", "--seconds", "60", model];
    let bench = ["bench", "--sandbox", "on", "--threads", "1", "--rounds", "1", model];
    let trials: [(&[&str], &[&str]); 2] =
        [(&tune, &["tune-trials"]), (&bench, &["memory-trial", "kernels-trial", "speed-trials"])];
    for (command, names) in trials {
        let mut server = Server::start("flotilla-agent", command);
        for name in names {
            eventually("a confined child", async || {
                let is_it = |child: &Pid| {
                    let path = format!("/proc/{}", child.as_raw_nonzero());
                    let line = std::fs::read_to_string(format!("{path}/cmdline"));
                    let status = std::fs::read_to_string(format!("{path}/status"));
                    line.is_ok_and(|line| line.contains(name))
                        && status.is_ok_and(|status| status.contains("Seccomp:\t2"))
                };
                server.children().iter().any(is_it).then_some(())
            })
            .await;
        }
        assert_eq!(server.ended().await, Some(0), "{}", server.log());
    }
}
