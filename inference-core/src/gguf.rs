//! PURE. Reads a GGUF header before llama.cpp does, which aborts on what it does not like.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3,
//! little endian. Every count and length is checked against the file before it is used.

use std::io::{self, Read};

pub mod write;

/// Largest header that is read, in bytes. Vocabularies of 250,000 tokens need about 10 MB.
const HEADER_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Longest string in a header, in bytes. Chat templates have some 10 kB.
const STRING_BYTES_MAX: u64 = 4 * 1024 * 1024;
const METADATA_MAX: u64 = 65_536;
const TENSORS_MAX: u64 = 65_536;
const DIMENSIONS_MAX: u32 = 4;

/// What we want to know of a model file before it is loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// `general.architecture`, such as `llama`.
    pub architecture: String,
    /// `general.name`, where there is one.
    pub name: Option<String>,
    /// The context that the model was trained for, in tokens; 0 if it does not say.
    pub context_tokens: u32,
    /// Tensors in the file.
    pub tensors: u64,
}

/// Why a file is not a model.
#[derive(Debug)]
pub enum HeaderError {
    /// It could not be read.
    Io(io::Error),
    /// It is something else.
    NotGguf,
    /// It ends before its header does, or before its last tensor does.
    Truncated {
        /// Bytes that the file has.
        has: u64,
        /// Bytes that it needs at least.
        needs: u64,
    },
    /// Its header contradicts itself or the format.
    Invalid(String),
}

impl std::fmt::Display for HeaderError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(e) => write!(f, "cannot be read: {e}"),
            Self::NotGguf => write!(f, "is not a GGUF model file"),
            Self::Truncated { has, needs } => {
                write!(f, "is truncated: it has {has} bytes and needs at least {needs}")
            }
            Self::Invalid(why) => write!(f, "is not a valid GGUF file: {why}"),
        }
    }
}

impl std::error::Error for HeaderError {}

/// Reads and checks the header of a file of `file_bytes` bytes.
pub fn read_header(source: impl Read, file_bytes: u64) -> Result<Header, HeaderError> {
    let mut reader = Reader { source, position: 0, file_bytes };
    if &reader.bytes::<4>()? != b"GGUF" {
        return Err(HeaderError::NotGguf);
    }
    let version = reader.u32()?;
    if !(2..=3).contains(&version) {
        return Err(invalid(format!("version {version} is not supported")));
    }
    let tensors = reader.count("tensors", TENSORS_MAX)?;
    let entries = reader.count("metadata entries", METADATA_MAX)?;
    let mut header = Header { tensors, ..Header::default() };
    let mut alignment = 32;
    for _ in 0..entries {
        let key = reader.string()?;
        let value = reader.value()?;
        match (key.as_str(), value) {
            ("general.architecture", Value::Text(text)) => header.architecture = text,
            ("general.name", Value::Text(text)) => header.name = Some(text),
            ("general.alignment", Value::Number(n)) => alignment = n,
            (key, Value::Number(n)) if key.ends_with(".context_length") => {
                header.context_tokens = u32::try_from(n).unwrap_or(u32::MAX);
            }
            _ => {}
        }
    }
    if header.architecture.is_empty() {
        return Err(invalid("general.architecture is missing".into()));
    }
    if tensors == 0 {
        return Err(invalid("it holds no tensors".into()));
    }
    check_tensors(&mut reader, tensors, alignment)?;
    Ok(header)
}

/// The tensors' data must lie inside the file. Their sizes depend on the type, so only
/// the offsets are checked here; the last tensor must have at least one byte.
fn check_tensors(
    reader: &mut Reader<impl Read>,
    tensors: u64,
    alignment: u64,
) -> Result<(), HeaderError> {
    if !alignment.is_power_of_two() {
        return Err(invalid(format!("general.alignment {alignment} is not a power of two")));
    }
    let mut farthest = 0;
    let mut farthest_bytes = 0;
    for _ in 0..tensors {
        let name = reader.string()?;
        let dimensions = reader.u32()?;
        if dimensions == 0 || dimensions > DIMENSIONS_MAX {
            return Err(invalid(format!("tensor {name} has {dimensions} dimensions")));
        }
        let mut elements: u64 = 1;
        for _ in 0..dimensions {
            let size = reader.u64()?;
            elements = elements
                .checked_mul(size)
                .filter(|n| *n > 0)
                .ok_or_else(|| invalid(format!("tensor {name} has an impossible size")))?;
        }
        let kind = reader.u32()?;
        let offset = reader.u64()?;
        if offset >= farthest {
            (farthest, farthest_bytes) = (offset, tensor_bytes_min(kind, elements));
        }
    }
    let data = reader.position.next_multiple_of(alignment);
    let needs = data.saturating_add(farthest).saturating_add(farthest_bytes);
    if needs > reader.file_bytes {
        return Err(HeaderError::Truncated { has: reader.file_bytes, needs });
    }
    Ok(())
}

/// A lower bound for the bytes of a tensor: exact for the types that most files hold,
/// one bit per element for the others.
fn tensor_bytes_min(kind: u32, elements: u64) -> u64 {
    let (block_bytes, block_elements) = match kind {
        0 => (4, 1),      // F32
        1 | 30 => (2, 1), // F16, BF16
        2 => (18, 32),    // Q4_0
        3 => (20, 32),    // Q4_1
        6 => (22, 32),    // Q5_0
        7 => (24, 32),    // Q5_1
        8 => (34, 32),    // Q8_0
        10 => (84, 256),  // Q2_K
        11 => (110, 256), // Q3_K
        12 => (144, 256), // Q4_K
        13 => (176, 256), // Q5_K
        14 => (210, 256), // Q6_K
        _ => (1, 8),
    };
    (elements / block_elements).saturating_mul(block_bytes)
}

