//! Encrypted contents: a header as that of a value, and chunks that are encrypted one by one, so
//! that a content is written as it arrives and read from any place.
//!
//! The nonce of a chunk is its number, and whether it is the last one. So no chunk can be left out,
//! moved or repeated, and no content can be cut off or made longer, unless that is noticed. This is
//! the construction STREAM of Hoang, Reyhanitabar, Rogaway and Vizár.

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce};

use crate::store::StoreError;
use crate::store::keyring::{Binding, HEADER_BYTES, Keyring, TAG_BYTES};

/// Bytes in a chunk, but for the last one.
pub(super) const CHUNK_BYTES: usize = 64 * 1024;
const SEALED_BYTES: usize = CHUNK_BYTES + TAG_BYTES;

/// Encrypts a content as it is written.
#[derive(Debug)]
pub(super) struct Sealing {
    key: LessSafeKey,
    /// The chunk that is being filled. A full one waits here until it is known not to be the last.
    chunk: Vec<u8>,
    number: u64,
    is_ended: bool,
}

impl Sealing {
    /// Begins a content. The header comes first in its file. `None` if it is not to be encrypted.
    pub(super) fn begin(
        keyring: &Keyring,
        binding: &Binding,
    ) -> Result<Option<(Vec<u8>, Self)>, StoreError> {
        let begun = keyring.begin(binding)?;
        let chunk = || Vec::with_capacity(SEALED_BYTES);
        let sealing = |key| Self { key, chunk: chunk(), number: 0, is_ended: false };
        Ok(begun.map(|(header, key)| (header, sealing(key))))
    }

    /// Adds to the content, and returns what can be written.
    pub(super) fn add(&mut self, mut data: &[u8]) -> Result<Vec<u8>, StoreError> {
        if self.is_ended {
            return Err(StoreError::Unavailable);
        }
        let mut sealed = Vec::new();
        while !data.is_empty() {
            if self.chunk.len() == CHUNK_BYTES {
                self.seal(false, &mut sealed)?;
            }
            let (now, later) = data.split_at(data.len().min(CHUNK_BYTES - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            data = later;
        }
        Ok(sealed)
    }

    /// Ends the content, and returns what is left to be written. Ending twice is the same as once.
    pub(super) fn end(&mut self) -> Result<Vec<u8>, StoreError> {
        let mut sealed = Vec::new();
        if !self.is_ended {
            self.seal(true, &mut sealed)?;
            self.is_ended = true;
        }
        Ok(sealed)
    }

    fn seal(&mut self, is_last: bool, sealed: &mut Vec<u8>) -> Result<(), StoreError> {
        let nonce = nonce(self.number, is_last);
        let done = self.key.seal_in_place_append_tag(nonce, Aad::empty(), &mut self.chunk);
        done.map_err(|_| StoreError::Unavailable)?;
        sealed.append(&mut self.chunk);
        self.number += 1;
        Ok(())
    }
}

/// Decrypts chunks of a content.
#[derive(Debug)]
pub(super) struct Chunks {
    key: LessSafeKey,
    /// Bytes of all chunks, as they are stored.
    bytes: u64,
}

/// A chunk in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Where it begins.
    pub(super) offset: u64,
    /// Its bytes.
    pub(super) bytes: usize,
    number: u64,
    is_last: bool,
}

impl Chunks {
    /// Those of a file that begins so and has so many bytes; `None` if it is not encrypted.
    pub(super) fn find(
        keyring: &Keyring,
        binding: &Binding,
        begin: &[u8],
        bytes: u64,
    ) -> Result<Option<Self>, StoreError> {
        let key = keyring.find(binding, begin)?;
        let bytes = bytes.saturating_sub(HEADER_BYTES as u64);
        Ok(key.map(|key| Self { key, bytes }))
    }

    /// The chunk with the byte at this place of the content, and where in it that byte is.
    pub(super) fn at(&self, place: u64) -> (Chunk, usize) {
        let last = self.bytes.saturating_sub(1) / SEALED_BYTES as u64;
        // After the end, the last one shows whether the end is the right one.
        let number = (place / CHUNK_BYTES as u64).min(last);
        let before = number * SEALED_BYTES as u64;
        let bytes = (self.bytes - before).min(SEALED_BYTES as u64) as usize;
        let chunk =
            Chunk { offset: HEADER_BYTES as u64 + before, bytes, number, is_last: number == last };
        let within = place - number * CHUNK_BYTES as u64;
        (chunk, usize::try_from(within).unwrap_or(usize::MAX))
    }

    /// Decrypts a chunk. `None` if it was altered.
    pub(super) fn open<'a>(&self, chunk: Chunk, data: &'a mut [u8]) -> Option<&'a [u8]> {
        let nonce = nonce(chunk.number, chunk.is_last);
        self.key.open_in_place(nonce, Aad::empty(), data).ok().map(|opened| &*opened)
    }
}

fn nonce(number: u64, is_last: bool) -> Nonce {
    let mut bytes = [0; 12];
    bytes[3..11].copy_from_slice(&number.to_be_bytes());
    bytes[11] = is_last.into();
    Nonce::assume_unique_for_key(bytes)
}
