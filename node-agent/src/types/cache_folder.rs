//! The folder for what the agent may lose: tuning results and downloaded models.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Cache folder for services without a home directory.
const SYSTEM_FOLDER: &str = "/var/cache/flotilla";

/// The first of `$FLOTILLA_CACHE_DIR`, `$XDG_CACHE_HOME/flotilla`, `~/.cache/flotilla` and
/// `/var/cache/flotilla` (if it exists).
pub(crate) fn find() -> Option<PathBuf> {
    let system = Path::new(SYSTEM_FOLDER).is_dir().then(|| PathBuf::from(SYSTEM_FOLDER));
    folder(|name| std::env::var_os(name)).or(system)
}

/// The user's cache folder. Ignores relative paths, as the XDG specification requires.
fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let of = |name: &str, below: &str| {
        let path = PathBuf::from(variable(name).filter(|value| !value.is_empty())?);
        path.is_absolute().then(|| path.join(below))
    };
    of("FLOTILLA_CACHE_DIR", "")
        .or_else(|| of("XDG_CACHE_HOME", "flotilla"))
        .or_else(|| of("HOME", ".cache/flotilla"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_folder_is_taken() {
        let with = |set: &'static [(&str, &str)]| {
            folder(move |name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| v.into()))
        };
        let all =
            [("FLOTILLA_CACHE_DIR", "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c")].as_slice();
        assert_eq!(with(all), Some("/a/".into()));
        assert_eq!(with(&[("XDG_CACHE_HOME", "/b"), ("HOME", "/c")]), Some("/b/flotilla".into()));
        assert_eq!(
            with(&[("XDG_CACHE_HOME", "b"), ("HOME", "/c")]),
            Some("/c/.cache/flotilla".into())
        );
        assert_eq!(with(&[("HOME", "")]), None);
    }
}
