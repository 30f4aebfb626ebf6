//! PURE. The file of a saved prefix: a header that says whose it is and of what, and the state.
//!
//! llama.cpp trusts the bytes of a state, so every byte of a file is covered by a checksum, and
//! nothing of a file is used that does not match. The checksums find damage, not forgery: whoever
//! can write to the folder can make files that match.

use sha2::{Digest, Sha256};

use crate::types::request::{Tenant, Token};

const MAGIC: [u8; 8] = *b"FLPREFIX";
const VERSION: u32 = 1;
/// Bytes of a header before its tokens.
pub(super) const FIXED_BYTES: usize = 128;
/// Longest prefix: more than any context.
const TOKENS_MAX: u32 = 1 << 24;

/// Identifies everything that determines the bytes of a state: the weights, the program, and how it
/// computes.
pub type Key = [u8; 32];

/// What a file says about its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Model and settings that the state is for.
    pub key: Key,
    /// Whose prompts may begin with it.
    pub tenant: Tenant,
    /// The tokens of the state.
    pub tokens: Vec<Token>,
    /// Size of the state, which follows the header.
    pub state_bytes: u64,
    /// SHA-256 of the state.
    pub(super) state_digest: [u8; 32],
}

/// Encodes the header of a state.
pub(super) fn encode(key: &Key, tenant: Tenant, tokens: &[Token], state: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FIXED_BYTES + size_of_val(tokens));
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((tokens.len() as u32).to_le_bytes());
    bytes.extend((state.len() as u64).to_le_bytes());
    bytes.extend(tenant.0.to_le_bytes());
    bytes.extend(key);
    bytes.extend(digest(&[state]));
    let tokens: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    bytes.extend(digest(&[&bytes, &tokens]));
    bytes.extend(tokens);
    bytes
}

/// Length of a header by its first bytes; `None` if they are no header of this version.
pub(super) fn header_bytes(fixed: &[u8; FIXED_BYTES]) -> Option<usize> {
    let mut rest = &fixed[..];
    let tokens = read_start(&mut rest)?;
    Some(FIXED_BYTES + 4 * tokens as usize)
}

/// Parses a whole header, whose checksum must match.
pub fn parse(header: &[u8]) -> Option<Header> {
    let (fixed, encoded) = header.split_at_checked(FIXED_BYTES)?;
    let mut rest = fixed;
    let count = read_start(&mut rest)?;
    let state_bytes = u64::from_le_bytes(take(&mut rest)?);
    let tenant = Tenant(u64::from_le_bytes(take(&mut rest)?));
    let (key, state_digest) = (take(&mut rest)?, take(&mut rest)?);
    let covered = fixed.len() - rest.len();
    let expected: [u8; 32] = take(&mut rest)?;
    let (tokens, _) = encoded.as_chunks::<4>();
    let is_whole = encoded.len() == 4 * count as usize && !tokens.is_empty();
    if !is_whole || digest(&[fixed.get(..covered)?, encoded]) != expected {
        return None;
    }
    let tokens = tokens.iter().map(|token| Token::from_le_bytes(*token)).collect();
    Some(Header { key, tenant, tokens, state_bytes, state_digest })
}

/// Reads the magic number, the version, and the number of tokens.
fn read_start(rest: &mut &[u8]) -> Option<u32> {
    let magic: [u8; 8] = take(rest)?;
    let version = u32::from_le_bytes(take(rest)?);
    let tokens = u32::from_le_bytes(take(rest)?);
    (magic == MAGIC && version == VERSION && tokens <= TOKENS_MAX).then_some(tokens)
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(*first)
}

impl Header {
    /// True if this is the state that the header was written for.
    pub(super) fn matches(&self, state: &[u8]) -> bool {
        state.len() as u64 == self.state_bytes && self.has_digest(digest(&[state]))
    }

    /// True if this is the digest of its state.
    pub(super) fn has_digest(&self, digest: [u8; 32]) -> bool {
        digest == self.state_digest
    }

    /// Size of the file: header and state.
    pub fn file_bytes(&self) -> u64 {
        self.state_bytes + (FIXED_BYTES + size_of_val(&self.tokens[..])) as u64
    }
}

fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = [7; 32];

    fn header(state: &[u8]) -> Vec<u8> {
        encode(&KEY, Tenant(9), &[1, 2, 70_000], state)
    }

    #[test]
    fn a_header_says_what_was_written() {
        let bytes = header(b"state");
        let fixed = bytes.first_chunk().unwrap();
        assert_eq!(header_bytes(fixed), Some(bytes.len()));
        let header = parse(&bytes).unwrap();
        assert_eq!((header.key, header.tenant, header.state_bytes), (KEY, Tenant(9), 5));
        assert_eq!(header.tokens, [1, 2, 70_000]);
        assert!(header.matches(b"state"));
        assert!(!header.matches(b"State") && !header.matches(b"stat") && !header.matches(b""));
    }

    #[test]
    fn a_header_with_any_other_byte_or_length_is_refused() {
        let bytes = header(b"state");
        for index in 0..bytes.len() {
            for bit in [1, 128] {
                let mut damaged = bytes.clone();
                damaged[index] ^= bit;
                assert_eq!(parse(&damaged), None, "byte {index}");
            }
            assert_eq!(parse(&bytes[..index]), None, "{index} bytes");
        }
        assert_eq!(parse(&[&bytes[..], &[0; 4]].concat()), None);
        assert_eq!(parse(&encode(&KEY, Tenant(9), &[], b"state")), None, "no tokens");
    }

    #[test]
    fn a_header_of_another_version_or_with_too_many_tokens_is_not_read() {
        let bytes = header(b"state");
        let with = |at: usize, value: u32| {
            let mut fixed: [u8; FIXED_BYTES] = *bytes.first_chunk().unwrap();
            fixed[at..at + 4].copy_from_slice(&value.to_le_bytes());
            header_bytes(&fixed)
        };
        assert_eq!(with(8, VERSION + 1), None);
        assert_eq!(with(12, TOKENS_MAX + 1), None);
        assert_eq!(with(12, 1), Some(FIXED_BYTES + 4));
    }
}
