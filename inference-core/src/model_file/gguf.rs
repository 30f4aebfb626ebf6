//! PURE. Reads and checks a GGUF header before llama.cpp does, which aborts on invalid values.
//!
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>, versions 2 and 3, little
//! endian. Every count and length is checked against the file size before it is used.

use std::collections::BTreeMap;
use std::io::{self, BufRead, ErrorKind};

use crate::types::request::SamplingDefaults;

pub(crate) mod kinds;
mod sampling;
pub(crate) mod write;

/// Maximum header size in bytes. Vocabularies of 250,000 tokens need about 10 MB.
const HEADER_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Maximum length of a string in bytes. Chat templates have about 10 kB.
const STRING_BYTES_MAX: u64 = 4 * 1024 * 1024;
const METADATA_MAX: u64 = 65_536;
const TENSORS_MAX: u64 = 65_536;
const DIMENSIONS_MAX: u32 = 4;
/// Maximum length of a tensor name in bytes: llama.cpp rejects longer ones.
const TENSOR_NAME_BYTES_MAX: u64 = 63;
/// Maximum number of layers: llama.cpp aborts on more, or on none.
const LAYERS_MAX: u64 = 512;
/// Types that ggml uses internally and for integers: it crashes when it multiplies with a matrix of
/// one. Q8_1, Q8_K, I8, I16, I32, I64, F64.
const NO_MATRIX: [u32; 7] = [9, 15, 24, 25, 26, 27, 28];
/// Maximum length of a stored list of numbers: one per layer. Longer lists are skipped.
const LIST_MAX: u64 = 1024;
/// Maximum count of numbers stored per header; further ones are skipped.
const NUMBERS_MAX: usize = 65_536;

/// The header fields that are needed before loading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// `general.architecture`, such as `llama`.
    pub architecture: String,
    /// `general.name`, if present.
    pub name: Option<String>,
    /// Context length that the model was trained for, in tokens; 0 if not given.
    pub context_tokens: u32,
    /// Number of tensors in the file.
    pub tensors: u64,
    /// Number of tokens in the vocabulary; 0 if it has none.
    pub vocabulary: u64,
    /// Number of merges of a BPE vocabulary.
    pub merges: u64,
    /// Integers and flags by key: one value, or one per layer. Excludes the tokenizer's keys.
    pub numbers: BTreeMap<String, Vec<u64>>,
    /// Sampling parameters that the file recommends.
    pub sampling: SamplingDefaults,
    /// Name, shape and type of each tensor.
    pub tensor_list: Vec<TensorInfo>,
}

/// Metadata of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Dimensions, the contiguous one first; one to four, none of them 0.
    pub dimensions: Vec<u64>,
    /// ggml type: see [`kinds`].
    pub kind: u32,
}

impl TensorInfo {
    /// Number of elements; the reader has checked that this cannot overflow.
    pub fn elements(&self) -> u64 {
        self.dimensions.iter().fold(1, |n, size| n.saturating_mul(*size))
    }

    /// Size of its data in bytes; `None` if its type is unknown or does not fit its rows.
    pub fn bytes(&self) -> Option<u64> {
        let row = self.dimensions.first().copied()?;
        let rows = self.elements() / row.max(1);
        kinds::kind(self.kind)?.row_bytes(row)?.checked_mul(rows)
    }
}

impl Header {
    /// The number under `{architecture}.{key}`; `None` for a list.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.list(key).filter(|list| list.len() == 1)?.first().copied()
    }

    /// The number or list under `{architecture}.{key}`.
    pub fn list(&self, key: &str) -> Option<&[u64]> {
        self.numbers.get(&format!("{}.{key}", self.architecture)).map(Vec::as_slice)
    }

    fn keep(&mut self, kept: &mut usize, key: String, numbers: Vec<u64>) {
        if !key.starts_with("tokenizer.") && *kept + numbers.len() <= NUMBERS_MAX {
            *kept += numbers.len();
            self.numbers.insert(key, numbers);
        }
    }
}

