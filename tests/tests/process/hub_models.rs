//! Models by their name on a hub: chosen by quantization, downloaded once, found again offline.

use std::process::{Command, Stdio};
use std::sync::Arc;

use fleet_tests::client::Client;
use fleet_tests::file_server::{Asked, FileServer, Reply, Then};
use fleet_tests::process::{Folder, Ran, Server, binary, run_command};
use fleet_tests::{chat, demo_model, eventually};
use rustix::process::Signal;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::split_model::split;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const MODEL: &str = "hf:own/Some-Model-GGUF:q4_k_m";
/// Nothing listens there.
const NOWHERE: &str = "http://127.0.0.1:1";

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|b| format!("{b:02x}")).collect()
}

/// Files of a repository, by path.
type Files = Vec<(String, Vec<u8>)>;

fn listed(files: &Files) -> Vec<u8> {
    let siblings: Vec<_> = files
        .iter()
        .map(|(path, content)| {
            let lfs = json!({"sha256": sha256(content), "size": content.len()});
            json!({"rfilename": path, "size": content.len(), "lfs": lfs})
        })
        .collect();
    json!({"id": "own/r", "sha": COMMIT, "siblings": siblings}).to_string().into_bytes()
}

/// A hub on which each repository of two owners has these files. `change` may change its answers
/// for files.
fn hub_with(
    files: Files,
    change: impl Fn(&Asked, Reply) -> Reply + Send + Sync + 'static,
) -> FileServer {
    FileServer::start(move |asked| {
        let path = asked.path.split('?').next().unwrap_or_default();
        let is_ours = ["own", "Qwen"].iter().any(|owner| {
            path.strip_prefix("/api/models/").is_some_and(|rest| rest.starts_with(owner))
        });
        if is_ours && path.ends_with("/revision/main") {
            return Reply::file(&Asked::default(), &listed(&files), "");
        }
        let file = path.split_once(&format!("/resolve/{COMMIT}/"));
        let found = file.and_then(|(_, path)| files.iter().find(|(name, _)| name == path));
        match found {
            Some((_, content)) => {
                let etag = format!("\"{}\"", sha256(content));
                change(asked, Reply::file(asked, content, &etag))
            }
            None => Reply::status(404),
        }
    })
}

fn demo() -> Vec<u8> {
    std::fs::read(demo_model()).unwrap()
}

/// The demo model, and others that are none.
fn quantizations() -> Files {
    vec![
        ("README.md".into(), b"# A model".to_vec()),
        ("some-model-q8_0.gguf".into(), b"GGUF, but no more".to_vec()),
        ("some-model-q4_k_m.gguf".into(), demo()),
        ("mmproj-Q4_K_M.gguf".into(), b"GGUF, a projector".to_vec()),
    ]
}

fn hub(files: Files) -> FileServer {
    hub_with(files, |_, reply| reply)
}

/// A hub whose repositories hold the demo model under this name.
pub fn hub_of_demo_models(file: &str) -> FileServer {
    hub(vec![(file.into(), demo())])
}

/// A command that finds the cache in `folder`, and the hub at `hub`.
fn command(folder: &Folder, hub: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("flotilla-agent"));
    command.args(arguments).current_dir(folder.path()).stdin(Stdio::null());
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_TOKEN"] {
        command.env_remove(name);
    }
    command.env("HF_ENDPOINT", hub).env("FLOTILLA_CACHE_DIR", folder.path().join("cache"));
    command
}

fn run(folder: &Folder, hub: &str, arguments: &[&str]) -> Ran {
    run_command(command(folder, hub, arguments))
}

fn serve(folder: &Folder, hub: &str, model: &[&str]) -> Server {
    let mut arguments = vec!["serve", "--listen", "127.0.0.1:0", "--threads", "1"];
    arguments.extend(["--context-tokens", "256"]);
    arguments.extend(model);
    Server::spawn(command(folder, hub, &arguments))
}

