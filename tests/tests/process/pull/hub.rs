//! A hub: keys, redirects to where the bytes are, digests, models in several files.

use super::*;

const KEY: &str = "hf_a-key-for-tests-only";

/// Pulls with a hub of the test's and a key for it.
fn pull_hub(folder: &Folder, hub: &FileServer, arguments: &[&str]) -> Ran {
    let mut command = command(folder, arguments);
    let ran = ran_with(&mut command, &[("HF_ENDPOINT", &hub.url("")), ("HF_TOKEN", KEY)]);
    assert!(!ran.stderr.contains(KEY) && !ran.stdout.contains(KEY), "{ran:?}");
    ran
}

/// Sends its clients to the other name of this machine, as a hub sends them to its store.
fn redirecting(content: &[u8], digest: &str, store: FileServer) -> FileServer {
    let (length, digest) = (content.len().to_string(), format!("\"{digest}\""));
    FileServer::start(move |asked| {
        let name = asked.path.rsplit('/').next().unwrap();
        Reply::redirect(&store.other_url(&format!("/store/{name}?signed=1")))
            .with("x-linked-etag", &digest)
            .with("x-linked-size", &length)
            .with("etag", "\"of the redirect\"")
    })
}

#[test]
fn the_key_is_for_the_hub_and_does_not_follow_a_redirect() {
    let (folder, content) = (Folder::new(), model(100_000));
    let store = serve(&content);
    let store_url = store.other_url("/store/m.gguf");
    let digest = format!("\"{}\"", sha256(&content));
    let hub = FileServer::start(move |asked| match &asked.path[..] {
        // The repository has another name now: still the hub.
        "/own/rep/resolve/main/q4/m.gguf" => Reply::redirect("/own/new/resolve/main/q4/m.gguf"),
        _ => Reply::redirect(&store_url).with("x-linked-etag", &digest),
    });
    let ran = pull_hub(&folder, &hub, &["hf:own/rep/q4/m.gguf"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(read(&folder, "m.gguf") == content);
    let bearer = format!("Bearer {KEY}");
    for asked in hub.asked() {
        assert_eq!(asked.header("authorization"), Some(&bearer[..]));
    }
    assert_eq!(hub.asked().len(), 2);
    assert_eq!(store.asked().len(), 1);
    assert_eq!(store.asked()[0].header("authorization"), None);
    assert_eq!(store.asked()[0].header("referer"), None);
    // Another server never gets it, and a URL on the hub does.
    pull_hub(&folder, &hub, &[&store.url("/n.gguf")]);
    assert_eq!(store.asked()[1].header("authorization"), None);
    pull_hub(&folder, &hub, &[&hub.url("/own/rep/resolve/main/o.gguf")]);
    assert_eq!(hub.asked()[2].header("authorization"), Some(&bearer[..]));
}

#[test]
fn the_hubs_digest_is_checked() {
    let content = model(100_000);
    let (folder, right) = (Folder::new(), sha256(&content));
    let hub = redirecting(&content, &right, serve(&content));
    let ran = pull_hub(&folder, &hub, &["hf:own/rep/m.gguf"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let again = pull_hub(&folder, &hub, &["hf:own/rep/m.gguf"]);
    assert!(again.code == Some(0) && again.stderr.contains("already exists (sha256"), "{again:?}");

    let (folder, wrong) = (Folder::new(), sha256(b"wrong"));
    let hub = redirecting(&content, &wrong, serve(&content));
    let ran = pull_hub(&folder, &hub, &["hf:own/rep/m.gguf"]);
    assert!(ran.code == Some(65) && ran.stderr.contains("it was removed"), "{ran:?}");
    // The operator and the hub want different files: known before a byte came.
    let ran = pull_hub(&folder, &hub, &["hf:own/rep/m.gguf", "--sha256", &right]);
    assert!(ran.code == Some(65) && ran.stderr.contains("one of them"), "{ran:?}");
    assert_eq!(names(&folder), [""; 0]);
}

#[test]
fn a_pull_from_the_hub_goes_on_at_its_store() {
    let (folder, content) = (Folder::new(), model(100_000));
    let copy = content.clone();
    let store = FileServer::start(move |asked| {
        let reply = Reply::file(asked, &copy, ETAG);
        if asked.before == 0 { reply.cut(40_000, Then::Close) } else { reply }
    });
    let hub = redirecting(&content, &sha256(&content), store);
    let first = pull_hub(&folder, &hub, &["hf:own/rep/m.gguf", "--retries", "0"]);
    assert_eq!(first.code, Some(69), "{first:?}");
    let second = pull_hub(&folder, &hub, &["hf:own/rep/m.gguf"]);
    assert_eq!(second.code, Some(0), "{second:?}");
    assert_eq!(hub.asked()[1].from(), Some(40_000));
    assert_eq!(hub.asked()[1].header("if-range"), Some(ETAG), "the store's, not the redirect's");
    assert!(read(&folder, "m.gguf") == content);
}

#[test]
fn a_refusal_of_the_hub_says_what_to_do() {
    for (status, code, why) in [
        (401, 77, "accept the terms of own/rep"),
        (403, 77, "accept the terms of own/rep"),
        (404, 69, "no file q4/m.gguf in own/rep at v1"),
    ] {
        let folder = Folder::new();
        let hub = FileServer::start(move |_| {
            Reply::status(status).with("x-error-message", "in the hub's own words")
        });
        let ran = pull_hub(&folder, &hub, &["hf:own/rep/q4/m.gguf", "--revision", "v1"]);
        assert!(ran.code == Some(code) && ran.stderr.contains(why), "{ran:?}");
        assert!(ran.stderr.contains("in the hub's own words"), "{ran:?}");
        assert_eq!(hub.asked()[0].path, "/own/rep/resolve/v1/q4/m.gguf");
        let mut keyless = command(&folder, &["hf:own/rep/q4/m.gguf"]);
        let ran = ran_with(&mut keyless, &[("HF_ENDPOINT", &hub.url(""))]);
        assert!(code != 77 || ran.stderr.contains("set HF_TOKEN"), "{ran:?}");
    }
}

#[test]
fn redirects_are_bounded_and_stay_on_the_web() {
    let folder = Folder::new();
    for (to, why) in [("/own/rep/again", "redirects"), ("file:///etc/passwd", "file:")] {
        let hub = FileServer::start(move |_| Reply::redirect(to));
        let ran = pull_hub(&folder, &hub, &["hf:own/rep/m.gguf"]);
        assert!(ran.code == Some(69) && ran.stderr.contains(why), "{ran:?}");
        assert!(hub.asked().len() <= 9, "{}", hub.asked().len());
    }
}

#[test]
fn all_files_of_a_split_model_come_from_one_commit() {
    let folder = Folder::new();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let hub = FileServer::start(move |asked| {
        let name = asked.path.rsplit('/').next().unwrap();
        let content = [&model(20_000)[..], name.as_bytes()].concat();
        let digest = format!("\"{}\"", sha256(&content));
        Reply::file(asked, &content, &digest).with("x-repo-commit", commit)
    });
    let source = "hf:own/rep/q4/m-00001-of-00003.gguf";
    for round in 0..2 {
        let ran = pull_hub(&folder, &hub, &[source]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(ran.stdout, "m-00001-of-00003.gguf\n");
        assert_eq!(names(&folder).len(), 3);
        assert_eq!(ran.stderr.matches("already exists").count(), 3 * round, "{ran:?}");
    }
    let paths: Vec<String> = hub.asked().into_iter().take(3).map(|a| a.path).collect();
    assert_eq!(
        paths,
        [
            "/own/rep/resolve/main/q4/m-00001-of-00003.gguf".into(),
            format!("/own/rep/resolve/{commit}/q4/m-00002-of-00003.gguf"),
            format!("/own/rep/resolve/{commit}/q4/m-00003-of-00003.gguf"),
        ]
    );
    assert!(read(&folder, "m-00002-of-00003.gguf").ends_with(b"m-00002-of-00003.gguf"));
}

#[test]
fn a_wrong_endpoint_or_key_is_named_and_not_shown() {
    let folder = Folder::new();
    let mut with_key = command(&folder, &["hf:own/rep/m.gguf"]);
    let ran = ran_with(&mut with_key, &[("HF_TOKEN", "sec\u{1}ret")]);
    assert!(ran.code == Some(64) && ran.stderr.contains("HF_TOKEN"), "{ran:?}");
    assert!(!ran.stderr.contains("ret:") && !ran.stderr.contains("sec\u{1}"), "{ran:?}");
    let mut elsewhere = command(&folder, &["hf:own/rep/m.gguf"]);
    let ran = ran_with(&mut elsewhere, &[("HF_ENDPOINT", "ftp://hub")]);
    assert!(ran.code == Some(64) && ran.stderr.contains("HF_ENDPOINT"), "{ran:?}");
}