/// Why a file is not a valid model.
#[derive(Debug)]
pub enum HeaderError {
    /// The file could not be read.
    Io(io::Error),
    /// The file is not in GGUF format.
    NotGguf,
    /// The file ends before its header or its last tensor does.
    Truncated {
        /// Size of the file in bytes.
        has: u64,
        /// Minimum size that the header requires, in bytes.
        needs: u64,
    },
    /// The header contradicts itself or the format.
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
pub fn read_header(source: impl BufRead, file_bytes: u64) -> Result<Header, HeaderError> {
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
    let (mut alignment, mut kept) = (32, 0);
    for _ in 0..entries {
        let key = reader.string()?;
        let value = reader.value()?;
        if let Some(name) = key.strip_prefix(sampling::PREFIX) {
            let number = match value {
                Value::Number(n) => n as f64,
                Value::Fraction(n) => n.into(),
                _ => f64::NAN,
            };
            sampling::read(&mut header.sampling, name, number);
        }
        match (key.as_str(), value) {
            ("general.architecture", Value::Text(text)) => header.architecture = text,
            ("general.name", Value::Text(text)) => header.name = Some(text),
            ("tokenizer.ggml.tokens", Value::List { length, .. }) => header.vocabulary = length,
            ("tokenizer.ggml.merges", Value::List { length, .. }) => header.merges = length,
            (name, Value::Number(n)) => {
                if name == "general.alignment" {
                    alignment = n;
                } else if name.ends_with(".context_length") {
                    header.context_tokens = u32::try_from(n).unwrap_or(u32::MAX);
                }
                header.keep(&mut kept, key, vec![n]);
            }
            // llama.cpp aborts when it computes with such a value.
            (name, Value::Fraction(epsilon))
                if name.ends_with("_epsilon") && (epsilon < 0.0 || epsilon.is_nan()) =>
            {
                return Err(invalid(format!("{name} is {epsilon}; it must not be negative")));
            }
            (_, Value::List { numbers, .. }) if !numbers.is_empty() => {
                header.keep(&mut kept, key, numbers);
            }
            _ => {}
        }
    }
    if header.architecture.is_empty() {
        return Err(invalid("general.architecture is missing".into()));
    }
    if let Some(layers) = header.number("block_count")
        && !(1..=LAYERS_MAX).contains(&layers)
    {
        return Err(invalid(format!("a model of {layers} layers; it must have 1 to {LAYERS_MAX}")));
    }
    let heads = header.number("nextn_predict_layers").unwrap_or(0);
    if header.number("block_count").is_some_and(|layers| heads > layers) {
        return Err(invalid(format!("{heads} layers of MTP heads, which are more than it has")));
    }
    if tensors == 0 {
        return Err(invalid("it holds no tensors".into()));
    }
    header.tensor_list = read_tensors(&mut reader, tensors, alignment)?;
    Ok(header)
}

/// Checks that the tensor data lies inside the file, by the end of the last tensor.
fn read_tensors(
    reader: &mut Reader<impl BufRead>,
    tensors: u64,
    alignment: u64,
) -> Result<Vec<TensorInfo>, HeaderError> {
    if !alignment.is_power_of_two() {
        return Err(invalid(format!("general.alignment {alignment} is not a power of two")));
    }
    let mut farthest = 0;
    let mut farthest_bytes = 0;
    let mut all = Vec::new();
    for _ in 0..tensors {
        let tensor = read_tensor(reader)?;
        let offset = reader.u64()?;
        if offset >= farthest {
            let bytes = tensor.bytes().unwrap_or_else(|| tensor.elements() / 8);
            (farthest, farthest_bytes) = (offset, bytes);
        }
        all.push(tensor);
    }
    let data = reader.position.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    let needs = data.saturating_add(farthest).saturating_add(farthest_bytes);
    if needs > reader.file_bytes {
        return Err(HeaderError::Truncated { has: reader.file_bytes, needs });
    }
    Ok(all)
}

/// Reads the next tensor's metadata, without its offset.
fn read_tensor(reader: &mut Reader<impl BufRead>) -> Result<TensorInfo, HeaderError> {
    let name = reader.short_string("a tensor's name", TENSOR_NAME_BYTES_MAX)?;
    let count = reader.u32()?;
    if count == 0 || count > DIMENSIONS_MAX {
        return Err(invalid(format!("tensor {name} has {count} dimensions")));
    }
    let (mut elements, mut dimensions) = (1u64, Vec::new());
    for _ in 0..count {
        let size = reader.u64()?;
        elements = elements
            .checked_mul(size)
            .filter(|n| *n > 0)
            .ok_or_else(|| invalid(format!("tensor {name} has an impossible size")))?;
        dimensions.push(size);
    }
    let kind = reader.u32()?;
    if dimensions.len() > 1 && name.ends_with(".weight") && NO_MATRIX.contains(&kind) {
        return Err(invalid(format!(
            "tensor {name} is of type {kind}, which no kernel multiplies"
        )));
    }
    Ok(TensorInfo { name, dimensions, kind })
}

fn invalid(why: String) -> HeaderError {
    HeaderError::Invalid(why)
}

enum Value {
    Text(String),
    /// A flag or a non-negative integer.
    Number(u64),
    /// A 32-bit float.
    Fraction(f32),
    /// A list, with its numbers if it has integers and not too many.
    List {
        length: u64,
        numbers: Vec<u64>,
    },
    Other,
}

struct Reader<R> {
    source: R,
    position: u64,
    file_bytes: u64,
}

impl<R: BufRead> Reader<R> {
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
        self.short_string("a string", STRING_BYTES_MAX)
    }

