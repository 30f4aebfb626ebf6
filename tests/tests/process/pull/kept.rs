//! What is kept when a pull ends early, and how the next one goes on.

use super::*;

use fleet_tests::eventually;
use fleet_tests::process::Server;
use rustix::process::Signal;

/// Sends this much of what is asked for and then breaks off.
fn breaking(content: &[u8], piece: usize) -> FileServer {
    let content = content.to_vec();
    FileServer::start(move |asked| Reply::file(asked, &content, ETAG).cut(piece, Then::Close))
}

#[test]
fn a_connection_that_breaks_is_gone_on_with_where_it_stopped() {
    let (folder, content) = (Folder::new(), model(100_000));
    let server = breaking(&content, 30_000);
    // Each failure is followed by progress, so that one in a row is all there ever is.
    let ran = pull(&folder, &[&server.url("/m.gguf"), "--retries", "1"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(read(&folder, "m.gguf") == content);
    let asked = server.asked();
    assert_eq!(
        asked.iter().map(Asked::from).collect::<Vec<_>>(),
        [None, Some(30_000), Some(60_000), Some(90_000)]
    );
    assert!(asked[1..].iter().all(|a| a.header("if-range") == Some(ETAG)));
}

#[test]
fn a_connection_that_stalls_is_given_up_and_gone_on_with() {
    let (folder, content) = (Folder::new(), model(100_000));
    let copy = content.clone();
    let server = FileServer::start(move |asked| {
        let reply = Reply::file(asked, &copy, ETAG);
        if asked.before == 0 { reply.cut(40_000, Then::Stall) } else { reply }
    });
    let ran = pull(&folder, &[&server.url("/m.gguf"), "--stall-seconds", "1"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(read(&folder, "m.gguf") == content);
    assert_eq!(server.asked()[1].from(), Some(40_000));
}

#[test]
fn a_server_that_stays_away_is_given_up_and_the_part_is_kept() {
    let (folder, content) = (Folder::new(), model(100_000));
    let copy = content.clone();
    let server = FileServer::start(move |asked| match asked.before {
        0 => Reply::file(asked, &copy, ETAG).cut(40_000, Then::Close),
        1 => Reply::status(503),
        _ => Reply::file(asked, &copy, ETAG),
    });
    let url = server.url("/m.gguf");
    let ran = pull(&folder, &[&url, "--retries", "1"]);
    assert_eq!(ran.code, Some(69), "{ran:?}");
    assert!(ran.stderr.contains("(503)") && ran.stderr.contains("40.0 kB are kept"), "{ran:?}");
    assert_eq!(names(&folder), ["m.gguf.part", "m.gguf.part.json"]);
    let again = pull(&folder, &[&url]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(server.asked()[2].from(), Some(40_000));
    assert!(read(&folder, "m.gguf") == content);
    assert_eq!(names(&folder), ["m.gguf"]);
}

#[test]
fn a_server_that_ignores_ranges_sends_it_all_again() {
    let (folder, content) = (Folder::new(), model(100_000));
    let copy = content.clone();
    let server = FileServer::start(move |asked| {
        let whole = Asked { before: asked.before, ..Asked::default() };
        let reply = Reply::file(&whole, &copy, ETAG);
        if asked.before == 0 { reply.cut(40_000, Then::Close) } else { reply }
    });
    let ran = pull(&folder, &[&server.url("/m.gguf")]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stderr.contains("starting over"), "{ran:?}");
    assert!(read(&folder, "m.gguf") == content);
}

#[test]
fn a_file_that_changes_between_attempts_is_never_mixed() {
    let (before, after) = (model(100_000), [b"GGUF", &model(100_000)[..99_996]].concat());
    // A server that heeds If-Range; one that does not, but says what it sends; one that says
    // nothing but another length.
    for kind in ["if-range", "etag", "length"] {
        let (folder, before, after) = (Folder::new(), before.clone(), after.clone());
        let expected = if kind == "length" { after[..90_000].to_vec() } else { after.clone() };
        let now = expected.clone();
        let server = FileServer::start(move |asked| {
            let mut asked = asked.clone();
            if kind != "if-range" {
                asked.headers.retain(|(name, _)| name != "if-range");
            }
            match asked.before {
                0 => Reply::file(&asked, &before, ETAG).cut(40_000, Then::Close),
                _ if kind == "length" => Reply::file(&asked, &now, ETAG),
                _ => Reply::file(&asked, &now, "\"two\""),
            }
        });
        let ran = pull(&folder, &[&server.url("/m.gguf")]);
        assert_eq!(ran.code, Some(0), "{kind}: {ran:?}");
        assert!(ran.stderr.contains("starting over"), "{kind}: {ran:?}");
        assert!(read(&folder, "m.gguf") == expected, "{kind}");
    }
}

#[test]
fn wrong_ranges_are_not_written() {
    let content = model(100_000);
    for wrong in ["bytes 40001-99999/100000", "bytes 0-59999/100000", "bytes */100000", "all"] {
        let (folder, copy) = (Folder::new(), content.clone());
        let server = FileServer::start(move |asked| {
            let reply = Reply::file(asked, &copy, ETAG);
            match asked.before {
                0 => reply.cut(40_000, Then::Close),
                1 => reply.with("content-range", wrong),
                _ => reply,
            }
        });
        let ran = pull(&folder, &[&server.url("/m.gguf")]);
        assert_eq!(ran.code, Some(0), "{wrong}: {ran:?}");
        assert!(read(&folder, "m.gguf") == content, "{wrong}");
        assert_eq!(server.asked()[2].from(), None, "{wrong}: begun again");
    }
}

#[test]
fn a_server_that_never_sends_a_whole_file_is_given_up() {
    let folder = Folder::new();
    let content = model(10_000);
    // It announces more than it has.
    let server = FileServer::start(move |asked| {
        Reply::file(asked, &content, ETAG).with("content-length", "12000")
    });
    let ran = pull(&folder, &[&server.url("/m.gguf"), "--retries", "1"]);
    assert_eq!(ran.code, Some(69), "{ran:?}");
    assert!(ran.stderr.contains("gave up"), "{ran:?}");
    assert!(!folder.path().join("m.gguf").exists());
}

#[tokio::test]
async fn a_pull_that_was_killed_goes_on_where_it_stopped() {
    let (folder, content) = (Folder::new(), model(300_000));
    let copy = content.clone();
    let server = FileServer::start(move |asked| {
        let reply = Reply::file(asked, &copy, ETAG);
        if asked.before == 0 { reply.cut(123_456, Then::Stall) } else { reply }
    });
    let url = server.url("/m.gguf");
    let mut first = Server::spawn(command(&folder, &[&url]));
    let part = folder.path().join("m.gguf.part");
    eventually("bytes to be there", async || {
        (std::fs::metadata(&part).ok()?.len() == 123_456).then_some(())
    })
    .await;

    let second = pull(&folder, &[&url]);
    assert_eq!(second.code, Some(75), "{second:?}");
    assert!(second.stderr.contains("another pull of m.gguf is running"), "{second:?}");
    assert_eq!(server.asked().len(), 1);

    first.signal(Signal::KILL);
    assert_eq!(first.ended().await, None);
    let third = pull(&folder, &[&url]);
    assert_eq!(third.code, Some(0), "{third:?}");
    assert_eq!(server.asked()[1].from(), Some(123_456));
    assert!(third.stderr.contains(&sha256(&content)), "the digest covers both: {third:?}");
    assert!(read(&folder, "m.gguf") == content);
    assert_eq!(names(&folder), ["m.gguf"]);
}

#[tokio::test]
async fn a_signal_keeps_the_part_and_says_how_to_go_on() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let (folder, content) = (Folder::new(), model(100_000));
        let server = FileServer::start(move |asked| {
            Reply::file(asked, &content, ETAG).cut(55_555, Then::Stall)
        });
        let mut pulling = Server::spawn(command(&folder, &[&server.url("/m.gguf")]));
        pulling.wait_for_line("50 %");
        pulling.signal(signal);
        assert_eq!(pulling.ended().await, Some(code));
        pulling.wait_for_line("run this again to resume");
        assert_eq!(names(&folder), ["m.gguf.part", "m.gguf.part.json"]);
    }
}

#[test]
fn a_part_of_another_file_is_not_gone_on_with() {
    let (folder, content) = (Folder::new(), model(100_000));
    let server = breaking(&content, 40_000);
    let one = server.url("/one/m.gguf?signature=secret");
    assert_eq!(pull(&folder, &[&one, "--retries", "0"]).code, Some(69));
    let memo = String::from_utf8(read(&folder, "m.gguf.part.json")).unwrap();
    assert!(memo.contains("/one/m.gguf") && !memo.contains("secret"), "{memo}");
    let other = pull(&folder, &[&server.url("/two/m.gguf"), "--retries", "0"]);
    assert!(other.stderr.contains("belongs to"), "{other:?}");
    assert_eq!(server.asked()[1].from(), None);
}

#[test]
fn what_no_digest_and_no_validator_protects_begins_again() {
    let (folder, content) = (Folder::new(), model(100_000));
    let copy = content.clone();
    let server = FileServer::start(move |asked| {
        let reply = Reply::file(asked, &copy, "");
        if asked.before % 2 == 0 { reply.cut(40_000, Then::Close) } else { reply }
    });
    let ran = pull(&folder, &[&server.url("/m.gguf")]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(server.asked()[1].from(), None);
    // With a digest the end tells whether the pieces fit.
    let arguments = [&server.url("/n.gguf"), "--sha256", &sha256(&content)];
    let ran = pull(&folder, &arguments);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(server.asked()[3].from(), Some(40_000));
    assert!(read(&folder, "n.gguf") == content);
}

#[test]
fn a_disk_that_fills_up_keeps_the_part() {
    let (folder, content) = (Folder::new(), model(3_000_000));
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    // Without a length nothing can be checked before.
    let server = FileServer::start(move |_| Reply {
        status: 200,
        headers: vec![("transfer-encoding".into(), "chunked".into())],
        body: [format!("{:x}\r\n", content.len()).as_bytes(), &content, b"\r\n0\r\n\r\n"].concat(),
        then: Then::Close,
    });
    // A disk of its own, in a namespace of its own.
    let script = "mount -t tmpfs -o size=1m tmpfs \"$1\" && shift && \"$@\"; \
                  code=$?; ls disk >&2; exit $code";
    let mut unshared = Command::new("unshare");
    unshared.args(["-rm", "sh", "-c", script, "sh"]).arg(&disk).arg(binary("flotilla-agent"));
    unshared.args(["pull", &server.url("/m.gguf"), "--to"]).arg(disk.join("m.gguf"));
    unshared.current_dir(folder.path());
    for name in FOREIGN {
        unshared.env_remove(name);
    }
    let works = Command::new("unshare").args(["-rm", "true"]).output();
    if !works.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: a full disk needs unshare and user namespaces");
        return;
    }
    let ran = ran(&mut unshared);
    assert_eq!(ran.code, Some(74), "{ran:?}");
    assert!(ran.stderr.contains("the disk is full"), "{ran:?}");
    assert!(
        ran.stderr.contains("are kept in") && ran.stderr.contains("\nm.gguf.part\n"),
        "{ran:?}"
    );
}
