//! What install.sh does with its flags and with what is wrong.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use fleet_tests::file_server::{FileServer, Reply};
use fleet_tests::process::Folder;
use fleet_tests::tools::{has, output};

use crate::release::{Release, archive, own_architecture};

/// What the script did.
struct Ran {
    code: Option<i32>,
    printed: String,
}

/// Runs the script of a release in `home` with the release's files.
fn install(release: &Path, home: &Path, arguments: &[&str]) -> Ran {
    let mut script = Command::new("sh");
    script.arg(release.join("install.sh")).args(["--from", release.to_str().unwrap()]);
    let ran = script.args(arguments).env("HOME", home).current_dir(home).output().unwrap();
    let printed =
        String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    Ran { code: ran.status.code(), printed }
}

fn files(folder: &Path) -> Vec<String> {
    let found = output(Command::new("find").arg(folder).args(["-type", "f", "-printf", "%P %m\n"]));
    let mut files: Vec<String> = found.lines().map(String::from).collect();
    files.sort();
    files
}

#[test]
fn installing_and_removing_leaves_what_was_there_before() {
    let Some(release) = Release::usual() else { return };
    let home = Folder::new();
    let prefix = home.path().join("opt");
    let to = ["--prefix", prefix.to_str().unwrap()];

    let dry = install(&release.path(), home.path(), &[&to[..], &["--dry-run"]].concat());
    assert_eq!(dry.code, Some(0), "{}", dry.printed);
    assert!(dry.printed.contains(&archive()) && dry.printed.contains("bin/flotilla-agent"));
    assert!(!prefix.exists(), "a dry run writes nothing");

    std::fs::create_dir_all(prefix.join("bin")).unwrap();
    std::fs::write(prefix.join("bin/other"), "").unwrap();
    let first = install(&release.path(), home.path(), &[&to[..], &["agent"]].concat());
    assert_eq!(first.code, Some(0), "{}", first.printed);
    assert!(first.printed.contains("Installed flotilla-agent"), "{}", first.printed);
    let installed = files(&prefix);
    assert!(installed.contains(&"bin/flotilla-agent 755".to_string()), "{installed:?}");
    assert!(installed.contains(&"share/man/man1/flotilla-agent-serve.1.gz 644".to_string()));
    assert!(!installed.iter().any(|file| file.contains("gateway")), "{installed:?}");

    let second = install(&release.path(), home.path(), &to);
    assert_eq!(second.code, Some(0), "{}", second.printed);
    let version = output(Command::new(prefix.join("bin/flotilla-gateway")).arg("--version"));
    assert_eq!(version, format!("flotilla-gateway {}\n", env!("CARGO_PKG_VERSION")));

    let removed = install(&release.path(), home.path(), &[&to[..], &["--uninstall"]].concat());
    assert_eq!(removed.code, Some(0), "{}", removed.printed);
    assert_eq!(files(&prefix), ["bin/other 644"]);
    let again = install(&release.path(), home.path(), &[&to[..], &["--uninstall"]].concat());
    assert_eq!(again.code, Some(1));
    assert!(again.printed.contains("nothing is installed"), "{}", again.printed);
}

