//! A model in two files, as llama.cpp splits them: made of the demo model.

use std::path::PathBuf;

use fleet_tests::demo_model;
use fleet_tests::process::Folder;

/// Types of GGUF's values.
const U16: u32 = 2;
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
/// Tensors begin at multiples of this in the demo model.
const ALIGNMENT: usize = 32;

/// Reads a GGUF file, little endian.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn u32(&mut self) -> u32 {
        self.at += 4;
        u32::from_le_bytes(self.bytes[self.at - 4..self.at].try_into().unwrap())
    }

    fn u64(&mut self) -> usize {
        self.at += 8;
        u64::from_le_bytes(self.bytes[self.at - 8..self.at].try_into().unwrap()) as usize
    }

    fn skip_string(&mut self) {
        let length = self.u64();
        self.at += length;
    }

    fn skip_value(&mut self, kind: u32) {
        match kind {
            0 | 1 | 7 => self.at += 1,
            2 | 3 => self.at += 2,
            4..=6 => self.at += 4,
            8 => self.skip_string(),
            9 => {
                let (kind, count) = (self.u32(), self.u64());
                (0..count).for_each(|_| self.skip_value(kind));
            }
            10..=12 => self.at += 8,
            other => panic!("a value of type {other}"),
        }
    }
}

/// A tensor: what the header says of it without its place, and its data.
struct Tensor {
    info: Vec<u8>,
    data: Vec<u8>,
}

/// The model's metadata, how many entries that are, and its tensors.
fn parts_of(model: &[u8]) -> (Vec<u8>, usize, Vec<Tensor>) {
    let mut reader = Reader { bytes: model, at: 8 };
    let (tensors, entries) = (reader.u64(), reader.u64());
    let begin = reader.at;
    for _ in 0..entries {
        reader.skip_string();
        let kind = reader.u32();
        reader.skip_value(kind);
    }
    let metadata = model[begin..reader.at].to_vec();
    let mut infos = Vec::new();
    for _ in 0..tensors {
        let begin = reader.at;
        reader.skip_string();
        reader.at += reader.u32() as usize * 8 + 4;
        infos.push((model[begin..reader.at].to_vec(), reader.u64()));
    }
    let data = reader.at.next_multiple_of(ALIGNMENT);
    let mut all = Vec::new();
    for (number, (info, at)) in infos.iter().enumerate() {
        let end = infos.get(number + 1).map_or(model.len() - data, |(_, next)| *next);
        all.push(Tensor { info: info.clone(), data: model[data + at..data + end].to_vec() });
    }
    (metadata, entries, all)
}

fn entry(out: &mut Vec<u8>, key: &str, kind: u32, value: &[u8]) {
    out.extend((key.len() as u64).to_le_bytes());
    out.extend(key.as_bytes());
    out.extend(kind.to_le_bytes());
    out.extend(value);
}

/// A key of the metadata, the type of its value, and the value.
type Entry<'a> = (&'a str, u32, &'a [u8]);

/// A file of these tensors, with more metadata.
fn file(metadata: &[u8], entries: usize, more: &[Entry<'_>], tensors: &[Tensor]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(((entries + more.len()) as u64).to_le_bytes());
    out.extend(metadata);
    more.iter().for_each(|(key, kind, value)| entry(&mut out, key, *kind, value));
    let mut at = 0;
    for tensor in tensors {
        out.extend(&tensor.info);
        out.extend((at as u64).to_le_bytes());
        at += tensor.data.len().next_multiple_of(ALIGNMENT);
    }
    for tensor in tensors {
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend(&tensor.data);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out
}

/// The demo model with more numbers in its metadata.
pub fn with_fractions(more: &[(&str, f32)]) -> Vec<u8> {
    let bytes: Vec<_> = more.iter().map(|(key, value)| (*key, value.to_le_bytes())).collect();
    with(F32, &bytes)
}

/// The demo model with more whole numbers in its metadata.
pub fn with_numbers(more: &[(&str, u32)]) -> Vec<u8> {
    let bytes: Vec<_> = more.iter().map(|(key, value)| (*key, value.to_le_bytes())).collect();
    with(U32, &bytes)
}

fn with(kind: u32, more: &[(&str, [u8; 4])]) -> Vec<u8> {
    let (metadata, entries, tensors) = parts_of(&std::fs::read(demo_model()).unwrap());
    let more: Vec<Entry> = more.iter().map(|(key, bytes)| (*key, kind, &bytes[..])).collect();
    file(&metadata, entries, &more, &tensors)
}

/// The two files, in `folder`.
pub fn split(folder: &Folder) -> [PathBuf; 2] {
    let (metadata, entries, tensors) = parts_of(&std::fs::read(demo_model()).unwrap());
    let (first, second) = tensors.split_at(tensors.len() / 2);
    let all = tensors.len() as i32;
    let part = |number: u16, tensors: &[Tensor]| {
        let more: [Entry; 3] = [
            ("split.no", U16, &number.to_le_bytes()),
            ("split.count", U16, &2u16.to_le_bytes()),
            ("split.tensors.count", I32, &all.to_le_bytes()),
        ];
        file(&metadata, entries, &more, tensors)
    };
    let (first, second) = (part(0, first), part(1, second));
    [
        folder.write("model-00001-of-00002.gguf", first),
        folder.write("model-00002-of-00002.gguf", second),
    ]
}
