//! PURE. Reads what the hub says about a repository: its commit, and its files with their sizes and
//! digests. Leaves out files whose names could lead out of a folder.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::source::{FOLDERS_MAX, check_name};
use super::text;

/// Maximum files of a repository.
const FILES_MAX: usize = 20_000;

/// A file of a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListedFile {
    /// Folders and name.
    pub path: Vec<String>,
    pub bytes: Option<u64>,
    pub sha256: Option<String>,
}

impl ListedFile {
    pub(crate) fn name(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }
}

/// The files of a repository at one commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    pub commit: Option<String>,
    /// In the hub's order; each path once.
    pub files: Vec<ListedFile>,
}

/// `GET /api/models/OWNER/REPO/revision/REVISION?blobs=true`, as far as it is used.
#[derive(Deserialize)]
struct Answer {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    sha256: Option<String>,
    size: Option<u64>,
}

/// Parses the hub's answer; the error continues a sentence after the hub's name.
pub(crate) fn parse(body: &[u8]) -> Result<Listing, String> {
    let answer: Answer = serde_json::from_slice(body)
        .map_err(|e| format!("sent a list of files that cannot be read: {e}"))?;
    if answer.siblings.len() > FILES_MAX {
        return Err(format!("lists more than {FILES_MAX} files"));
    }
    let is_commit = |c: &String| c.len() == 40 && c.bytes().all(|b| b.is_ascii_hexdigit());
    let mut seen = BTreeSet::new();
    let files = answer.siblings.into_iter().filter_map(listed);
    let files = files.filter(|file| seen.insert(file.path.clone())).collect();
    Ok(Listing { commit: answer.sha.filter(is_commit), files })
}

fn listed(sibling: Sibling) -> Option<ListedFile> {
    let path: Vec<String> = sibling.rfilename.split('/').map(Into::into).collect();
    let is_safe = path.len() <= FOLDERS_MAX && path.iter().all(|part| check_name(part).is_ok());
    let (bytes, sha256) = match sibling.lfs {
        Some(large) => (large.size, large.sha256.as_deref().and_then(text::sha256)),
        None => (None, None),
    };
    is_safe.then(|| ListedFile { path, bytes: bytes.or(sibling.size), sha256 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn files_have_sizes_and_digests() {
        let (commit, digest) = ("0123456789abcdef".repeat(3)[..40].to_string(), "AB".repeat(32));
        let body = serde_json::json!({"id": "o/r", "sha": commit, "siblings": [
            {"rfilename": "README.md", "size": 9, "blobId": "x"},
            {"rfilename": "q4/m.gguf", "size": 1, "lfs": {"sha256": digest, "size": 77}},
            {"rfilename": "q4/m.gguf", "size": 2},
        ]});
        let listing = parse(body.to_string().as_bytes()).unwrap();
        assert_eq!((listing.commit, listing.files.len()), (Some(commit), 2));
        let file = &listing.files[1];
        assert_eq!((file.name(), file.bytes), ("m.gguf", Some(77)));
        assert_eq!(file.sha256.as_deref(), Some(&digest.to_ascii_lowercase()[..]));
        assert_eq!(listing.files[0].sha256, None);
    }

    #[test]
    fn names_that_lead_elsewhere_are_left_out() {
        let names = ["../m.gguf", "/etc/m.gguf", "a//m.gguf", "a/./m.gguf", "a\\m.gguf", "", ".."];
        let long = "n".repeat(300);
        let deep = "d/".repeat(50) + "m.gguf";
        let all = names.iter().copied().chain([&long[..], &deep, "a\u{202e}.gguf", "good.gguf"]);
        let siblings: Vec<_> = all.map(|n| serde_json::json!({"rfilename": n})).collect();
        let body = serde_json::json!({"sha": "main", "siblings": siblings}).to_string();
        let listing = parse(body.as_bytes()).unwrap();
        assert_eq!((listing.commit, listing.files.len()), (None, 1));
        assert_eq!(listing.files[0].name(), "good.gguf");
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for body in ["", "[]", "{\"siblings\":3}", "<html>", "{\"siblings\":[{\"size\":1}]}"] {
            assert!(parse(body.as_bytes()).is_err(), "{body}");
        }
        let many = vec!["{\"rfilename\":\"m\"}"; FILES_MAX + 1].join(",");
        assert!(parse(format!("{{\"siblings\":[{many}]}}").as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn no_listed_file_leads_out(name in "(\\PC|[./\\\\]){0,40}") {
            let body = serde_json::json!({"siblings": [{"rfilename": name}]}).to_string();
            for file in parse(body.as_bytes()).unwrap().files {
                prop_assert!(file.path.iter().all(|p| check_name(p).is_ok()));
            }
        }
    }
}
