//! PURE. What to pull: a file of a repository on the hub, or any URL. Accepts only names that stay
//! inside their folder.

use sha2::{Digest, Sha256};
use url::Url;

use super::text;

/// Maximum length of a file name: file systems allow 255 bytes, and `.part.json.new` is appended.
const NAME_BYTES_MAX: usize = 240;
/// Maximum length of SOURCE in bytes.
pub(crate) const SOURCE_BYTES_MAX: usize = 4096;
/// Maximum folders above a file of a repository.
pub(crate) const FOLDERS_MAX: usize = 32;
/// The default branch of a repository.
pub(crate) const REVISION_DEFAULT: &str = "main";

/// A checked SOURCE.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// `hf:owner/repo/folder/file`
    Hub {
        /// `owner/repo`
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// Folders and name of the file; empty for the repository itself.
        path: Vec<String>,
    },
    /// `http://...` or `https://...`
    Web(Url),
}

impl Source {
    /// Parses SOURCE and `--revision`; the error is one line for the operator.
    pub(crate) fn parse(source: &str, revision: Option<&str>) -> Result<Self, String> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(format!("the source is longer than {SOURCE_BYTES_MAX} bytes"));
        }
        if let Some(path) = source.strip_prefix("hf:") {
            return parse_hub(path, revision.unwrap_or(REVISION_DEFAULT));
        }
        if !source.starts_with("http://") && !source.starts_with("https://") {
            return Err(format!(
                "unknown source '{}': use hf:owner/repo[:quantization], \
                 hf:owner/repo/file.gguf or https://...",
                source.escape_debug()
            ));
        }
        if revision.is_some() {
            return Err("--revision works only with hf: sources".into());
        }
        let mut url =
            Url::parse(source).map_err(|e| format!("the source is not a valid URL: {e}"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "the source contains a user name or a password, which would appear in logs: \
                        leave them out"
                    .into(),
            );
        }
        url.set_fragment(None);
        let source = Self::Web(url);
        source.file_name().map(|_| source)
    }

    /// The file's name, safe to create in any folder.
    pub(crate) fn file_name(&self) -> Result<String, String> {
        match self {
            Self::Hub { path, .. } => path.last().cloned().ok_or_else(|| "no file".into()),
            Self::Web(url) => {
                let last = url.path_segments().and_then(|mut s| s.next_back()).unwrap_or_default();
                let name = percent_encoding::percent_decode_str(last).decode_utf8();
                let name = name.map_err(|_| "the URL's file name is not UTF-8: use --to FILE")?;
                check_name(&name).map_err(|e| format!("the URL's file name {e}"))?;
                Ok(name.into_owned())
            }
        }
    }

    /// Another file in the same folder.
    pub(crate) fn beside(&self, name: &str) -> Self {
        let mut other = self.clone();
        match &mut other {
            Self::Hub { path, .. } => {
                path.pop();
                path.push(name.into());
            }
            Self::Web(url) => {
                if let Ok(mut segments) = url.path_segments_mut() {
                    segments.pop().push(name);
                }
            }
        }
        other
    }

    /// The same file at another revision of its repository.
    pub(crate) fn at_revision(&self, commit: &str) -> Self {
        let mut other = self.clone();
        if let Self::Hub { revision, .. } = &mut other {
            *revision = commit.into();
        }
        other
    }

    /// Download URL; `hub` is the hub's address.
    pub(crate) fn url(&self, hub: &Url) -> Url {
        match self {
            Self::Web(url) => url.clone(),
            Self::Hub { repo, revision, path } => {
                let mut url = hub.clone();
                if let Ok(mut segments) = url.path_segments_mut() {
                    segments.pop_if_empty().extend(repo.split('/'));
                    // A revision is one segment: refs/pr/1 becomes refs%2Fpr%2F1.
                    segments.push("resolve").push(revision).extend(path);
                }
                url
            }
        }
    }

    /// URL of the list of files of a repository; `None` for a URL.
    pub(crate) fn list_url(&self, hub: &Url) -> Option<Url> {
        let Self::Hub { repo, revision, .. } = self else { return None };
        let mut url = hub.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(["api", "models"]).extend(repo.split('/'));
            segments.push("revision").push(revision);
        }
        // With sizes and digests.
        url.set_query(Some("blobs=true"));
        Some(url)
    }

    /// The repository, if it is on the hub.
    pub(crate) fn repo(&self) -> Option<&str> {
        match self {
            Self::Hub { repo, .. } => Some(repo),
            Self::Web(_) => None,
        }
    }

    /// Identifies the source without the query, which may contain a signature. Two URLs that differ
    /// only in the query still have different identities.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::Hub { repo, revision, path } if path.is_empty() => {
                format!("hf:{repo} at {revision}")
            }
            Self::Hub { repo, revision, path } => {
                format!("hf:{repo}/{} at {revision}", path.join("/"))
            }
            Self::Web(url) => {
                let mut bare = url.clone();
                bare.set_query(None);
                let query = url.query().map(|q| text::hex(&Sha256::digest(q)));
                let query = query.map(|d| format!(" (query with sha256 {d})"));
                format!("{bare}{}", query.unwrap_or_default())
            }
        }
    }

    /// For messages: shorter than [`Source::identity`].
    pub(crate) fn shown(&self) -> String {
        let identity = self.identity();
        match identity.split_once(" (query") {
            Some((bare, _)) => bare.into(),
            None => identity,
        }
    }
}

