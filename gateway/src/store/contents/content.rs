//! The content of a file, read from its beginning or from any place, whether it is encrypted or
//! not.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileExt;

use tokio::task::spawn_blocking;

use super::chunks::Chunks;
use crate::store::keyring::{Binding, HEADER_BYTES, Keyring};
use crate::store::{StoreError, failed};

/// A content, open for reading, which blocks. Its file may be deleted meanwhile.
#[derive(Debug)]
pub struct Content {
    file: File,
    /// `None` if it is not encrypted.
    chunks: Option<Chunks>,
    /// Where [`Read`] reads on.
    place: u64,
}

impl Content {
    /// Reads how a file is encrypted.
    pub(super) async fn open(
        file: File,
        keyring: Keyring,
        binding: Binding,
    ) -> Result<Self, StoreError> {
        let read = spawn_blocking(move || {
            let mut begin = Vec::with_capacity(HEADER_BYTES);
            let bytes = file.metadata().map_err(failed)?.len();
            let mut reader = &file;
            reader.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut begin).map_err(failed)?;
            let chunks = Chunks::find(&keyring, &binding, &begin, bytes)?;
            let content = Self { file, chunks, place: 0 };
            if content.chunks.is_some() {
                // The last chunk shows whether all of it is there, and belongs here.
                content.read_at(&mut [], u64::MAX).map_err(|error| match error.kind() {
                    ErrorKind::InvalidData => keyring.altered(&binding),
                    _ => failed(error),
                })?;
            }
            Ok(content)
        });
        read.await.map_err(|_| StoreError::Unavailable)?
    }

    /// Reads some of what is at a place; nothing after its end.
    ///
    /// # Errors
    /// The disk fails, or the content was altered.
    pub(crate) fn read_at(&self, buffer: &mut [u8], place: u64) -> io::Result<usize> {
        let Some(chunks) = &self.chunks else { return self.file.read_at(buffer, place) };
        let (chunk, within) = chunks.at(place);
        let mut data = vec![0; chunk.bytes];
        self.file.read_exact_at(&mut data, chunk.offset)?;
        let opened = chunks.open(chunk, &mut data).ok_or_else(altered)?;
        let rest = opened.get(within..).unwrap_or_default();
        let read = rest.len().min(buffer.len());
        buffer[..read].copy_from_slice(&rest[..read]);
        Ok(read)
    }

    /// Fills a buffer with what is at a place.
    ///
    /// # Errors
    /// There is not so much, the disk fails, or the content was altered.
    pub(crate) fn read_exact_at(&self, mut buffer: &mut [u8], mut place: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            match self.read_at(buffer, place) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    buffer = &mut buffer[read..];
                    place += read as u64;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// A file that is not encrypted.
impl From<File> for Content {
    fn from(file: File) -> Self {
        Self { file, chunks: None, place: 0 }
    }
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(buffer, self.place)?;
        self.place += read as u64;
        Ok(read)
    }
}

fn altered() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "the encrypted content was altered")
}
