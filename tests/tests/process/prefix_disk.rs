//! Saved prefixes on disk: conversations continue after a restart, and files that are not what they
//! should be change nothing.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use fleet_tests::client::Client;
use fleet_tests::process::{Agent, Folder, Server, run};
use rustix::process::Signal;
use serde_json::{Value, json};

const SIZES: [&str; 6] = ["--slots", "2", "--context-tokens", "2048", "--model-name", "m"];
const ON: [&str; 2] = ["--prefix-disk-mib", "64"];
const DISK_HITS: &str = "node_saved_prefix_hits_total{tier=\"disk\"}";

/// A synthetic model, and the cache folder of its agents.
pub(crate) struct Place {
    pub(crate) folder: Folder,
    model: PathBuf,
}

impl Place {
    pub(crate) fn new(shape: &str) -> Self {
        let folder = Folder::new();
        let model = folder.path().join("model.gguf");
        let arguments = ["synth", "--shape", shape, "--quant", "f16", model.to_str().unwrap()];
        assert_eq!(run("flotilla-agent", &arguments).code, Some(0));
        Self { folder, model }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn files(&self) -> Vec<PathBuf> {
        let all = std::fs::read_dir(self.cache().join("prefixes"));
        let mut all: Vec<PathBuf> =
            all.into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all
    }

    pub(crate) async fn agent(&self, more: &[&str]) -> Agent {
        let usual = ["serve", "--listen", "127.0.0.1:0", "--threads", "1", "--model"];
        let model = self.model.to_str().unwrap();
        let all = [&usual[..], &[model], &SIZES, more].concat();
        let variables = [("FLOTILLA_CACHE_DIR", self.cache().to_str().unwrap().to_string())];
        let variables = variables.each_ref().map(|(name, value)| (*name, &value[..]));
        let server = Server::start_with("flotilla-agent", &all, &variables);
        let client = Client::new(server.address(), None);
        let agent = Agent { server, client };
        agent.ready().await;
        agent
    }
}

async fn complete(agent: &Agent, prompt: &str) -> Value {
    let body = json!({"model": "m", "prompt": prompt, "max_tokens": 30, "temperature": 0,
        "ignore_eos": true});
    agent.client.post("/v1/completions", body.to_string()).await.json()
}

pub(crate) fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

pub(crate) fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn tokens(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens"].as_u64().unwrap()
}

fn prompt() -> String {
    "to be or not ".repeat(100)
}

async fn stop(mut agent: Agent) {
    agent.server.signal(Signal::TERM);
    assert_eq!(agent.server.ended().await, Some(0), "{}", agent.server.log());
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn a_conversation_continues_after_a_restart_with_the_same_tokens() {
    for shape in ["tiny", "tiny-hybrid"] {
        let place = Place::new(shape);
        let plain = place.agent(&["--no-prefix-cache"]).await;
        let agent = place.agent(&ON).await;
        let first = complete(&agent, &prompt()).await;
        assert_eq!((text(&first), cached(&first)), (text(&complete(&plain, &prompt()).await), 0));
        assert!(tokens(&first) > 300, "{first}");
        stop(agent).await;
        let files = place.files();
        assert!(!files.is_empty(), "{shape}");
        assert!(files.iter().all(|file| mode(file) == 0o600));
        assert_eq!(mode(&place.cache().join("prefixes")), 0o700);

        let agent = place.agent(&ON).await;
        let next = format!("{}{}. And then? ", prompt(), text(&first));
        let second = complete(&agent, &next).await;
        assert_eq!(text(&second), text(&complete(&plain, &next).await), "{shape}");
        assert!(cached(&second) >= tokens(&first), "{shape}: {second}");
        assert_eq!(agent.metric(DISK_HITS).await, 1.0);
        assert!(agent.metric("node_saved_prefix_disk_bytes").await > 0.0);
        // Without the flag, nothing of it stays.
        stop(agent).await;
        let agent = place.agent(&[]).await;
        assert!(!place.cache().join("prefixes").exists());
        assert_eq!(cached(&complete(&agent, &next).await), 0);
    }
}

#[tokio::test]
async fn damaged_truncated_and_foreign_files_are_ignored_and_deleted() {
    let place = Place::new("tiny");
    let agent = place.agent(&ON).await;
    let expected = complete(&agent, &prompt()).await;
    stop(agent).await;
    let whole = std::fs::read(&place.files()[0]).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() - 100] ^= 1;
    let mut grown = whole.clone();
    grown.extend([0; 1000]);
    let header = [&whole[..100], &[0xff; 28], &whole[128..]].concat();
    let damages = [&flipped[..], &grown, &header, &whole[..whole.len() / 2], b"", b"FLPREFIX"];
    for (number, damage) in damages.into_iter().enumerate() {
        let folder = place.cache().join("prefixes");
        for file in place.files() {
            std::fs::remove_file(file).unwrap();
        }
        let damaged = folder.join("00000000000000aa.prefix");
        std::fs::write(&damaged, damage).unwrap();
        std::fs::write(folder.join("notes.txt"), "not ours").unwrap();
        let agent = place.agent(&ON).await;
        let answer = complete(&agent, &prompt()).await;
        assert_eq!((text(&answer), cached(&answer)), (text(&expected), 0), "damage {number}");
        assert_eq!(agent.metric("node_engine_restarts_total").await, 0.0);
        assert!(place.files().is_empty(), "damage {number}: {:?}", place.files());
        stop(agent).await;
    }
}

#[tokio::test]
async fn an_agent_that_is_killed_loses_no_more_than_was_not_written() {
    let place = Place::new("tiny");
    let agent = place.agent(&ON).await;
    let expected = complete(&agent, &prompt()).await;
    stop(agent).await;
    let agent = place.agent(&ON).await;
    let other = "whether it is nobler in the mind ".repeat(50);
    complete(&agent, &other).await;
    agent.kill();
    drop(agent);
    std::fs::write(place.cache().join("prefixes/0000000000000bad.part"), "half of it").unwrap();
    let agent = place.agent(&ON).await;
    let answer = complete(&agent, &prompt()).await;
    assert_eq!(text(&answer), text(&expected));
    assert_eq!(cached(&answer), tokens(&answer) - 1, "it was written before");
    assert_eq!(cached(&complete(&agent, &other).await), 0, "it was not");
    let is_partial = |file: &PathBuf| file.extension().is_some_and(|e| e == "part");
    assert!(!place.files().iter().any(is_partial));
}

#[tokio::test]
async fn a_second_agent_with_the_same_folder_serves_without_it() {
    let place = Place::new("tiny");
    let first = place.agent(&ON).await;
    let second = place.agent(&ON).await;
    second.server.wait_for_line("prefixes are not saved on disk");
    let answers = (complete(&first, &prompt()).await, complete(&second, &prompt()).await);
    assert_eq!(text(&answers.0), text(&answers.1));
    // One that saves none leaves the files of the first alone.
    let third = place.agent(&[]).await;
    stop(third).await;
    stop(second).await;
    stop(first).await;
    assert_eq!(place.files().len(), 1);
}
