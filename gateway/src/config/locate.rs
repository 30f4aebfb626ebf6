//! Finds the configuration file that a command means if it is not told.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Name of the configuration file, in whichever folder.
pub const CONFIG_FILE: &str = "gateway.yaml";
/// Names the configuration file.
const CONFIG_VARIABLE: &str = "FLOTILLA_CONFIG";
/// Names the state directory.
const HOME_VARIABLE: &str = "FLOTILLA_HOME";

/// Where configuration and state are looked for.
#[derive(Debug, Clone)]
pub struct Places {
    /// `$FLOTILLA_CONFIG`, which is taken even if it does not exist.
    named: Option<PathBuf>,
    working_dir: PathBuf,
    system_dir: PathBuf,
    state_dir: PathBuf,
}

impl Places {
    /// The places of this process.
    pub fn of_process() -> Self {
        Self::new(|name| std::env::var_os(name), Path::new("/"))
    }

    /// The places that these environment variables name, below `root`.
    fn new(variable: impl Fn(&str) -> Option<OsString>, root: &Path) -> Self {
        let path = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let below_home = || Some(path("HOME")?.join(".local/state"));
        let state_home = path("XDG_STATE_HOME").or_else(below_home);
        let state_dir = path(HOME_VARIABLE)
            .or_else(|| Some(state_home?.join("flotilla")))
            .unwrap_or_else(|| root.join("var/lib/flotilla"));
        Self {
            named: path(CONFIG_VARIABLE),
            working_dir: PathBuf::new(),
            system_dir: root.join("etc/flotilla"),
            state_dir,
        }
    }

    /// The state directory: `$FLOTILLA_HOME`, `flotilla` in the XDG state directory, or
    /// `/var/lib/flotilla`.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The configuration file: `given`, `$FLOTILLA_CONFIG`, or the first that exists in the working
    /// directory, in `/etc/flotilla`, and in the state directory.
    pub fn find(&self, given: Option<&Path>) -> Option<PathBuf> {
        let named = given.or(self.named.as_deref()).map(Path::to_path_buf);
        named.or_else(|| {
            let folders = [&self.working_dir, &self.system_dir, &self.state_dir];
            let mut files = folders.into_iter().map(|folder| folder.join(CONFIG_FILE));
            files.find(|file| file.exists())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn places(variables: &[(&str, &str)], root: &Path) -> Places {
        let value = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
        };
        Places::new(value, root)
    }

    #[test]
    fn the_state_directory_is_named_or_that_of_the_user_or_of_the_system() {
        let root = Path::new("/");
        for (variables, expected) in [
            (&[("FLOTILLA_HOME", "/a"), ("XDG_STATE_HOME", "/b"), ("HOME", "/c")][..], "/a"),
            (&[("XDG_STATE_HOME", "/b"), ("HOME", "/c")], "/b/flotilla"),
            (&[("XDG_STATE_HOME", ""), ("HOME", "/c")], "/c/.local/state/flotilla"),
            (&[], "/var/lib/flotilla"),
        ] {
            assert_eq!(places(variables, root).state_dir(), Path::new(expected));
        }
    }

    #[test]
    fn the_nearest_configuration_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let state = root.join("state");
        let mut places = places(&[("FLOTILLA_HOME", state.to_str().unwrap())], root);
        places.working_dir = root.join("here");
        assert_eq!(places.find(None), None);
        for folder in [&state, &root.join("etc/flotilla"), &places.working_dir] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join(CONFIG_FILE), "").unwrap();
            assert_eq!(places.find(None), Some(folder.join(CONFIG_FILE)));
        }
        places.named = Some("named.yaml".into());
        assert_eq!(places.find(None), Some("named.yaml".into()));
        assert_eq!(places.find(Some(Path::new("given.yaml"))), Some("given.yaml".into()));
    }
}