#[test]
fn curl_or_wget_downloads_a_release_and_without_both_nothing_is_installed() {
    let Some(release) = Release::usual() else { return };
    if !has("curl", "curl") || !has("wget", "wget") {
        return;
    }
    let published = release.path();
    let server = FileServer::start(move |asked| {
        let file = published.join(asked.path.trim_start_matches('/'));
        std::fs::read(file).map_or_else(|_| Reply::status(404), |b| Reply::file(asked, &b, ""))
    });
    let home = Folder::new();
    // Every program of this machine but some.
    let install = |prefix: &str, missing: &[&str]| {
        let programs = home.path().join(format!("without-{}", missing.join("-")));
        std::fs::create_dir(&programs).unwrap();
        for folder in ["/usr/bin", "/bin"] {
            for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
                if !missing.contains(&entry.file_name().to_str().unwrap()) {
                    // The same name may be in both.
                    let _ = symlink(entry.path(), programs.join(entry.file_name()));
                }
            }
        }
        let mut script = Command::new("/bin/sh");
        script.arg(release.path().join("install.sh")).args(["--from", &server.url("")]);
        script.args(["--prefix", prefix, "agent"]).env("PATH", &programs).env("HOME", home.path());
        script.current_dir(home.path()).output().unwrap()
    };
    for (prefix, missing) in [("by-curl", "wget"), ("by-wget", "curl")] {
        let ran = install(prefix, &[missing]);
        assert!(ran.status.success(), "{prefix}: {}", String::from_utf8_lossy(&ran.stderr));
        let program = home.path().join(prefix).join("bin/flotilla-agent");
        assert!(output(Command::new(program).arg("--version")).starts_with("flotilla-agent"));
    }
    let asked = server.asked();
    for client in ["curl", "Wget"] {
        let is_client = |agent: &str| agent.starts_with(client);
        assert!(asked.iter().any(|a| a.header("user-agent").is_some_and(is_client)), "{client}");
    }
    let ran = install("by-neither", &["curl", "wget"]);
    let printed = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && printed.contains("curl or wget is missing"), "{printed}");
    assert!(!home.path().join("by-neither/bin").exists());
}

#[test]
fn what_was_changed_on_the_way_is_not_installed() {
    let Some(release) = Release::usual() else { return };
    let home = Folder::new();
    let copy = release.copy(home.path());
    let to = ["--prefix", "opt"];
    let refused = |why: &str| {
        let ran = install(&copy, home.path(), &to);
        assert_eq!(ran.code, Some(1), "{}", ran.printed);
        assert!(ran.printed.contains(why), "{}", ran.printed);
        assert!(!home.path().join("opt/bin").exists());
    };
    let restore = |file: &str| {
        std::fs::copy(release.path().join(file), copy.join(file)).unwrap();
    };

    let name = format!("{}.tar.gz", archive());
    let mut bytes = std::fs::read(copy.join(&name)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(copy.join(&name), &bytes).unwrap();
    refused("the SHA-256 of");

    // An attacker who changes the archive can also change the list, but cannot sign it.
    let sums = std::fs::read_to_string(copy.join("SHA256SUMS")).unwrap();
    let sum = output(Command::new("sha256sum").arg(copy.join(&name)));
    let line = sums.lines().find(|line| line.ends_with(&name)).unwrap();
    std::fs::write(copy.join("SHA256SUMS"), sums.replace(&line[..64], &sum[..64])).unwrap();
    refused("the signature of SHA256SUMS is wrong");
    std::fs::remove_file(copy.join("SHA256SUMS.minisig")).unwrap();
    refused("cannot fetch");
    restore("SHA256SUMS.minisig");
    restore("SHA256SUMS");
    std::fs::remove_file(copy.join(&name)).unwrap();
    refused("cannot fetch");
    restore(&name);
    assert_eq!(install(&copy, home.path(), &to).code, Some(0));
}

#[test]
fn a_program_that_does_not_run_here_does_not_replace_one_that_does() {
    let Some(release) = Release::usual() else { return };
    let home = Folder::new();
    let copy = release.copy(home.path());
    let name = format!("{}.tar.gz", archive());
    let in_copy = |program: &str, arguments: &[&str]| {
        output(Command::new(program).args(arguments).current_dir(&copy))
    };
    in_copy("tar", &["-xzf", &name]);
    std::fs::write(copy.join(archive()).join("bin/flotilla-agent"), "#!/bin/sh\nexit 1\n").unwrap();
    in_copy("tar", &["-czf", &name, &archive()]);
    let script = std::fs::read_to_string(copy.join("install.sh")).unwrap();
    let unsigned = script.lines().map(|line| match line.starts_with("PUBLIC_KEY=") {
        true => "PUBLIC_KEY=''",
        false => line,
    });
    std::fs::write(copy.join("install.sh"), unsigned.collect::<Vec<_>>().join("\n") + "\n")
        .unwrap();
    std::fs::write(copy.join("SHA256SUMS"), in_copy("sha256sum", &[&name])).unwrap();

    std::fs::create_dir_all(home.path().join("opt/bin")).unwrap();
    home.write("opt/bin/flotilla-agent", "old");
    let ran = install(&copy, home.path(), &["--prefix", "opt", "agent"]);
    assert_eq!(ran.code, Some(1), "{}", ran.printed);
    assert!(ran.printed.contains("flotilla-agent does not run here"), "{}", ran.printed);
    let left = files(&home.path().join("opt/bin"));
    assert_eq!(left, ["flotilla-agent 644"], "only the old one");
    assert_eq!(std::fs::read(home.path().join("opt/bin/flotilla-agent")).unwrap(), b"old");
}

#[test]
fn half_a_script_does_nothing() {
    let Some(release) = Release::usual() else { return };
    let home = Folder::new();
    let script = std::fs::read(release.path().join("install.sh")).unwrap();
    for part in 1..8 {
        let half = home.write("half.sh", &script[..script.len() * part / 8]);
        let ran = Command::new("sh")
            .arg(half)
            .args(["--prefix", "opt", "--from"])
            .arg(release.path())
            .current_dir(home.path())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "", "{part}/8");
        assert_eq!(files(home.path()).len(), 1, "{part}/8");
    }
}

