//! A fingerprint of a model file, quick even for files of many gigabytes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use sha2::{Digest, Sha256};

/// Samples of the file, evenly spread.
const SAMPLES: u64 = 64;
/// Bytes of each sample.
const SAMPLE_BYTES: u64 = 64 * 1024;
/// The header, where two files of one size differ most likely, is read in full up to this.
const HEAD_BYTES: u64 = 4 * 1024 * 1024;

/// SHA-256 over the size, the head and samples spread over the rest, as hex. Files of up to
/// 4 MiB are read whole. Enough to tell whether two nodes serve one file; no proof against
/// somebody who means to deceive, for which the whole file would have to be read.
pub fn fingerprint(file: &mut File) -> io::Result<String> {
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
    Ok(hash.finalize().iter().map(|b| format!("{b:02x}")).collect())
}

fn hash_part(file: &mut File, hash: &mut Sha256, at: u64, bytes: u64) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    let mut part = Vec::with_capacity(bytes as usize);
    file.take(bytes).read_to_end(&mut part)?;
    hash.update(&part);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn fingerprint_of(content: &[u8]) -> String {
        let mut file =
            File::from(rustix::fs::memfd_create("t", rustix::fs::MemfdFlags::empty()).unwrap());
        file.write_all(content).unwrap();
        fingerprint(&mut file).unwrap()
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
}
