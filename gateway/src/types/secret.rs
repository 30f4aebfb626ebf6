//! Secrets: never printed, compared in constant time, stored as digests.

use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// Bytes of a digest that a hash table looks up. They are not secret, and far too few to derive a
/// key from; the rest is compared in constant time.
const PREFIX_BYTES: usize = 8;

/// SHA-256 of a key. Keys have 256 random bits, so a fast hash is enough: there is nothing to guess
/// that a slow hash would protect.
///
/// Digests are always compared in constant time, even in a hash table, which first looks up the
/// prefix.
#[derive(Clone)]
pub struct KeyDigest([u8; 32]);

impl PartialEq for KeyDigest {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for KeyDigest {}

impl Hash for KeyDigest {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0[..PREFIX_BYTES].hash(state);
    }
}

impl std::fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyDigest(***)")
    }
}

impl KeyDigest {
    /// Hashes a key.
    pub fn of(key: impl AsRef<[u8]>) -> Self {
        Self(Sha256::digest(key.as_ref()).into())
    }

    /// Parses 64 hex digits.
    pub(crate) fn from_hex(hex: &str) -> Option<Self> {
        if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut digest = [0; 32];
        for (i, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
        }
        Some(Self(digest))
    }

    /// Formats as 64 hex digits.
    pub fn to_hex(&self) -> String {
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.map(|digit| char::from_digit(digit.into(), 16).unwrap_or('0')).collect()
    }

    /// Compares with `key` in constant time.
    pub fn matches(&self, key: &[u8]) -> bool {
        *self == Self::of(key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

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

    #[test]
    fn digests_that_begin_alike_are_told_apart() {
        let hex = |rest: char| "ab".repeat(PREFIX_BYTES) + &rest.to_string().repeat(48);
        let digest = |rest| KeyDigest::from_hex(&hex(rest)).unwrap();
        let table = HashMap::from([(digest('0'), "ada"), (digest('1'), "bob")]);
        let found = ['0', '1', '2'].map(|rest| table.get(&digest(rest)).copied());
        assert_eq!(found, [Some("ada"), Some("bob"), None]);
    }
}