fn parse_hub(path: &str, revision: &str) -> Result<Source, String> {
    let mut parts: Vec<String> = path.split('/').map(Into::into).collect();
    if parts.len() < 3 {
        return Err(format!(
            "'hf:{}' has no file name: use hf:owner/repo/file.gguf",
            path.escape_debug()
        ));
    }
    if parts.len() > 3 + FOLDERS_MAX {
        return Err("the source has too many folders".into());
    }
    for part in &parts {
        check_name(part).map_err(|e| format!("a name in the source {e}"))?;
    }
    let path = parts.split_off(2);
    let repo = parts.join("/");
    check_repo(&repo, revision)?;
    Ok(Source::Hub { repo, revision: revision.into(), path })
}

/// Checks `owner/repo` and a revision of it.
pub(crate) fn check_repo(repo: &str, revision: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    for part in repo.split('/') {
        check_name(part).map_err(|e| format!("a name in the source {e}"))?;
        if !part.chars().all(plain) {
            return Err(format!("'{part}' is not a valid owner or repository name"));
        }
    }
    let ok = |part: &str| check_name(part).is_ok();
    if !revision.split('/').all(ok) || revision.len() > NAME_BYTES_MAX {
        return Err("--revision must be a branch, a tag or a commit".into());
    }
    Ok(())
}

/// Checks that a name can only be a file in one folder; the error continues a sentence after a
/// noun.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let shown = name.escape_debug();
    if name.is_empty() {
        Err("is empty: set the file's name with --to FILE".into())
    } else if name == "." || name == ".." || name.contains(['/', '\\']) {
        Err(format!("('{shown}') leads out of its folder"))
    } else if name.contains(|c: char| c.is_control() || is_invisible(c)) {
        Err(format!("('{shown}') contains invisible characters"))
    } else if name.len() > NAME_BYTES_MAX {
        Err(format!("is longer than {NAME_BYTES_MAX} bytes"))
    } else {
        Ok(())
    }
}

