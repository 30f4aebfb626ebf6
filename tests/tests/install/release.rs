//! A release of the binaries that the tests run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use fleet_tests::process::{Folder, binary};
use fleet_tests::root;

use fleet_tests::tools::{has, output};

/// Where the release says that its files are.
pub const URL: &str = "http://releases.example";

/// Where scripts/arm64.sh puts programs for ARM64.
const ARM64: &str = "target/arm64/build/aarch64-unknown-linux-gnu/release";

/// A folder as it is published.
pub struct Release {
    folder: Folder,
}

impl Release {
    /// Made once for all tests; `None` where packages cannot be built.
    pub fn usual() -> Option<&'static Self> {
        static USUAL: LazyLock<Option<Release>> =
            LazyLock::new(|| Release::build(own_architecture()));
        USUAL.as_ref()
    }

    /// Of that architecture: this machine's, or arm64 with the programs that `make test-arm64` has
    /// compiled. `None` where packages cannot be built.
    pub fn build(architecture: &str) -> Option<Self> {
        let tools =
            [("dpkg-shlibdeps", "dpkg-dev"), ("strip", "binutils"), ("minisign", "minisign")];
        if !tools.iter().all(|(tool, package)| has(tool, package)) {
            return None;
        }
        let release = Self { folder: Folder::new() };
        let key = release.folder.path().join("release.key");
        output(
            Command::new("minisign")
                .args(["-G", "-W", "-s"])
                .arg(&key)
                .arg("-p")
                .arg(key.with_extension("key.pub")),
        );
        let own = binary("flotilla-agent").parent().unwrap().to_path_buf();
        let script = |arguments: &[&str]| {
            let mut command = Command::new(root().join("scripts/release.sh"));
            command.args(arguments).env("RELEASES", release.folder.path());
            command.env("RELEASE_URL", URL).env("SIGNING_KEY", &key).env("NATIVE", &own);
            output(command.env("DEB_LEVEL", "0").env("COMPONENTS", "0"));
        };
        let is_own = architecture == own_architecture();
        let binaries = if is_own { own.clone() } else { root().join(ARM64) };
        script(&["pack", architecture, binaries.to_str().unwrap()]);
        script(&["finish"]);
        Some(release)
    }

    /// The files.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(env!("CARGO_PKG_VERSION"))
    }

    /// A copy that a test may change.
    pub fn copy(&self, to: &Path) -> PathBuf {
        let copy = to.join("release");
        output(Command::new("cp").arg("-r").arg(self.path()).arg(&copy));
        copy
    }
}

/// This machine's architecture, as Debian calls it.
pub fn own_architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// The name of the archive without its ending.
pub fn archive() -> String {
    format!("flotilla-{}-linux-{}", env!("CARGO_PKG_VERSION"), own_architecture())
}
