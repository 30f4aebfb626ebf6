//! PURE. How people name a model: a file of a repository, a quantization in a repository, or a URL.

use super::source::{REVISION_DEFAULT, SOURCE_BYTES_MAX, Source, check_repo};

/// Endings of a repository's name that only tell the file format.
const FORMAT_ENDINGS: [&str; 3] = ["-gguf", "_gguf", ".gguf"];
/// Maximum length of a quantization's name in bytes.
const QUANTIZATION_BYTES_MAX: usize = 64;

/// A checked name of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reference {
    /// `hf:owner/repo/folder/file`, or a URL.
    File(Source),
    /// `hf:owner/repo[:quantization]`
    Repository {
        /// `owner/repo`
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// Quantization in upper case; `None` leaves the choice to us.
        quantization: Option<String>,
    },
}

/// True if `text` names a model elsewhere, and not a file of this machine.
pub(crate) fn is_remote(text: &str) -> bool {
    ["hf:", "http://", "https://"].iter().any(|scheme| text.starts_with(scheme))
}

impl Reference {
    /// Parses SOURCE and `--revision`; the error is one line for the operator.
    pub(crate) fn parse(source: &str, revision: Option<&str>) -> Result<Self, String> {
        match source.strip_prefix("hf:") {
            Some(path) if path.matches('/').count() == 1 && path.len() <= SOURCE_BYTES_MAX => {
                parse_repository(path, revision.unwrap_or(REVISION_DEFAULT))
            }
            _ => Source::parse(source, revision).map(Self::File),
        }
    }

    /// Identifies the model in the cache.
    pub(crate) fn identity(&self) -> String {
        match self {
            Self::File(source) => source.identity(),
            Self::Repository { repo, revision, quantization } => {
                let quantization = quantization.as_deref().unwrap_or("default");
                format!("hf:{repo}:{quantization} at {revision}")
            }
        }
    }

    /// For messages, without a URL's query.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::File(source) => source.shown(),
            Self::Repository { .. } => self.identity(),
        }
    }

    /// Default name of the model for clients: the repository's without its owner and `-GGUF`, or
    /// the file's without `.gguf` and the number of a split file.
    pub(crate) fn model_name(&self) -> String {
        let repo = match self {
            Self::Repository { repo, .. } => Some(repo.as_str()),
            Self::File(source) => source.repo(),
        };
        match (repo, self) {
            (Some(repo), _) => without_format(repo.rsplit('/').next().unwrap_or(repo)).into(),
            (None, Self::File(source)) => {
                let name = source.file_name().unwrap_or_default();
                let split = crate::engine::model_files::split::parse(&name);
                let stem = split.map(|(stem, ..)| stem.to_string());
                stem.unwrap_or_else(|| without_format(&name).into())
            }
            (None, Self::Repository { .. }) => String::new(),
        }
    }
}

fn without_format(name: &str) -> &str {
    let end = name.len().saturating_sub(FORMAT_ENDINGS[0].len());
    match name.split_at_checked(end) {
        Some((rest, ending))
            if !rest.is_empty()
                && FORMAT_ENDINGS.iter().any(|e| ending.eq_ignore_ascii_case(e)) =>
        {
            rest
        }
        _ => name,
    }
}

fn parse_repository(path: &str, revision: &str) -> Result<Reference, String> {
    let (repo, quantization) = match path.split_once(':') {
        Some((repo, quantization)) => (repo, Some(quantization)),
        None => (path, None),
    };
    check_repo(repo, revision)?;
    let is_name = |name: &&str| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        (1..=QUANTIZATION_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain)
    };
    if quantization.as_ref().is_some_and(|name| !is_name(name)) {
        return Err(format!(
            "'{}' is not the name of a quantization: use hf:owner/repo:Q4_K_M, for example",
            quantization.unwrap_or_default().escape_debug()
        ));
    }
    Ok(Reference::Repository {
        repo: repo.into(),
        revision: revision.into(),
        quantization: quantization.map(str::to_ascii_uppercase),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Reference {
        Reference::parse(text, None).unwrap()
    }

    #[test]
    fn a_quantization_of_a_repository_is_named_after_a_colon() {
        let reference = parse("hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:q4_k_m");
        assert_eq!(reference.identity(), "hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M at main");
        assert_eq!(parse("hf:o/r").identity(), "hf:o/r:default at main");
        let pinned = Reference::parse("hf:o/r:Q8_0", Some("v1")).unwrap();
        assert_eq!(pinned.identity(), "hf:o/r:Q8_0 at v1");
        assert!(matches!(parse("hf:o/r/m.gguf"), Reference::File(_)));
        assert!(matches!(parse("https://h/m.gguf"), Reference::File(_)));
    }

    #[test]
    fn the_model_is_named_like_its_repository_or_file() {
        for (reference, name) in [
            ("hf:Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M", "Qwen2.5-1.5B-Instruct"),
            ("hf:o/model_gguf", "model"),
            ("hf:o/gguf", "gguf"),
            ("hf:o/-GGUF", "-GGUF"),
            ("hf:o/Some-GGUF/q4/other.gguf", "Some"),
            ("https://h/a/m-Q8_0.gguf?x=1", "m-Q8_0"),
            ("https://h/m-00001-of-00003.gguf", "m"),
        ] {
            assert_eq!(parse(reference).model_name(), name, "{reference}");
        }
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        for (text, why) in [
            ("hf:owner", "has no file name"),
            ("hf:owner/", "is empty"),
            ("hf:/repo", "is empty"),
            ("hf:../repo", "leads out"),
            ("hf:owner/..", "leads out"),
            ("hf:own er/repo", "not a valid owner"),
            ("hf:owner/repo:", "not the name of a quantization"),
            ("hf:owner/repo:Q4 K", "not the name of a quantization"),
            ("hf:owner/repo:Q4:Q5", "not the name of a quantization"),
            ("model.gguf", "hf:owner/repo[:quantization]"),
        ] {
            let error = Reference::parse(text, None).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(Reference::parse("hf:o/r", Some("..")).is_err());
        assert!(is_remote("hf:o/r") && is_remote("https://h") && !is_remote("m.gguf"));
    }
}
