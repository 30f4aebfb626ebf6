//! Secrets: never printed, compared in constant time, held as digests.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// The SHA-256 of a key. The keys are 256 random bits, so a plain hash does: there is
/// nothing to guess that a slow hash would protect.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyDigest([u8; 32]);

impl std::fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyDigest(***)")
    }
}

impl KeyDigest {
    /// The digest of a key.
    pub fn of(key: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(key.as_ref()).into())
    }

    /// Reads 64 hex digits.
    pub fn from_hex(hex: &str) -> Option<Self> {
        if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut digest = [0; 32];
        for (i, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self(digest))
    }

    /// As 64 hex digits.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Whether `key` is the key, in constant time.
    pub fn matches(&self, key: &[u8]) -> bool {
        self.is(&Self::of(key))
    }

    /// Whether both are of the same key, in constant time.
    pub fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_matches_its_digest_only_and_is_never_printed() {
        let digest = KeyDigest::of("abc");
        assert!(digest.matches(b"abc"));
        assert!(!digest.matches(b"abd"));
        assert!(!digest.matches(b""));
        assert_eq!(format!("{digest:?}"), "KeyDigest(***)");
        assert_eq!(KeyDigest::from_hex(&digest.to_hex()), Some(digest));
        assert_eq!(KeyDigest::from_hex("xyz"), None);
    }
}
