//! Writes model files (GGUF 3), apart from the code that reads them.
//! Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>

use std::path::Path;

/// Multiple of bytes at which tensors begin.
const ALIGNMENT: usize = 32;

/// A value of the header.
#[derive(Debug, Clone)]
pub enum Value {
    /// Unsigned, 32 bits.
    Number(u32),
    /// 32 bits.
    Fraction(f32),
    /// True or false.
    Flag(bool),
    /// A text.
    Text(String),
    /// Signed, 32 bits each.
    Numbers(Vec<i32>),
    /// Several texts.
    Texts(Vec<String>),
}

/// A file to be written.
#[derive(Debug, Default)]
pub struct Gguf {
    keys: Vec<u8>,
    key_count: u64,
    infos: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
}

impl Gguf {
    /// Adds a key.
    pub fn key(&mut self, name: &str, value: Value) {
        text(&mut self.keys, name);
        let bytes = match value {
            Value::Number(n) => [&4_u32.to_le_bytes()[..], &n.to_le_bytes()].concat(),
            Value::Fraction(n) => [&6_u32.to_le_bytes()[..], &n.to_le_bytes()].concat(),
            Value::Flag(flag) => [&7_u32.to_le_bytes()[..], &[u8::from(flag)]].concat(),
            Value::Text(value) => {
                let mut bytes = 8_u32.to_le_bytes().to_vec();
                text(&mut bytes, &value);
                bytes
            }
            Value::Numbers(all) => {
                let mut bytes = list(5, all.len());
                all.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
                bytes
            }
            Value::Texts(all) => {
                let mut bytes = list(8, all.len());
                all.iter().for_each(|one| text(&mut bytes, one));
                bytes
            }
        };
        self.keys.extend(bytes);
        self.key_count += 1;
    }

    /// Adds a tensor of 32-bit floats, the innermost dimension first.
    pub fn tensor(&mut self, name: &str, dimensions: &[usize], values: Vec<f32>) {
        assert_eq!(dimensions.iter().product::<usize>(), values.len(), "{name}");
        text(&mut self.infos, name);
        self.infos.extend((dimensions.len() as u32).to_le_bytes());
        dimensions.iter().for_each(|n| self.infos.extend((*n as u64).to_le_bytes()));
        self.infos.extend(0_u32.to_le_bytes());
        self.infos.extend((self.data.len() as u64).to_le_bytes());
        values.iter().for_each(|value| self.data.extend(value.to_le_bytes()));
        self.data.resize(self.data.len().next_multiple_of(ALIGNMENT), 0);
        self.tensor_count += 1;
    }

    /// Writes the file.
    pub fn write(&self, file: &Path) {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend(self.tensor_count.to_le_bytes());
        out.extend(self.key_count.to_le_bytes());
        out.extend(&self.keys);
        out.extend(&self.infos);
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend(&self.data);
        std::fs::write(file, out).unwrap();
    }
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn list(kind: u32, length: usize) -> Vec<u8> {
    let mut bytes = 9_u32.to_le_bytes().to_vec();
    bytes.extend(kind.to_le_bytes());
    bytes.extend((length as u64).to_le_bytes());
    bytes
}
