//! The files that a configuration names.

use std::cell::RefCell;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const KEY_FILE_BYTES_MAX: u64 = 4096;

/// Resolves file names and records them, so that the reload task can watch all of them.
#[derive(Debug, Default)]
pub struct Files {
    base: PathBuf,
    /// Folder of systemd's LoadCredential=, which is readable even where the configuration's folder
    /// is not.
    credentials: Option<PathBuf>,
    /// Folder of systemd's StateDirectory=, which is writable even where the configuration's folder
    /// is not.
    state: Option<PathBuf>,
    named: RefCell<Vec<Named>>,
}

/// A file and its version just before it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// Path of the file.
    pub path: PathBuf,
    /// Its version; `None` if its metadata cannot be read.
    pub version: Option<Version>,
}

/// Version of a file: length, inode, and modification time (seconds and nanoseconds).
pub type Version = (u64, u64, i64, i64);

impl Named {
    /// A file with its current version.
    pub fn now(path: PathBuf) -> Self {
        let data = std::fs::metadata(&path).ok();
        let version = data.map(|d| (d.len(), d.ino(), d.mtime(), d.mtime_nsec()));
        Self { path, version }
    }
}

impl Files {
    /// Resolves names relative to the folder of `config`, which is the first file recorded.
    /// Credentials with the same name take precedence (`CREDENTIALS_DIRECTORY`).
    pub fn beside(config: &Path) -> Self {
        // The parent of a bare file name is the empty path, which the system does not accept as a
        // folder.
        let parent = config.parent().filter(|parent| !parent.as_os_str().is_empty());
        let base = parent.unwrap_or(Path::new(".")).to_path_buf();
        let credentials = std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from);
        // systemd separates several folders by colons.
        let state = std::env::var("STATE_DIRECTORY").ok();
        let state = state.and_then(|all| Some(PathBuf::from(all.split(':').next()?)));
        Self {
            base,
            credentials,
            state,
            named: RefCell::new(vec![Named::now(config.to_path_buf())]),
        }
    }

    /// Resolves and records the name of a file to read.
    pub fn path(&self, name: &str) -> PathBuf {
        let path = self.resolve(name);
        self.named.borrow_mut().push(Named::now(path.clone()));
        path
    }

    /// Resolves the name of a file to read.
    pub(crate) fn resolve(&self, name: &str) -> PathBuf {
        let brought = self.credentials.as_ref().map(|folder| folder.join(name));
        let brought = brought.filter(|path| path.exists());
        brought.unwrap_or_else(|| self.base.join(name))
    }

    /// Resolves the name of a file that the gateway writes. It is not watched, because our own
    /// writes are no configuration changes, and credentials do not replace it.
    pub(crate) fn written_path(&self, name: &str) -> PathBuf {
        self.base.join(name)
    }

    /// Resolves the name of a folder that the gateway writes. Without a name, it is `default` in
    /// systemd's state directory, or else beside the configuration.
    pub(crate) fn state_dir(&self, name: Option<&str>, default: &str) -> PathBuf {
        match (name, &self.state) {
            (Some(name), _) => self.base.join(name),
            (None, Some(state)) => state.join(default),
            (None, None) => self.base.join(default),
        }
    }

    /// All files recorded.
    pub(crate) fn into_named(self) -> Vec<Named> {
        self.named.into_inner()
    }

    /// Reads a key from a file and trims whitespace.
    pub fn key(&self, name: &str) -> Result<String, String> {
        let path = self.path(name);
        let text = read(&path, KEY_FILE_BYTES_MAX)?;
        match text.trim() {
            "" => Err(format!("{}: is empty", path.display())),
            key => Ok(key.to_string()),
        }
    }
}

/// Fails if users other than the owner and the group may read a file.
pub(super) fn check_private(path: &Path) -> Result<(), String> {
    let data = std::fs::metadata(path).map_err(|e| format!("{}: {e}", path.display()))?;
    match data.mode() & 0o007 {
        0 => Ok(()),
        _ => Err(format!(
            "{path}: every user of this machine may read it (mode {:o}); 'chmod o= {path}' changes that",
            data.mode() & 0o777,
            path = path.display()
        )),
    }
}

/// Reads a text file of at most `bytes_max` bytes.
pub fn read(path: &Path, bytes_max: u64) -> Result<String, String> {
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|e| fail(&e))?;
    file.take(bytes_max + 1).read_to_string(&mut text).map_err(|e| fail(&e))?;
    match text.len() as u64 > bytes_max {
        true => Err(fail(&format!("larger than {bytes_max} bytes"))),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_goes_before_the_file_beside_the_configuration() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = Files {
            base: here.join("src"),
            credentials: Some(here.to_path_buf()),
            ..Files::default()
        };
        assert_eq!(files.path("Cargo.toml"), here.join("Cargo.toml"));
        assert_eq!(files.path("lib.rs"), here.join("src/lib.rs"));
        assert_eq!(files.path("/etc/hosts"), Path::new("/etc/hosts"));
        assert_eq!(files.into_named().len(), 3);
    }

    #[test]
    fn paths_are_relative_to_the_folder_of_the_configuration_however_that_is_written() {
        for (config, expected) in [
            ("gateway.yaml", "./state.json"),
            ("./gateway.yaml", "./state.json"),
            ("etc/gateway.yaml", "etc/state.json"),
            ("/etc/gateway.yaml", "/etc/state.json"),
        ] {
            let files = Files::beside(Path::new(config));
            assert_eq!(files.path("state.json"), Path::new(expected), "{config}");
            assert_eq!(files.written_path("state.json"), Path::new(expected), "{config}");
            assert_eq!(files.path("state.json").parent(), Path::new(expected).parent());
        }
    }

    #[test]
    fn a_folder_without_a_name_is_where_systemd_lets_the_gateway_write() {
        let mut files = Files::beside(Path::new("/etc/gateway.yaml"));
        files.state = Some("/var/lib/gateway".into());
        assert_eq!(files.state_dir(None, "acme"), Path::new("/var/lib/gateway/acme"));
        assert_eq!(files.state_dir(Some("here"), "acme"), Path::new("/etc/here"));
        files.state = None;
        assert_eq!(files.state_dir(None, "acme"), Path::new("/etc/acme"));
    }

    #[test]
    fn a_file_that_the_gateway_writes_is_not_watched() {
        let files = Files::beside(Path::new("gateway.yaml"));
        files.written_path("state.json");
        assert_eq!(files.into_named(), [Named::now("gateway.yaml".into())]);
    }
}
