//! The kernel's files below a root: `/` in production, fake files in tests.

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// Maximum bytes read from a file; `/proc/cpuinfo` of 512 CPUs has about 1 MB.
const BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Maximum entries read from a folder.
const ENTRIES_MAX: usize = 65_536;

/// Source of the kernel's files. Paths begin with `/`.
pub trait Files {
    /// The text of a file, truncated if it is too long; `None` if it cannot be read.
    fn text(&self, path: &str) -> Option<String>;
    /// The names in a folder; empty if it cannot be read.
    fn names(&self, folder: &str) -> Vec<String>;

    /// A file that holds a single number.
    fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// The text of a file, trimmed; `None` if empty.
    fn word(&self, path: &str) -> Option<String> {
        Some(self.text(path)?.trim().to_string()).filter(|word| !word.is_empty())
    }
}

/// Files below a real folder.
#[derive(Debug, Clone)]
pub struct Root(pub PathBuf);

impl Root {
    /// The machine's own root.
    pub fn machine() -> Self {
        Self(PathBuf::from("/"))
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }
}

impl Files for Root {
    fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        File::open(self.path(path)).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(folder)) else { return Vec::new() };
        let names = entries.take(ENTRIES_MAX).filter_map(Result::ok);
        let mut names: Vec<String> =
            names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }
}

/// Parses the kernel's list format, such as `0-3,8`.
pub fn parse_list(list: &str) -> Option<Vec<u32>> {
    /// No machine has more CPUs or nodes; a longer range means that the file was misread.
    const MOST: u32 = 65_536;
    let mut all = Vec::new();
    for part in list.trim().split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (u32, u32) = (from.trim().parse().ok()?, to.trim().parse().ok()?);
        if to < from || to >= MOST {
            return None;
        }
        all.extend(from..=to);
        if all.len() > MOST as usize {
            return None;
        }
    }
    Some(all)
}

/// Fake files for tests; folder contents follow from the paths.
#[cfg(test)]
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeFiles(pub(crate) std::collections::BTreeMap<String, String>);

#[cfg(test)]
impl FakeFiles {
    /// Adds a file.
    pub(crate) fn file(mut self, path: &str, text: &str) -> Self {
        self.0.insert(path.to_string(), text.to_string());
        self
    }
}

#[cfg(test)]
impl Files for FakeFiles {
    fn text(&self, path: &str) -> Option<String> {
        self.0.get(path).cloned()
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let inside = self.0.keys().filter_map(|path| path.strip_prefix(folder)?.strip_prefix('/'));
        let first = inside.filter_map(|rest| rest.split('/').next());
        first.map(String::from).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(parse_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(parse_list("7"), Some(vec![7]));
        assert_eq!(parse_list(""), None);
        assert_eq!(parse_list("3-1"), None);
        assert_eq!(parse_list("0-4294967295"), None);
    }

    #[test]
    fn a_real_folder_is_read_below_its_root() {
        let root = Root(PathBuf::from(env!("CARGO_MANIFEST_DIR")));
        assert!(root.text("/Cargo.toml").unwrap().contains("inference-core"));
        assert!(root.names("/src").contains(&"lib.rs".to_string()));
        assert_eq!((root.text("/no/such"), root.names("/no/such")), (None, Vec::new()));
    }
}
