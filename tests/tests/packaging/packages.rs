//! The Debian packages: what is in them, and what lintian says.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use fleet_tests::process::{Folder, binary, program, run, run_command};
use fleet_tests::root;

use fleet_tests::tools::{has, output};

/// Packages of some version, of the binaries that the tests run; kept until the tests end.
pub struct Packages {
    _folder: Folder,
    all: Vec<PathBuf>,
}

impl Packages {
    /// Made once for all tests.
    pub fn usual() -> &'static Self {
        static USUAL: LazyLock<Packages> = LazyLock::new(|| Packages::build("1.0.0"));
        &USUAL
    }

    /// Of that version.
    pub fn build(version: &str) -> Self {
        let folder = Folder::new();
        let binaries = binary("flotilla-agent");
        let said = output(
            Command::new(root().join("packaging/deb/build.sh"))
                .args([binaries.parent().unwrap(), folder.path()])
                .env("VERSION", version)
                .env("DEB_LEVEL", "0"),
        );
        let all: Vec<PathBuf> = said.lines().map(PathBuf::from).collect();
        assert!(all.len() == 2 && all.iter().all(|path| path.starts_with(folder.path())), "{said}");
        Self { _folder: folder, all }
    }

    /// That of the gateway, or of the agent.
    pub fn of(&self, part: &str) -> &Path {
        let named = |path: &&PathBuf| path.to_str().unwrap().contains(&format!("flotilla-{part}_"));
        self.all.iter().find(named).unwrap()
    }
}

/// Whether packages can be made here.
pub fn can_build() -> bool {
    has("dpkg-shlibdeps", "dpkg-dev") && has("dpkg-deb", "dpkg") && has("strip", "binutils")
}

#[test]
fn a_package_has_its_files_with_their_modes_and_owners() {
    if !can_build() {
        return;
    }
    for (part, configuration) in [("gateway", "gateway.yaml"), ("agent", "agent.env")] {
        let deb = Packages::usual().of(part);
        let list = output(Command::new("dpkg-deb").arg("-c").arg(deb));
        for (mode, path) in [
            ("-rwxr-xr-x", format!("./usr/bin/flotilla-{part}")),
            ("-rw-r--r--", format!("./lib/systemd/system/flotilla-{part}.service")),
            ("-rw-r--r--", format!("./etc/flotilla/{configuration}")),
            ("-rw-r--r--", format!("./usr/share/doc/flotilla-{part}/copyright")),
            ("-rw-r--r--", format!("./usr/share/doc/flotilla-{part}/changelog.gz")),
        ] {
            let line = list.lines().find(|line| line.ends_with(&format!(" {path}")));
            let line = line.unwrap_or_else(|| panic!("no {path} in\n{list}"));
            assert!(line.starts_with(mode) && line.contains(" root/root "), "{line}");
        }
        let field = |name: &str| output(Command::new("dpkg-deb").arg("-f").arg(deb).arg(name));
        assert_eq!(field("Package").trim(), format!("flotilla-{part}"));
        assert!(field("Depends").contains("libc6 (>= "), "{}", field("Depends"));
        let conffiles = output(Command::new("dpkg-deb").args(["-I"]).arg(deb).arg("conffiles"));
        assert_eq!(conffiles.trim(), format!("/etc/flotilla/{configuration}"));
    }
}

#[test]
fn lintian_finds_nothing() {
    if !can_build() || !has("lintian", "lintian") {
        return;
    }
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning"]);
    if run("flotilla-gateway", &["man", "--help"]).code != Some(0) {
        lintian.args(["--suppress-tags", "no-manual-page"]);
    }
    for part in ["gateway", "agent"] {
        lintian.arg(Packages::usual().of(part));
    }
    let said = output(&mut lintian);
    assert_eq!(said, "");
}

/// Keys come from systemd's credentials where there are some, and the file beside is not needed.
#[test]
fn the_configuration_that_is_installed_is_accepted() {
    if !can_build() {
        return;
    }
    let (tree, keys) = (Folder::new(), Folder::new());
    let mut unpack = Command::new("dpkg-deb");
    output(unpack.arg("-x").arg(Packages::usual().of("gateway")).arg(tree.path()));
    let folder = tree.path().join("etc/flotilla");
    let config = folder.join("gateway.yaml");
    let text = std::fs::read_to_string(&config).unwrap();
    let state = keys.path().display().to_string();
    std::fs::write(&config, text.replace("/var/lib/flotilla-gateway", &state)).unwrap();
    let check = || program("flotilla-gateway", &["check", "--config", config.to_str().unwrap()]);
    let without = run_command(check());
    assert_eq!(without.code, Some(64));
    assert!(without.stderr.contains("join.key"), "{}", without.stderr);
    // As postinst does it.
    let folder = folder.to_str().unwrap();
    let made = ["init", "--dir", folder, "--keys-only", "--listen", "0.0.0.0:8443"];
    assert_eq!(run("flotilla-gateway", &made).code, Some(0));
    for name in ["join.key", "admin.key", "cert-key.pem"] {
        let from = config.with_file_name(name);
        std::fs::copy(&from, keys.path().join(name)).unwrap();
        std::fs::remove_file(from).unwrap();
    }
    let mut check = check();
    check.env("CREDENTIALS_DIRECTORY", keys.path());
    let with = run_command(check);
    assert_eq!((with.code, &with.stdout[..]), (Some(0), "ok\n"), "{}", with.stderr);
}