#[test]
fn wrong_arguments_and_other_systems_are_refused_with_a_reason() {
    let Some(release) = Release::usual() else { return };
    let home = Folder::new();
    for (arguments, why) in [
        (&["--prefix"][..], "--prefix needs a value"),
        (&["nodes"], "unknown argument 'nodes'"),
        (&["--from", "/nowhere"], "cannot fetch /nowhere/SHA256SUMS"),
    ] {
        let ran = install(&release.path(), home.path(), arguments);
        assert_eq!(ran.code, Some(1), "{arguments:?}: {}", ran.printed);
        assert!(ran.printed.contains(why), "{arguments:?}: {}", ran.printed);
    }
    // Another machine, as far as uname and dpkg say.
    for (machine, debian, why) in [
        ("riscv64", "riscv64", "x86-64 and 64-bit ARM; this is riscv64"),
        ("aarch64", "armhf", "has no archive for armhf"),
    ] {
        let tools = Folder::new();
        for (tool, text) in [
            ("uname", format!("case $1 in -s) echo Linux ;; *) echo {machine} ;; esac")),
            ("dpkg", format!("echo {debian}")),
        ] {
            let path = tools.write(tool, format!("#!/bin/sh\n{text}\n"));
            output(Command::new("chmod").arg("755").arg(path));
        }
        let path = format!("{}:{}", tools.path().display(), std::env::var("PATH").unwrap());
        let ran = Command::new("sh")
            .arg(release.path().join("install.sh"))
            .args(["--prefix", "opt", "--from"])
            .arg(release.path())
            .env("PATH", path)
            .current_dir(home.path())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success() && printed.contains(why), "{machine}: {printed}");
    }
    assert_eq!(files(home.path()), Vec::<String>::new());
}

#[test]
fn a_release_lists_and_signs_all_its_files() {
    let Some(release) = Release::usual() else { return };
    let sums = std::fs::read_to_string(release.path().join("SHA256SUMS")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    for name in [
        format!("{}.tar.gz", archive()),
        format!("flotilla-agent_{version}_{}.deb", own_architecture()),
        format!("flotilla-gateway_{version}_{}.deb", own_architecture()),
        "install.sh".into(),
    ] {
        assert!(sums.lines().any(|line| line.ends_with(&format!("  {name}"))), "{name}: {sums}");
    }
    let mut check = Command::new("sha256sum");
    output(check.args(["-c", "SHA256SUMS"]).current_dir(release.path()));
}