/// Characters that change the direction of text or have no width, which make one name look like
/// another.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn url_of(source: &str, revision: Option<&str>) -> String {
        let hub = Url::parse("https://hub.example/mirror/").unwrap();
        Source::parse(source, revision).unwrap().url(&hub).to_string()
    }

    #[test]
    fn a_file_of_a_repository_has_the_hubs_url() {
        assert_eq!(
            url_of("hf:o-1/r.2/q4/a b.gguf", None),
            "https://hub.example/mirror/o-1/r.2/resolve/main/q4/a%20b.gguf"
        );
        assert_eq!(
            url_of("hf:o/r/m.gguf", Some("refs/pr/1")),
            "https://hub.example/mirror/o/r/resolve/refs%2Fpr%2F1/m.gguf"
        );
        assert_eq!(
            url_of("hf:o/r/100%?#.gguf", None),
            "https://hub.example/mirror/o/r/resolve/main/100%25%3F%23.gguf"
        );
        assert_eq!(url_of("http://h:1/a/m.gguf?x=1#y", None), "http://h:1/a/m.gguf?x=1");
    }

    #[test]
    fn a_repository_has_a_list_of_files() {
        let source = Source::parse("hf:o-1/r.2/m.gguf", Some("refs/pr/1")).unwrap();
        let hub = Url::parse("https://hub.example/mirror").unwrap();
        assert_eq!(
            source.list_url(&hub).unwrap().as_str(),
            "https://hub.example/mirror/api/models/o-1/r.2/revision/refs%2Fpr%2F1?blobs=true"
        );
    }

    #[test]
    fn what_is_no_source_is_refused_with_a_hint() {
        for (source, why) in [
            ("model.gguf", "use hf:owner/repo[:quantization]"),
            ("ftp://h/m.gguf", "use hf:"),
            ("hf:owner/repo", "has no file name"),
            ("hf:owner/repo/", "is empty"),
            ("hf:owner//m.gguf", "is empty"),
            ("hf:owner/repo/../../m.gguf", "leads out"),
            ("hf:owner/repo/..", "leads out"),
            ("hf:../repo/m.gguf", "leads out"),
            ("hf:own er/repo/m.gguf", "not a valid owner"),
            ("hf:owner/repo/a\nb.gguf", "invisible"),
            ("hf:owner/repo/a\u{202e}fugg.gguf", "invisible"),
            ("https://h/", "is empty"),
            ("https://h/a/%2e%2e%2fm.gguf", "leads out"),
            ("https://h/..%2f..%2fetc", "leads out"),
            ("https://h/a%00.gguf", "invisible"),
            ("https://h/%ff.gguf", "not UTF-8"),
            ("https://me:secret@h/m.gguf", "leave them out"),
        ] {
            let error = Source::parse(source, None).unwrap_err();
            assert!(error.contains(why), "{source}: {error}");
            assert!(!error.contains("secret"));
        }
        assert!(Source::parse("https://h/m.gguf", Some("main")).is_err());
        for bad in ["..", "a/../b", "", "a//b", "a\tb"] {
            assert!(Source::parse("hf:o/r/m.gguf", Some(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_identity_tells_queries_apart_and_shows_none() {
        let of = |text: &str| Source::parse(text, None).unwrap();
        let (one, two) = (of("https://h/m.gguf?sig=one"), of("https://h/m.gguf?sig=two"));
        assert_ne!(one.identity(), two.identity());
        assert!(!one.identity().contains("sig="));
        assert_eq!(one.shown(), "https://h/m.gguf");
        assert_eq!(of("hf:o/r/a/m.gguf").identity(), "hf:o/r/a/m.gguf at main");
    }

    #[test]
    fn a_neighbour_has_the_same_place_and_query() {
        let source = Source::parse("https://h/a/one.gguf?download=true", None).unwrap();
        let Source::Web(url) = source.beside("two.gguf") else { panic!() };
        assert_eq!(url.as_str(), "https://h/a/two.gguf?download=true");
        let hub = Source::parse("hf:o/r/a/one.gguf", None).unwrap();
        assert_eq!(
            hub.beside("two.gguf").at_revision("c0ffee").identity(),
            "hf:o/r/a/two.gguf at c0ffee"
        );
    }

    proptest! {
        #[test]
        fn no_source_leads_out_of_its_folder(text in "(hf:|https://h/)(\\PC|[./%]|%2[ef]){0,40}") {
            if let Ok(source) = Source::parse(&text, None) {
                let name = source.file_name().unwrap();
                prop_assert!(!name.contains(['/', '\\', '\0']) && name != ".." && !name.is_empty());
                let hub = Url::parse("https://hub.example/mirror/").unwrap();
                let url = source.url(&hub);
                if source.repo().is_some() {
                    prop_assert!(url.path().starts_with("/mirror/"));
                    prop_assert_eq!(url.host_str(), Some("hub.example"));
                }
            }
        }
    }
}