/// Waits until the model answers under this name.
async fn answers(agent: &Server, name: &str) {
    let client = Client::new(agent.address(), None);
    let mut question = chat("What is the capital of France?");
    question["model"] = name.into();
    eventually("an answer", async || (client.chat(&question).await.status == 200).then_some(()))
        .await;
    let listed = client.get("/v1/models").await.json();
    assert_eq!(listed["data"][0]["id"], name);
}

fn asked_files(hub: &FileServer) -> Vec<String> {
    let files = hub.asked().into_iter().filter(|asked| asked.path.contains("/resolve/"));
    files.map(|asked| asked.path).collect()
}

#[tokio::test]
async fn a_quantization_of_a_repository_is_served_and_found_again_without_the_hub() {
    let folder = Folder::new();
    let server = hub(quantizations());
    let agent = serve(&folder, &server.url(""), &[MODEL]);
    agent.wait_for_line("100 %");
    let line = agent.wait_for_line("model downloaded");
    assert!(line.contains("/models/hub/own/Some-Model-GGUF/"), "{line}");
    answers(&agent, "Some-Model").await;
    assert_eq!(
        asked_files(&server),
        [format!("/own/Some-Model-GGUF/resolve/{COMMIT}/some-model-q4_k_m.gguf")]
    );
    drop((agent, server));

    // llama-server's flag for the same, with a name of the operator's.
    let arguments = ["-hf", "own/Some-Model-GGUF:Q4_K_M", "--alias", "mine"];
    let offline = serve(&folder, NOWHERE, &arguments);
    offline.wait_for_line("model found in the cache");
    answers(&offline, "mine").await;

    let pull = vec!["pull", "--cache", "--if-missing", MODEL];
    for arguments in [vec!["plan", "--quick", MODEL], vec!["check", MODEL], pull] {
        let ran = run(&folder, NOWHERE, &arguments);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let update = run(&folder, NOWHERE, &["pull", "--cache", "--retries", "0", MODEL]);
    assert_eq!(update.code, Some(69), "{update:?}");
    let other = run(&folder, NOWHERE, &["plan", "--quick", "hf:own/Some-Model-GGUF:Q8_0"]);
    assert_eq!(other.code, Some(69), "{other:?}");
    assert!(other.stderr.contains("pull --cache hf:own/Some-Model-GGUF:Q8_0"), "{other:?}");
}

#[tokio::test]
async fn a_draft_model_is_downloaded_by_its_name_and_found_again_without_the_hub() {
    let folder = Folder::new();
    let server = hub(quantizations());
    let draft = "hf:Qwen/Small-GGUF:q4_k_m";
    let model = demo_model();
    let model = model.to_str().unwrap();
    let agent = serve(&folder, &server.url(""), &[model, "--draft-model", draft]);
    agent.wait_for_line("model downloaded");
    let line = agent.wait_for_line("\"draft model\"");
    assert!(line.contains("/models/hub/Qwen/Small-GGUF/"), "{line}");
    answers(&agent, "flotilla-demo").await;
    let file = format!("/Qwen/Small-GGUF/resolve/{COMMIT}/some-model-q4_k_m.gguf");
    assert_eq!(asked_files(&server), [file]);
    drop((agent, server));

    // llama-server's flag for the same.
    let offline = serve(&folder, NOWHERE, &["-m", model, "-hfd", "Qwen/Small-GGUF:Q4_K_M"]);
    offline.wait_for_line("model found in the cache");
    answers(&offline, "flotilla-demo").await;
    drop(offline);
    let ran = run(&folder, NOWHERE, &["check", model, "--draft-model", draft]);
    assert_eq!(ran.code, Some(0), "{ran:?}");

    // Not needed, so not asked for.
    let other = "hf:Qwen/Small-GGUF:Q8_0";
    let without = serve(&folder, NOWHERE, &[model, "--draft-model", other, "--no-speculation"]);
    answers(&without, "flotilla-demo").await;
    for command in ["check", "tune"] {
        let ran = run(&folder, NOWHERE, &[command, model, "--draft-model", other]);
        assert_ne!(ran.code, Some(0), "{ran:?}");
        let all = format!("{}{}", ran.stdout, ran.stderr);
        assert!(all.contains("--draft-model: "), "{ran:?}");
        assert!(all.contains("pull --cache hf:Qwen/Small-GGUF:Q8_0"), "{ran:?}");
    }
    let wrong = run(&folder, NOWHERE, &["serve", model, "--draft-model", "hf:own/../repo"]);
    assert_eq!(wrong.code, Some(64), "{wrong:?}");
    assert!(wrong.stderr.contains("--draft-model: "), "{wrong:?}");
}

#[tokio::test]
async fn all_files_of_a_split_model_are_downloaded() {
    let (folder, parts) = (Folder::new(), Folder::new());
    let files = split(&parts).map(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        (format!("Q8_0/{name}"), std::fs::read(&path).unwrap())
    });
    let server = hub(files.to_vec());
    let pulled = run(&folder, &server.url(""), &["pull", "--cache", "hf:own/Split"]);
    assert_eq!(pulled.code, Some(0), "{pulled:?}");
    assert!(pulled.stdout.ends_with("/model-00001-of-00002.gguf\n"), "{pulled:?}");
    let agent = serve(&folder, NOWHERE, &["hf:own/Split"]);
    answers(&agent, "Split").await;
    assert_eq!(asked_files(&server).len(), 2);
}

