//! PURE. What a part remembers of its file, and whether that suffices to resume the download.

use serde::{Deserialize, Serialize};

/// The file that a part belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartInfo {
    /// Source of the download: [`super::source::Source::identity`].
    pub source: String,
    /// Length of the whole file in bytes.
    pub length: Option<u64>,
    /// Validator for `If-Range`.
    pub validator: Option<String>,
    /// SHA-256 of the whole file.
    pub sha256: Option<String>,
    /// The kernel's boot id when the download started. After a machine crash, a part may have its
    /// old length but other contents.
    pub boot: String,
}

/// Why a part cannot be continued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotResumable {
    /// It is a part of what this other source offers.
    OtherSource(String),
    /// It is a part of a file with another digest.
    OtherDigest,
    /// Neither the server nor a digest can tell whether the rest matches it.
    Unverifiable,
    TooLong,
    /// The machine restarted since, and no digest can tell whether it is intact.
    Rebooted,
}

impl std::fmt::Display for NotResumable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OtherSource(source) => write!(f, "the partial file here belongs to {source}"),
            Self::OtherDigest => {
                write!(f, "the partial file here belongs to a file with another sha256")
            }
            Self::Unverifiable => write!(f, "the server does not support resuming"),
            Self::TooLong => write!(f, "the partial file here is longer than the file"),
            Self::Rebooted => {
                write!(
                    f,
                    "the machine restarted since, and there is no sha256 to verify the partial file"
                )
            }
        }
    }
}

impl PartInfo {
    /// True if something can tell whether the rest matches this part: the server by its validator,
    /// or the digest at the end.
    pub(crate) fn is_resumable(&self) -> bool {
        self.length.is_some() && (self.validator.is_some() || self.sha256.is_some())
    }

    /// Up to which byte a part of `bytes` bytes can be used for a pull of `source` with this digest
    /// in this boot, or why not at all. The last byte of a complete file is fetched again, so that
    /// the server confirms that it is unchanged.
    pub(crate) fn resume_point(
        &self,
        bytes: u64,
        source: &str,
        sha256: Option<&str>,
        boot: &str,
    ) -> Result<u64, NotResumable> {
        let known = sha256.or(self.sha256.as_deref());
        let length = self.length.unwrap_or(0);
        if self.source != source {
            Err(NotResumable::OtherSource(self.source.clone()))
        } else if self.sha256.is_some() && known != self.sha256.as_deref() {
            Err(NotResumable::OtherDigest)
        } else if self.length.is_none() || (known.is_none() && self.validator.is_none()) {
            Err(NotResumable::Unverifiable)
        } else if bytes > length {
            Err(NotResumable::TooLong)
        } else if known.is_none() && self.boot != boot {
            Err(NotResumable::Rebooted)
        } else {
            Ok(bytes.min(length.saturating_sub(1)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> PartInfo {
        PartInfo {
            source: "s".into(),
            length: Some(100),
            validator: Some("\"1\"".into()),
            sha256: None,
            boot: "b".into(),
        }
    }

    #[test]
    fn a_part_is_good_up_to_its_end_and_a_whole_file_but_for_its_last_byte() {
        assert_eq!(info().resume_point(40, "s", None, "b"), Ok(40));
        assert_eq!(info().resume_point(100, "s", None, "b"), Ok(99));
        assert!(info().resume_point(101, "s", None, "b").is_err());
        let other = info().resume_point(40, "other", None, "b");
        assert_eq!(other, Err(NotResumable::OtherSource("s".into())));
    }

    #[test]
    fn without_a_digest_nothing_is_believed_after_a_crash_or_without_a_validator() {
        assert!(info().resume_point(40, "s", None, "later").is_err());
        assert_eq!(info().resume_point(40, "s", Some("d"), "later"), Ok(40));
        let bare = PartInfo { validator: None, ..info() };
        assert!(bare.resume_point(40, "s", None, "b").is_err() && !bare.is_resumable());
        assert_eq!(bare.resume_point(40, "s", Some("d"), "b"), Ok(40));
        let known = PartInfo { sha256: Some("d".into()), ..bare };
        assert!(known.is_resumable());
        assert_eq!(known.resume_point(40, "s", None, "later"), Ok(40));
        assert!(known.resume_point(40, "s", Some("e"), "b").is_err());
        let endless = PartInfo { length: None, ..known };
        assert!(endless.resume_point(40, "s", None, "b").is_err() && !endless.is_resumable());
    }
}