    fn short_string(&mut self, what: &str, bytes_max: u64) -> Result<String, HeaderError> {
        let length = self.u64()?;
        if length > bytes_max {
            return Err(invalid(format!("{what} of {length} bytes")));
        }
        self.need(length)?;
        let mut out = vec![0; length as usize];
        self.source.read_exact(&mut out).map_err(HeaderError::Io)?;
        self.position += length;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), HeaderError> {
        self.need(bytes)?;
        let mut left = bytes;
        while left > 0 {
            // Most of a header are hundreds of thousands of short strings.
            let buffered = match self.source.fill_buf() {
                Ok([]) => return Err(HeaderError::Io(ErrorKind::UnexpectedEof.into())),
                Ok(buffered) => left.min(buffered.len() as u64),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(HeaderError::Io(e)),
            };
            self.source.consume(buffered as usize);
            left -= buffered;
        }
        self.position += bytes;
        Ok(())
    }

    fn value(&mut self) -> Result<Value, HeaderError> {
        let kind = self.u32()?;
        match kind {
            8 => Ok(Value::Text(self.string()?)),
            9 => self.array(),
            6 => Ok(Value::Fraction(f32::from_le_bytes(self.bytes()?))),
            _ if is_whole(kind) => Ok(self.whole(kind)?.map_or(Value::Other, Value::Number)),
            _ => {
                self.skip(scalar_bytes(kind)?)?;
                Ok(Value::Other)
            }
        }
    }

    /// Reads a flag or an integer; `None` if it is negative.
    fn whole(&mut self, kind: u32) -> Result<Option<u64>, HeaderError> {
        Ok(match kind {
            0 | 7 => Some(u64::from(self.bytes::<1>()?[0])),
            1 => u64::try_from(i8::from_le_bytes(self.bytes()?)).ok(),
            2 => Some(u64::from(u16::from_le_bytes(self.bytes()?))),
            3 => u64::try_from(i16::from_le_bytes(self.bytes()?)).ok(),
            4 => Some(u64::from(self.u32()?)),
            5 => u64::try_from(i32::from_le_bytes(self.bytes()?)).ok(),
            10 => Some(self.u64()?),
            _ => u64::try_from(i64::from_le_bytes(self.bytes()?)).ok(),
        })
    }

    fn array(&mut self) -> Result<Value, HeaderError> {
        let kind = self.u32()?;
        let length = self.u64()?;
        let mut numbers = Vec::new();
        if kind == 8 {
            for _ in 0..length {
                let bytes = self.u64()?;
                self.skip(bytes)?;
            }
        } else if is_whole(kind) && length <= LIST_MAX {
            for _ in 0..length {
                // Negative numbers mean "none".
                numbers.push(self.whole(kind)?.unwrap_or(0));
            }
        } else {
            let bytes = length.checked_mul(scalar_bytes(kind)?);
            self.skip(bytes.ok_or_else(|| invalid("an impossible array".into()))?)?;
        }
        Ok(Value::List { length, numbers })
    }
}

/// True if a metadata type is a flag or an integer.
fn is_whole(kind: u32) -> bool {
    matches!(kind, 0..=5 | 7 | 10 | 11)
}

/// Size of a scalar metadata type in bytes. The format allows arrays of arrays, but no model uses
/// them.
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
mod tests;
