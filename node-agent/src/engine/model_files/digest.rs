//! Fingerprint of a model file, fast even for files of many gigabytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use inference_core::types::request::SamplingDefaults;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Number of samples, evenly spread over the file.
const SAMPLES: u64 = 64;
/// Size of each sample in bytes.
const SAMPLE_BYTES: u64 = 64 * 1024;
/// Read in full up to this size, because two files of one size most likely differ in the header.
const HEAD_BYTES: u64 = 4 * 1024 * 1024;

/// Identifies the weights of a model file: equal fingerprints generate equal tokens.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// SHA-256 over the size, the head, and samples spread over the rest. Files of up to 4 MiB are
    /// read whole. This tells whether two nodes serve the same file; it does not protect against
    /// deliberate collisions, which would require reading the whole file.
    fn of_file(file: &File) -> io::Result<Self> {
        let bytes = file.metadata()?.len();
        let mut hash = Sha256::new();
        hash.update(bytes.to_le_bytes());
        hash_part(file, &mut hash, 0, HEAD_BYTES.min(bytes))?;
        if bytes > HEAD_BYTES {
            let rest = bytes - HEAD_BYTES;
            for i in 0..SAMPLES {
                let at = HEAD_BYTES + rest / SAMPLES * i;
                hash_part(file, &mut hash, at, SAMPLE_BYTES.min(bytes - at))?;
            }
            let tail = bytes - SAMPLE_BYTES.min(rest);
            hash_part(file, &mut hash, tail, bytes - tail)?;
        }
        Ok(Self(hash.finalize().into()))
    }

    /// Fingerprint of a model in one or several files: that of the only file, or a SHA-256 over all
    /// of theirs.
    pub(crate) fn of(files: &[File]) -> io::Result<Self> {
        if let [file] = files {
            return Self::of_file(file);
        }
        let mut hash = Sha256::new();
        for file in files {
            hash.update(Self::of_file(file)?.0);
        }
        Ok(Self(hash.finalize().into()))
    }
}

impl Fingerprint {
    /// Adds the sampling parameters that the file recommends: a response that continues on another
    /// node is sampled there by the same ones. They may be where the fingerprint takes no sample.
    pub(crate) fn with_sampling(self, sampling: &SamplingDefaults) -> Self {
        if *sampling == SamplingDefaults::default() {
            return self;
        }
        let mut hash = Sha256::new();
        hash.update(self.0);
        for (name, value) in sampling.set() {
            hash.update(name);
            hash.update(value.to_le_bytes());
        }
        Self(hash.finalize().into())
    }
}

impl Fingerprint {
    /// Adds a chat template that replaces the file's: nodes with different templates make different
    /// prompts of a chat.
    pub(crate) fn with_template(self, template: Option<&str>) -> Self {
        let Some(template) = template else { return self };
        let mut hash = Sha256::new();
        hash.update(self.0);
        hash.update("chat template");
        hash.update(template);
        Self(hash.finalize().into())
    }
}

/// Hashes a range; a file that is truncated meanwhile has fewer bytes.
fn hash_part(file: &File, hash: &mut Sha256, at: u64, bytes: u64) -> io::Result<()> {
    let mut part = vec![0; bytes as usize];
    let mut filled = 0;
    while filled < part.len() {
        match file.read_at(&mut part[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    hash.update(&part[..filled]);
    Ok(())
}

/// 64 hex digits.
impl std::fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl std::str::FromStr for Fingerprint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "expected 64 hex digits".to_string();
        let is_hex = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let digits = Some(text).filter(|_| is_hex).ok_or_else(wrong)?;
        let mut bytes = [0; 32];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(content: &[u8]) -> File {
        let mut file =
            File::from(rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::empty()).unwrap());
        file.write_all(content).unwrap();
        file
    }

    fn fingerprint_of(content: &[u8]) -> Fingerprint {
        Fingerprint::of(&[file(content)]).unwrap()
    }

    #[test]
    fn recommended_sampling_counts_and_none_changes_nothing() {
        let plain = Fingerprint::of(&[file(b"weights")]).unwrap();
        assert_eq!(plain.with_sampling(&SamplingDefaults::default()), plain);
        let warm = SamplingDefaults { temperature: Some(0.7), ..SamplingDefaults::default() };
        let hot = SamplingDefaults { temperature: Some(0.8), ..SamplingDefaults::default() };
        assert_ne!(plain.with_sampling(&warm), plain);
        assert_ne!(plain.with_sampling(&warm), plain.with_sampling(&hot));
        assert_eq!(plain.with_template(None), plain);
        assert_ne!(plain.with_template(Some("a")), plain.with_template(Some("b")));
    }

    #[test]
    fn equal_files_have_equal_fingerprints_and_others_do_not() {
        let mut large = vec![7; 6 * 1024 * 1024];
        let before = fingerprint_of(&large);
        assert_eq!(before, fingerprint_of(&large));
        *large.last_mut().unwrap() = 8;
        assert_ne!(before, fingerprint_of(&large));
        assert_ne!(fingerprint_of(b"a"), fingerprint_of(b"b"));
        assert_ne!(fingerprint_of(b""), fingerprint_of(b"\0"));
    }

    #[test]
    fn every_part_of_a_split_model_counts() {
        let of = |parts: &[&[u8]]| {
            Fingerprint::of(&parts.iter().map(|part| file(part)).collect::<Vec<_>>()).unwrap()
        };
        assert_eq!(of(&[b"a", b"b"]), of(&[b"a", b"b"]));
        assert_ne!(of(&[b"a", b"b"]), of(&[b"a", b"c"]));
        assert_ne!(of(&[b"a", b"b"]), of(&[b"b", b"a"]));
        assert_ne!(of(&[b"a", b"b"]), of(&[b"a"]));
    }

    #[test]
    fn a_fingerprint_survives_its_text() {
        let fingerprint = fingerprint_of(b"a");
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
        assert_eq!(fingerprint.to_string().len(), 64);
        for text in ["", "0", &"g".repeat(64), &"é".repeat(32)] {
            assert!(text.parse::<Fingerprint>().is_err(), "{text}");
        }
    }
}