fn invalid(why: String) -> HeaderError {
    HeaderError::Invalid(why)
}

enum Value {
    Text(String),
    Number(u64),
    Other,
}

struct Reader<R> {
    source: R,
    position: u64,
    file_bytes: u64,
}

impl<R: Read> Reader<R> {
    fn need(&self, bytes: u64) -> Result<(), HeaderError> {
        let needs = self.position.saturating_add(bytes);
        if needs > self.file_bytes {
            return Err(HeaderError::Truncated { has: self.file_bytes, needs });
        }
        if needs > HEADER_BYTES_MAX {
            return Err(invalid("its header is too large".into()));
        }
        Ok(())
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], HeaderError> {
        self.need(N as u64)?;
        let mut out = [0; N];
        self.source.read_exact(&mut out).map_err(HeaderError::Io)?;
        self.position += N as u64;
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, HeaderError> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Result<u64, HeaderError> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn count(&mut self, what: &str, max: u64) -> Result<u64, HeaderError> {
        let n = self.u64()?;
        if n > max {
            return Err(invalid(format!("{n} {what}")));
        }
        Ok(n)
    }

    fn string(&mut self) -> Result<String, HeaderError> {
        let length = self.u64()?;
        if length > STRING_BYTES_MAX {
            return Err(invalid(format!("a string of {length} bytes")));
        }
        self.need(length)?;
        let mut out = vec![0; length as usize];
        self.source.read_exact(&mut out).map_err(HeaderError::Io)?;
        self.position += length;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), HeaderError> {
        self.need(bytes)?;
        io::copy(&mut self.source.by_ref().take(bytes), &mut io::sink())
            .map_err(HeaderError::Io)?;
        self.position += bytes;
        Ok(())
    }

    fn value(&mut self) -> Result<Value, HeaderError> {
        let kind = self.u32()?;
        match kind {
            8 => Ok(Value::Text(self.string()?)),
            9 => self.array(),
            4 => Ok(Value::Number(u64::from(self.u32()?))),
            10 => Ok(Value::Number(self.u64()?)),
            _ => {
                self.skip(scalar_bytes(kind)?)?;
                Ok(Value::Other)
            }
        }
    }

    fn array(&mut self) -> Result<Value, HeaderError> {
        let kind = self.u32()?;
        let length = self.u64()?;
        if kind == 8 {
            for _ in 0..length {
                let bytes = self.u64()?;
                self.skip(bytes)?;
            }
        } else {
            let bytes = length.checked_mul(scalar_bytes(kind)?);
            self.skip(bytes.ok_or_else(|| invalid("an impossible array".into()))?)?;
        }
        Ok(Value::Other)
    }
}

/// Bytes of a scalar metadata type. Arrays of arrays are allowed by the format, but no
/// model uses them.
fn scalar_bytes(kind: u32) -> Result<u64, HeaderError> {
    match kind {
        0 | 1 | 7 => Ok(1),
        2 | 3 => Ok(2),
        4..=6 => Ok(4),
        10..=12 => Ok(8),
        _ => Err(invalid(format!("metadata type {kind}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(s: &str) -> Vec<u8> {
        [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat()
    }

    /// One F32 tensor of 8 elements.
    fn file() -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend(1u64.to_le_bytes());
        out.extend(3u64.to_le_bytes());
        out.extend([text("general.architecture"), vec![8, 0, 0, 0], text("llama")].concat());
        out.extend([text("llama.context_length"), vec![4, 0, 0, 0], vec![0, 2, 0, 0]].concat());
        let strings = [vec![9, 0, 0, 0, 8, 0, 0, 0], 2u64.to_le_bytes().to_vec()].concat();
        out.extend([text("tokens"), strings, text("a"), text("b")].concat());
        out.extend([text("w"), vec![1, 0, 0, 0], 8u64.to_le_bytes().to_vec()].concat());
        out.extend([vec![0, 0, 0, 0], 0u64.to_le_bytes().to_vec()].concat());
        out.resize(out.len().next_multiple_of(32) + 32, 0);
        out
    }

    fn read(bytes: &[u8]) -> Result<Header, HeaderError> {
        read_header(bytes, bytes.len() as u64)
    }

    #[test]
    fn a_whole_file_tells_its_architecture_and_context() {
        let header = read(&file()).unwrap();
        assert_eq!((header.architecture.as_str(), header.context_tokens), ("llama", 512));
        assert_eq!(header.tensors, 1);
    }

    #[test]
    fn every_truncation_is_noticed() {
        let whole = file();
        for length in 4..whole.len() {
            let error = read(&whole[..length]).unwrap_err();
            assert!(matches!(error, HeaderError::Truncated { .. }), "{length}: {error}");
        }
    }

    #[test]
    fn other_files_are_refused_by_name() {
        assert!(matches!(read(b"PK\x03\x04 zip").unwrap_err(), HeaderError::NotGguf));
        assert!(read(b"").is_err());
        let mut old = file();
        old[4] = 1;
        assert!(read(&old).unwrap_err().to_string().contains("version 1"));
    }

    proptest! {
        #[test]
        fn no_flipped_byte_makes_it_panic_or_allocate_without_end(at in 0usize..256, to in any::<u8>()) {
            let mut bytes = file();
            let at = at % bytes.len();
            bytes[at] = to;
            let _ = read(&bytes);
        }
    }
}