#[test]
fn a_quantization_that_is_not_there_is_answered_with_those_that_are() {
    let folder = Folder::new();
    let server = hub(quantizations());
    for command in ["serve", "pull"] {
        let ran = run(&folder, &server.url(""), &[command, "hf:own/Some-Model-GGUF:Q5_K_M"]);
        assert_eq!(ran.code, Some(64), "{ran:?}");
        assert!(ran.stderr.contains("has no quantization Q5_K_M; it has Q4_K_M ("), "{ran:?}");
        assert!(ran.stderr.contains("Q8_0 (17 bytes)"), "{ran:?}");
    }
    let gone = run(&folder, &server.url(""), &["serve", "hf:other/repo"]);
    assert_eq!(gone.code, Some(69), "{gone:?}");
    assert!(gone.stderr.contains("has no repository other/repo"), "{gone:?}");
    let wrong = run(&folder, &server.url(""), &["serve", "hf:own/../repo"]);
    assert_eq!(wrong.code, Some(64), "{wrong:?}");
}

#[tokio::test]
async fn two_agents_share_one_download_and_one_goes_on_when_the_other_is_killed() {
    let folder = Folder::new();
    let length = 123_456;
    let server = hub_with(quantizations(), move |asked, reply| match asked.from() {
        None => reply.cut(length, Then::Stall),
        Some(_) => reply,
    });
    let mut first = serve(&folder, &server.url(""), &[MODEL]);
    let part = eventually("bytes to be there", async || {
        let mut folders = vec![folder.path().join("cache")];
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(next).ok()?.flatten() {
                let bytes = entry.metadata().ok()?.len() as usize;
                if entry.path().extension().is_some_and(|e| e == "part") && bytes == length {
                    return Some(entry.path());
                }
                folders.extend(entry.path().is_dir().then(|| entry.path()));
            }
        }
        None
    });
    let part = part.await;
    let second = serve(&folder, &server.url(""), &[MODEL]);
    second.wait_for_line("another process downloads this model");
    first.signal(Signal::KILL);
    assert_eq!(first.ended().await, None);
    answers(&second, "Some-Model").await;
    let continued = server.asked().into_iter().filter_map(|asked| asked.from()).collect::<Vec<_>>();
    assert_eq!(continued, [length]);
    assert!(!part.exists());
}

#[tokio::test]
async fn a_signal_ends_a_download_and_says_how_to_go_on() {
    let folder = Folder::new();
    let server = hub_with(quantizations(), |_, reply| reply.cut(1_000_000, Then::Stall));
    let mut agent = serve(&folder, &server.url(""), &[MODEL]);
    agent.wait_for_line("\"download\"");
    agent.signal(Signal::INT);
    assert_eq!(agent.ended().await, Some(130));
    agent.wait_for_line("run this again to resume");
}

