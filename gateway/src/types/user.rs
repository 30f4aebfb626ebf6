//! Pseudonyms of the users behind one API key.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::secret::KeyDigest;

/// Pseudonym of a user: the first 64 bits of the SHA-256 of the key's digest (in hex), a colon, and
/// the id that the client sent. Ids are personal data, so nothing else of them is kept. The digest
/// keeps people who have only the logs from trying ids, and every gateway with the key makes the
/// same pseudonym.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct UserId(u64);

impl UserId {
    /// The user with this id, behind this key.
    pub fn new(key: &KeyDigest, id: &[u8]) -> Self {
        let hash = Sha256::new().chain_update(key.to_hex()).chain_update(b":").chain_update(id);
        let hash: [u8; 32] = hash.finalize().into();
        Self(hash.iter().take(8).fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
}

impl Display for UserId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl From<UserId> for u64 {
    fn from(user: UserId) -> Self {
        user.0
    }
}

impl From<UserId> for String {
    fn from(user: UserId) -> Self {
        user.to_string()
    }
}

impl TryFrom<String> for UserId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u64::from_str_radix(&text, 16).map(Self).map_err(|_| "expected 16 hex digits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pseudonym_is_what_the_documented_command_prints() {
        // docs/users.md, with the key "key" and the user "ada@example.com".
        let user = UserId::new(&KeyDigest::of("key"), b"ada@example.com");
        assert_eq!(user.to_string(), "9156fe0f136f64aa");
        assert_ne!(user, UserId::new(&KeyDigest::of("other"), b"ada@example.com"));
        let written = serde_json::to_string(&user).unwrap();
        assert_eq!(serde_json::from_str::<UserId>(&written).unwrap(), user);
        assert!(serde_json::from_str::<UserId>("\"user\"").is_err());
    }
}
