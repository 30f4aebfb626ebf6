//! PURE. Writes a GGUF file, version 3: header first, then each tensor as it is produced.

use std::io::{self, Write};

/// Alignment of tensor data in bytes, the format's default.
const ALIGNMENT: u64 = 32;

const UINT32: u32 = 4;
const INT32: u32 = 5;
const FLOAT32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tensor {
    /// Name, such as `blk.0.attn_q.weight`.
    pub(crate) name: String,
    /// Dimensions, the contiguous one first.
    pub(crate) dimensions: Vec<u64>,
    /// ggml type.
    pub(crate) kind: u32,
    /// Size of its data in bytes.
    pub(crate) bytes: u64,
}

/// Collects a header, then writes the file. See the module.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    metadata: Vec<u8>,
    entries: u64,
    tensors: Vec<Tensor>,
}

impl Writer {
    /// Adds a string.
    pub(crate) fn text(&mut self, key: &str, value: &str) {
        self.entry(key, STRING);
        string(&mut self.metadata, value);
    }

    /// Adds an unsigned integer.
    pub(crate) fn number(&mut self, key: &str, value: u32) {
        self.entry(key, UINT32);
        self.metadata.extend(value.to_le_bytes());
    }

    /// Adds a 32-bit float.
    pub(crate) fn fraction(&mut self, key: &str, value: f32) {
        self.entry(key, FLOAT32);
        self.metadata.extend(value.to_le_bytes());
    }

    /// Adds a boolean.
    pub(crate) fn flag(&mut self, key: &str, value: bool) {
        self.entry(key, BOOL);
        self.metadata.push(u8::from(value));
    }

    /// Adds an array of strings.
    pub(crate) fn texts(&mut self, key: &str, values: &[String]) {
        self.array(key, STRING, values.len());
        values.iter().for_each(|value| string(&mut self.metadata, value));
    }

    /// Adds an array of integers.
    pub(crate) fn numbers(&mut self, key: &str, values: &[i32]) {
        self.array(key, INT32, values.len());
        values.iter().for_each(|value| self.metadata.extend(value.to_le_bytes()));
    }

    /// Adds a tensor; [`Writer::finish`] asks for its data.
    pub(crate) fn tensor(&mut self, tensor: Tensor) {
        self.tensors.push(tensor);
    }

    /// Size of the whole file in bytes.
    pub(crate) fn file_bytes(&self) -> u64 {
        let data: u64 = self.tensors.iter().map(|t| t.bytes.next_multiple_of(ALIGNMENT)).sum();
        self.header().len() as u64 + data
    }

    /// Writes the file. `fill` writes the data of each tensor, exactly as many bytes as it
    /// declares.
    pub(crate) fn finish<W: Write>(
        &self,
        out: &mut W,
        mut fill: impl FnMut(&Tensor, &mut W) -> io::Result<()>,
    ) -> io::Result<()> {
        out.write_all(&self.header())?;
        for tensor in &self.tensors {
            fill(tensor, out)?;
            let padding = tensor.bytes.next_multiple_of(ALIGNMENT) - tensor.bytes;
            out.write_all(&[0; ALIGNMENT as usize][..padding as usize])?;
        }
        out.flush()
    }

    fn header(&self) -> Vec<u8> {
        let mut out = Vec::from(*b"GGUF");
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend(self.entries.to_le_bytes());
        out.extend(&self.metadata);
        let mut offset = 0u64;
        for tensor in &self.tensors {
            string(&mut out, &tensor.name);
            out.extend((tensor.dimensions.len() as u32).to_le_bytes());
            tensor.dimensions.iter().for_each(|size| out.extend(size.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += tensor.bytes.next_multiple_of(ALIGNMENT);
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT as usize), 0);
        out
    }

    fn entry(&mut self, key: &str, kind: u32) {
        self.entries += 1;
        string(&mut self.metadata, key);
        self.metadata.extend(kind.to_le_bytes());
    }

    fn array(&mut self, key: &str, kind: u32, len: usize) {
        self.entry(key, ARRAY);
        self.metadata.extend(kind.to_le_bytes());
        self.metadata.extend((len as u64).to_le_bytes());
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_file::gguf::read_header;

    #[test]
    fn what_is_written_can_be_read() {
        let mut writer = Writer::default();
        writer.text("general.architecture", "llama");
        writer.text("general.name", "x");
        writer.number("llama.context_length", 77);
        writer.fraction("a", 0.5);
        writer.flag("b", true);
        writer.texts("c", &["one".into(), "two".into()]);
        writer.numbers("d", &[1, -1]);
        for name in ["t", "u"] {
            let dimensions = vec![5, 2];
            writer.tensor(Tensor { name: name.into(), dimensions, kind: 0, bytes: 40 });
        }
        let mut file = Vec::new();
        writer
            .finish(&mut file, |tensor, out| out.write_all(&vec![7; tensor.bytes as usize]))
            .unwrap();
        assert_eq!(file.len() as u64, writer.file_bytes());
        let header = read_header(&file[..], file.len() as u64).unwrap();
        assert_eq!((header.architecture.as_str(), header.context_tokens), ("llama", 77));
        assert_eq!((header.name.as_deref(), header.tensors), (Some("x"), 2));
        assert!(read_header(&file[..], file.len() as u64 - 25).is_err(), "it knows where it ends");
    }
}