#[test]
fn a_new_version_is_downloaded_when_it_is_asked_for() {
    let folder = Folder::new();
    let name = "m-q4_k_m.gguf".to_string();
    let pull = |content: &[u8]| {
        let server = hub(vec![(name.clone(), content.to_vec())]);
        let ran = run(&folder, &server.url(""), &["pull", "--cache", "hf:own/r:Q4_K_M"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        (ran.stdout, asked_files(&server).len())
    };
    let (first, _) = pull(b"GGUF, the first");
    assert_eq!(pull(b"GGUF, the first"), (first.clone(), 0), "the same contents");
    let (second, asked) = pull(b"GGUF, the second");
    assert!(second != first && asked == 1);
    // Agents that run with the old one can still start their engines again.
    assert_eq!(std::fs::read(first.trim()).unwrap(), b"GGUF, the first");
    assert_eq!(std::fs::read(second.trim()).unwrap(), b"GGUF, the second");
    // Into a folder of the operator's, under the file's own name.
    let server = hub(vec![(name.clone(), b"GGUF, the third".to_vec())]);
    let ran = run(&folder, &server.url(""), &["pull", "hf:own/r"]);
    assert_eq!((ran.code, ran.stdout), (Some(0), format!("{name}\n")));
}

#[test]
fn a_hub_that_lies_about_its_files_does_no_harm() {
    let folder = Folder::new();
    let hostile: [(Vec<u8>, i32, &str); 5] = [
        (b"<html>".to_vec(), 69, "cannot be read"),
        (vec![b'['; 9 << 20], 69, "more than 8388608 bytes"),
        (json!({"siblings": [{"rfilename": "../../m.gguf"}]}).to_string().into(), 64, "no GGUF"),
        (
            json!({"siblings": [{"rfilename": "m-00001-of-00900.gguf"}]}).to_string().into(),
            64,
            "m-00002-of-00900.gguf is missing",
        ),
        (
            json!({"siblings": [{"rfilename": "m.gguf", "size": 1u64 << 60}]}).to_string().into(),
            74,
            "not enough disk space",
        ),
    ];
    for (body, code, why) in hostile {
        let body = Arc::new(body);
        let server = FileServer::start(move |_| Reply::file(&Asked::default(), &body, ""));
        let ran = run(&folder, &server.url(""), &["pull", "--cache", "hf:own/r"]);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.stderr.contains(why), "{ran:?}");
    }
    let wrong = hub_with(quantizations(), |_, mut reply| {
        reply.body.reverse();
        reply.without("etag")
    });
    let ran = run(&folder, &wrong.url(""), &["serve", MODEL]);
    assert_eq!(ran.code, Some(65), "{ran:?}");
    let circle = FileServer::start(|asked| Reply::redirect(&asked.path));
    let ran = run(&folder, &circle.url(""), &["serve", MODEL]);
    assert!(ran.code == Some(69) && ran.stderr.contains("redirects"), "{ran:?}");
    assert!(!folder.path().join("m.gguf").exists());
    let nowhere = Arc::new(folder.path().join("cache/models/hub/own/Some-Model-GGUF/refs"));
    assert_eq!(std::fs::read_dir(&*nowhere).unwrap().count(), 0, "no model was recorded");
}

#[tokio::test]
async fn a_url_is_served_and_found_again() {
    let folder = Folder::new();
    let server = FileServer::start(|asked| Reply::file(asked, &demo(), "\"one\""));
    let url = server.url("/files/demo-Q8_0.gguf?download=true");
    let agent = serve(&folder, NOWHERE, &[&url]);
    answers(&agent, "demo-Q8_0").await;
    drop((agent, server));
    answers(&serve(&folder, NOWHERE, &["-mu", &url]), "demo-Q8_0").await;
}

#[test]
fn without_a_folder_for_models_the_agent_says_which_to_set() {
    let folder = Folder::new();
    let mut unwritable = command(&folder, NOWHERE, &["serve", MODEL]);
    unwritable.env("FLOTILLA_CACHE_DIR", "/dev/null");
    let ran = run_command(unwritable);
    assert_eq!(ran.code, Some(74), "{ran:?}");
    assert!(ran.stderr.contains("/dev/null/models"), "{ran:?}");
}
