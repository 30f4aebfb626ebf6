//! What is not a model, not the right one, or does not fit, never gets a model's name.

use super::*;

fn nothing_stays(folder: &Folder) {
    assert_eq!(names(folder), [""; 0]);
}

#[test]
fn wrong_bytes_are_removed() {
    let (folder, content) = (Folder::new(), model(100_000));
    let server = serve(&content);
    let wrong = sha256(b"something else");
    let ran = pull(&folder, &[&server.url("/m.gguf"), "--sha256", &wrong]);
    assert_eq!(ran.code, Some(65), "{ran:?}");
    assert!(ran.stderr.contains(&wrong) && ran.stderr.contains(&sha256(&content)), "{ran:?}");
    assert!(ran.stderr.contains("it was removed"), "{ran:?}");
    nothing_stays(&folder);
}

#[test]
fn bytes_that_went_wrong_in_the_part_are_noticed() {
    let (folder, content) = (Folder::new(), model(100_000));
    let copy = content.clone();
    let server = FileServer::start(move |asked| {
        let reply = Reply::file(asked, &copy, ETAG);
        if asked.before == 0 { reply.cut(40_000, Then::Close) } else { reply }
    });
    let url = server.url("/m.gguf");
    let digest = sha256(&content);
    assert_eq!(pull(&folder, &[&url, "--sha256", &digest, "--retries", "0"]).code, Some(69));
    let mut part = read(&folder, "m.gguf.part");
    part[20_000] ^= 1;
    folder.write("m.gguf.part", part);
    let ran = pull(&folder, &[&url, "--sha256", &digest]);
    assert_eq!(ran.code, Some(65), "{ran:?}");
    nothing_stays(&folder);
    assert_eq!(pull(&folder, &[&url, "--sha256", &digest]).code, Some(0));
}

#[test]
fn pages_and_other_files_are_no_models() {
    let page = [b"<!DOCTYPE html><html>sign in", &[b' '; 5000][..]].concat();
    for (content, kind, why) in [
        (&page[..], "text/html; charset=utf-8", "HTML page"),
        (&page[..], "application/octet-stream", "HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "text/plain", "/resolve/"),
        (b"PK\x03\x04", "application/octet-stream", "not a GGUF model"),
    ] {
        let (folder, content) = (Folder::new(), content.to_vec());
        let server = FileServer::start(move |asked| {
            Reply::file(asked, &content, ETAG).with("content-type", kind)
        });
        let ran = pull(&folder, &[&server.url("/m.gguf")]);
        assert!(ran.code == Some(65) && ran.stderr.contains(why), "{ran:?}");
        nothing_stays(&folder);
    }
}

#[test]
fn statuses_say_what_to_do() {
    let source = "/own/rep/resolve/main/m.gguf";
    for (status, code, why) in [
        (401, 77, "has not expired"),
        (403, 77, "has not expired"),
        (404, 69, "check the URL"),
        (416, 69, "416"),
        (418, 69, "418"),
    ] {
        let folder = Folder::new();
        let server = FileServer::start(move |_| Reply::status(status));
        let ran = pull(&folder, &[&server.url(source)]);
        assert!(ran.code == Some(code) && ran.stderr.contains(why), "{ran:?}");
        assert_eq!(server.asked().len(), 1, "{status} does not change by asking again");
        nothing_stays(&folder);
    }
}

#[test]
fn a_busy_server_is_asked_again_when_it_says() {
    let (folder, content) = (Folder::new(), model(10_000));
    let copy = content.clone();
    let server = FileServer::start(move |asked| match asked.before {
        0 => Reply::status(429).with("retry-after", "1"),
        1 => Reply::status(503),
        _ => Reply::file(asked, &copy, ETAG),
    });
    let begun = std::time::Instant::now();
    let ran = pull(&folder, &[&server.url("/m.gguf")]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(begun.elapsed().as_millis() >= 1000, "Retry-After is heeded");
    assert!(ran.stderr.contains("rate limit (429)"), "{ran:?}");

    let server = FileServer::start(|_| Reply::status(429).with("retry-after", "9999"));
    let ran = pull(&folder, &[&server.url("/n.gguf")]);
    assert!(ran.code == Some(69) && ran.stderr.contains("9999 s"), "{ran:?}");
}

#[test]
fn lengths_that_cannot_be_are_refused_before_a_byte_is_written() {
    for (length, code, why) in [
        ("0", 65, "is empty"),
        ("9999999999999", 65, "more than 2.2 TB"),
        ("2199000000000", 74, "not enough disk space: the file needs 2.2 TB (2199000000000 bytes)"),
    ] {
        let folder = Folder::new();
        let server = FileServer::start(move |asked| {
            Reply::file(asked, b"GGUF", ETAG).with("content-length", length)
        });
        let ran = pull(&folder, &[&server.url("/m.gguf"), "--retries", "0"]);
        assert!(ran.code == Some(code) && ran.stderr.contains(why), "{ran:?}");
        nothing_stays(&folder);
    }
}

#[test]
fn a_body_without_an_end_needs_a_digest() {
    let (folder, content) = (Folder::new(), model(10_000));
    let copy = content.clone();
    let server =
        FileServer::start(move |asked| Reply::file(asked, &copy, "").without("content-length"));
    let url = server.url("/m.gguf");
    let ran = pull(&folder, &[&url]);
    assert!(ran.code == Some(65) && ran.stderr.contains("--sha256"), "{ran:?}");
    nothing_stays(&folder);
    assert_eq!(pull(&folder, &[&url, "--sha256", &sha256(&content)]).code, Some(0));
}

#[test]
fn compressed_files_are_refused() {
    let folder = Folder::new();
    let server =
        FileServer::start(|asked| Reply::file(asked, b"GGUF", "").with("content-encoding", "gzip"));
    let ran = pull(&folder, &[&server.url("/m.gguf")]);
    assert!(ran.code == Some(65) && ran.stderr.contains("gzip"), "{ran:?}");
    nothing_stays(&folder);
}

#[test]
fn names_that_lead_out_of_the_folder_are_refused() {
    let folder = Folder::new();
    for source in [
        "hf:own/rep/../../../etc/m.gguf",
        "hf:own/rep/a\u{7}.gguf",
        "http://127.0.0.1:1/a/..%2f..%2fm.gguf",
        "http://127.0.0.1:1/m%0a.gguf",
        "http://127.0.0.1:1/",
        "file:///etc/passwd",
    ] {
        let ran = pull(&folder, &[source]);
        assert_eq!(ran.code, Some(64), "{source}: {ran:?}");
    }
    let ran = pull(&folder, &["http://127.0.0.1:1/m.gguf", "--to", "no/such/folder/"]);
    assert!(ran.code == Some(64) && ran.stderr.contains("create it first"), "{ran:?}");
    nothing_stays(&folder);
}

#[test]
fn a_server_that_is_not_there_is_given_up_soon() {
    let folder = Folder::new();
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/m.gguf");
    let ran = pull(&folder, &[&url, "--retries", "1"]);
    assert!(ran.code == Some(69) && ran.stderr.contains("refused"), "{ran:?}");
    nothing_stays(&folder);
}
