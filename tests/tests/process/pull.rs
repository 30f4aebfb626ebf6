//! Pulling models from servers that break off, stall and lie, with the real program.

mod https;
mod hub;
mod kept;
mod refused;

use std::process::{Command, Stdio};

use fleet_tests::file_server::{Asked, FileServer, Reply, Then};
use fleet_tests::process::{Folder, Ran, binary};
use sha2::{Digest, Sha256};

/// Proxies of the machine and keys of its user are none of the tests'.
const FOREIGN: [&str; 10] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
    "HF_TOKEN",
    "HF_ENDPOINT",
];

const ETAG: &str = "\"one\"";

/// Bytes of a model that repeat nowhere soon.
fn model(bytes: usize) -> Vec<u8> {
    let mut state = 1u32;
    let random = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    });
    b"GGUF".iter().copied().chain(random).take(bytes).collect()
}

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|b| format!("{b:02x}")).collect()
}

fn command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("flotilla-agent"));
    command.arg("pull").args(arguments).current_dir(folder.path()).stdin(Stdio::null());
    for name in FOREIGN {
        command.env_remove(name);
    }
    command
}

fn ran(command: &mut Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn pull(folder: &Folder, arguments: &[&str]) -> Ran {
    ran(&mut command(folder, arguments))
}

fn names(folder: &Folder) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn read(folder: &Folder, name: &str) -> Vec<u8> {
    std::fs::read(folder.path().join(name)).unwrap()
}

/// A server of one file.
fn serve(content: &[u8]) -> FileServer {
    let content = content.to_vec();
    FileServer::start(move |asked| Reply::file(asked, &content, ETAG))
}

#[test]
fn a_file_is_pulled_and_its_path_is_the_last_line() {
    let (folder, content) = (Folder::new(), model(3_000_000));
    let server = serve(&content);
    let ran = pull(&folder, &[&server.url("/a/my%20model.gguf?x=1")]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stdout, "my model.gguf\n");
    assert_eq!(names(&folder), ["my model.gguf"]);
    assert!(read(&folder, "my model.gguf") == content);
    assert!(ran.stderr.contains(&sha256(&content)), "{ran:?}");
    assert!(ran.stderr.contains("100 % of 3.0 MB"), "{ran:?}");
    assert_eq!(server.asked()[0].path, "/a/my%20model.gguf?x=1");
    assert_eq!(server.asked()[0].header("accept-encoding"), Some("identity"));

    let to = folder.path().join("named.gguf");
    let arguments = [&server.url("/m.gguf"), "--to", to.to_str().unwrap(), "--no-progress"];
    let ran = pull(&folder, &arguments);
    assert_eq!(ran.stdout, format!("{}\n", to.display()));
    assert!(!ran.stderr.contains('%'), "{ran:?}");
}

#[test]
fn a_file_that_is_there_is_not_pulled_again_and_another_one_not_replaced() {
    let (folder, content) = (Folder::new(), model(50_000));
    let server = serve(&content);
    let url = server.url("/m.gguf");
    let digest = sha256(&content);
    assert_eq!(pull(&folder, &[&url]).code, Some(0));

    let known = pull(&folder, &[&url, "--sha256", &digest]);
    assert!(known.code == Some(0) && known.stdout == "m.gguf\n", "{known:?}");
    assert_eq!(server.asked().len(), 1, "it was here, and the digest says so");
    let sized = pull(&folder, &[&url]);
    assert!(sized.code == Some(0) && sized.stderr.contains("already exists"), "{sized:?}");
    assert_eq!(server.asked()[1].header("range"), Some("bytes=0-0"));

    folder.write("m.gguf", "another file");
    for arguments in [vec![&url[..]], vec![&url, "--sha256", &digest]] {
        let ran = pull(&folder, &arguments);
        assert!(ran.code == Some(74) && ran.stderr.contains("--force"), "{ran:?}");
        assert_eq!(read(&folder, "m.gguf"), b"another file");
    }
    let forced = pull(&folder, &[&url, "--force"]);
    assert_eq!(forced.code, Some(0), "{forced:?}");
    assert!(read(&folder, "m.gguf") == content);
    assert_eq!(names(&folder), ["m.gguf"]);
}

#[test]
fn the_proxy_of_the_environment_is_used_and_open_connections_are_warned_of() {
    let (folder, content) = (Folder::new(), model(5_000));
    let server = serve(&content);
    let mut command = command(&folder, &["http://models.example/m.gguf"]);
    let ran = ran_with(&mut command, &[("http_proxy", &server.url("/"))]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(server.asked()[0].path, "http://models.example/m.gguf");
    assert_eq!(
        ran.stderr.matches("warning: unencrypted http to models.example").count(),
        1,
        "{ran:?}"
    );
    let local = pull(&folder, &[&server.url("/n.gguf")]);
    assert!(!local.stderr.contains("warning"), "{local:?}");
}

fn ran_with(command: &mut Command, variables: &[(&str, &str)]) -> Ran {
    ran(command.envs(variables.iter().copied()))
}
