//! Creates model files with random weights in the shape of a real model, to find out what a model
//! costs on a machine, in time and memory, before downloading it.
//!
//! Shapes are those of the published configurations. Weights are drawn once for a few rows and
//! repeated: speed does not depend on their values. Speculation does: see [`Chain`].

use std::io::{self, Write};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use crate::llama::{quantize, row_bytes};
use crate::model_file::gguf::write::{Tensor, Writer};

mod bert;
mod chain;
mod delta;
mod experts;
mod lean;
mod mla;
mod mtp;
mod shapes;
mod vocabulary;

pub use chain::Chain;
pub use shapes::SHAPES;
pub(crate) use vocabulary::Vocabulary;
pub use vocabulary::{DEFAULT_PRE, PRE_TOKENIZERS};

/// Number of rows drawn at random; all others repeat them.
const DRAWN_ROWS: u64 = 16;
const SEED: u64 = 1;
const F32: u32 = 0;

/// Names within a layer, dimensions, and ggml types.
type Tensors = Vec<(&'static str, Vec<u64>, u32)>;

const CHAT_TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}\
    <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The prompt of Qwen3's rerankers, and their labels.
const RERANK_TEMPLATE: &str = "<|im_start|>system\nAnswer \"yes\" or \"no\".<|im_end|>\n\
    <|im_start|>user\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n";
const RERANK_LABELS: [&str; 2] = ["yes", "no"];
/// `pooling_type` of reranking models in llama.cpp.
const POOLING_RANK: u32 = 4;

/// Dimensions of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModelShape {
    /// Name on the command line.
    pub name: &'static str,
    architecture: &'static str,
    layers: u32,
    width: u64,
    hidden: u64,
    heads: u64,
    kv_heads: u64,
    head_width: u64,
    vocabulary: usize,
    rope_base: f32,
    epsilon: f32,
    context: u32,
    /// True for a reranking model.
    ranks: bool,
    /// True if an MTP head comes after the layers.
    mtp_head: bool,
}

impl ModelShape {
    /// The same model without the layers after the first ones: a draft model of it. `None` if it
    /// has fewer, or that are none.
    pub fn with_layers(self, layers: u32) -> Option<Self> {
        let is_known = (1..=self.layers).contains(&layers);
        is_known.then_some(Self { layers, mtp_head: false, ..self })
    }

    /// Layers, with the MTP head.
    fn blocks(&self) -> u32 {
        self.layers + u32::from(self.mtp_head)
    }
}

/// Storage types of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quant {
    /// Name on the command line.
    pub name: &'static str,
    /// ggml type of matrices.
    matrix: u32,
    /// ggml type of the embedding matrix, which is also the output matrix.
    embedding: u32,
    /// ggml type of `attn_v` and `ffn_down` in half of the layers.
    sensitive: u32,
}

/// All known quantizations. Q4_K_M and Q5_K_M are llama.cpp's mixtures; those of Q3_K_M and IQ4_XS
/// have a few more types there.
pub const QUANTS: &[Quant] = &[
    Quant { name: "f16", matrix: 1, embedding: 1, sensitive: 1 },
    Quant { name: "q8_0", matrix: 8, embedding: 8, sensitive: 8 },
    Quant { name: "q4_0", matrix: 2, embedding: 14, sensitive: 2 },
    Quant { name: "q4_k_m", matrix: 12, embedding: 14, sensitive: 14 },
    Quant { name: "q5_k_m", matrix: 13, embedding: 14, sensitive: 14 },
    Quant { name: "q3_k_m", matrix: 11, embedding: 14, sensitive: 12 },
    Quant { name: "iq4_xs", matrix: 23, embedding: 14, sensitive: 23 },
    Quant { name: "iq4_nl", matrix: 20, embedding: 14, sensitive: 20 },
];

/// A model file to write.
#[derive(Debug)]
pub struct Synth {
    writer: Writer,
    chain: Option<Chain>,
}

impl Synth {
    /// Plans a file; the error names the row that does not fit the quantization.
    pub fn new(shape: &ModelShape, quant: &Quant) -> Result<Self, String> {
        Self::with_pre(shape, quant, DEFAULT_PRE)
    }

    /// Lets tokens follow from the one before, in a shape that ties no matrices but the output.
    ///
    /// # Errors
    /// The shape computes embeddings, or has experts or recurrent layers.
    pub fn with_chain(
        mut self,
        shape: &ModelShape,
        quant: &Quant,
        chain: Chain,
    ) -> Result<Self, String> {
        let can_follow = ["llama", "qwen2", mtp::GLM, mla::MLA].contains(&shape.architecture);
        if !can_follow && !delta::has(shape) {
            return Err(format!("{} can have no chain", shape.name));
        }
        let (columns, rows) = (shape.width, shape.vocabulary as u64);
        let kind = fitting(quant.embedding, columns);
        let row = row_bytes(kind, columns).ok_or("the output's rows do not fit")?;
        let head = format!("blk.{}.{}", shape.layers, chain::HEAD_TABLE);
        for name in ["output.weight".into()].into_iter().chain(shape.mtp_head.then_some(head)) {
            let dimensions = vec![columns, rows];
            self.writer.tensor(Tensor { name, dimensions, kind, bytes: row * rows });
        }
        self.chain = Some(chain);
        Ok(self)
    }

    /// Like [`Self::new`], with one of [`PRE_TOKENIZERS`]; BERT shapes have none.
    pub fn with_pre(shape: &ModelShape, quant: &Quant, pre: &str) -> Result<Self, String> {
        if shape.architecture == "bert" && pre != DEFAULT_PRE {
            return Err(format!("{} has no pre-tokenizer; leave --pre out", shape.name));
        }
        let vocabulary = Vocabulary::new(pre, shape.vocabulary)
            .ok_or_else(|| format!("llama.cpp knows no pre-tokenizer '{pre}'"))?;
        Self::with_vocabulary(shape, quant, &vocabulary)
    }

    pub(crate) fn with_vocabulary(
        shape: &ModelShape,
        quant: &Quant,
        vocabulary: &Vocabulary,
    ) -> Result<Self, String> {
        let mut writer = Writer::default();
        write_metadata(&mut writer, shape, vocabulary);
        let mut add = |name: String, dimensions: Vec<u64>, kind: u32| {
            let kind = fitting(kind, dimensions[0]);
            let row = row_bytes(kind, dimensions[0]);
            let row = row.ok_or_else(|| format!("{name}: rows do not fit {}", quant.name))?;
            let bytes = row * dimensions[1..].iter().product::<u64>();
            writer.tensor(Tensor { name, dimensions, kind, bytes });
            Ok::<(), String>(())
        };
        for (name, dimensions, kind) in top_tensors(shape, quant) {
            add(name, dimensions, kind)?;
        }
        for layer in 0..shape.blocks() {
            let mut tensors = layer_tensors(shape, quant, layer);
            if layer == shape.layers {
                tensors.extend(mtp::tensors(shape, quant));
            }
            for (name, dimensions, kind) in tensors {
                add(format!("blk.{layer}.{name}"), dimensions, kind)?;
            }
        }
        Ok(Self { writer, chain: None })
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.writer.file_bytes()
    }

    /// Writes the file; calls `progress` with the number of bytes written.
    pub fn write<W: Write>(&self, out: &mut W, mut progress: impl FnMut(u64)) -> io::Result<()> {
        let mut rng = Pcg64::seed_from_u64(SEED);
        self.writer.finish(out, |tensor, out| {
            let columns = tensor.dimensions[0];
            let rows = tensor.dimensions.get(1).copied();
            let all: u64 = tensor.dimensions[1..].iter().product();
            if let Some(rows) = self.chain.and_then(|c| c.rows(&tensor.name, columns, all)) {
                for first in (0..all).step_by(DRAWN_ROWS as usize) {
                    let mut numbers = Vec::new();
                    let some = first..all.min(first + DRAWN_ROWS);
                    some.for_each(|row| rows.push(row, &mut numbers));
                    let drawn = quantize(tensor.kind, &numbers, columns).ok_or_else(unfit)?;
                    out.write_all(&drawn)?;
                    progress(drawn.len() as u64);
                }
                return Ok(());
            }
            let numbers: Vec<f32> = match rows {
                Some(_) if tensor.name.ends_with("ssm_a") => {
                    (0..columns * DRAWN_ROWS).map(|_| lean::fading(small(&mut rng))).collect()
                }
                Some(_) => (0..columns * DRAWN_ROWS).map(|_| small(&mut rng)).collect(),
                None => vec![constant(&tensor.name); columns as usize],
            };
            let drawn = quantize(tensor.kind, &numbers, columns).ok_or_else(unfit)?;
            let mut left = tensor.bytes as usize;
            while left > 0 {
                let part = left.min(drawn.len());
                out.write_all(&drawn[..part])?;
                left -= part;
                progress(part as u64);
            }
            Ok(())
        })
    }
}

/// What all elements of a vector are.
fn constant(name: &str) -> f32 {
    match name {
        _ if name.ends_with("bias") => 0.0,
        // A decay rate: negative, or the state would grow without limit.
        _ if name.ends_with("ssm_a") => -0.25,
        _ => 1.0,
    }
}

/// K-quants have blocks of 256; if those do not divide a row, llama.cpp falls back to types with
/// blocks of 32.
fn fitting(kind: u32, columns: u64) -> u32 {
    match kind {
        11 | 23 if !columns.is_multiple_of(256) => 20, // Q3_K, IQ4_XS -> IQ4_NL
        12 if !columns.is_multiple_of(256) => 6,       // Q4_K -> Q5_0
        13 if !columns.is_multiple_of(256) => 7,       // Q5_K -> Q5_1
        14 if !columns.is_multiple_of(256) => 8,       // Q6_K -> Q8_0
        _ => kind,
    }
}

fn unfit() -> io::Error {
    io::Error::other("a row does not fit its type")
}

/// Approximates a normal distribution with standard deviation 0.02.
fn small(rng: &mut Pcg64) -> f32 {
    normal(rng, 0.02)
}

/// Approximates a normal distribution by the sum of four uniform draws.
fn normal(rng: &mut Pcg64, deviation: f32) -> f32 {
    let uniform = |bits: u32| bits as f32 / u32::MAX as f32 - 0.5;
    (0..4).map(|_| uniform(rng.next_u32())).sum::<f32>() * deviation * 1.73
}

fn top_tensors(shape: &ModelShape, quant: &Quant) -> Vec<(String, Vec<u64>, u32)> {
    if shape.architecture == "bert" {
        return bert::tensors(shape, quant);
    }
    let vocabulary = shape.vocabulary as u64;
    let mut all = vec![
        ("token_embd.weight".into(), vec![shape.width, vocabulary], quant.embedding),
        ("output_norm.weight".into(), vec![shape.width], F32),
    ];
    if shape.ranks {
        let labels = RERANK_LABELS.len() as u64;
        all.push(("cls.output.weight".into(), vec![shape.width, labels], F32));
    }
    all
}

fn layer_tensors(shape: &ModelShape, quant: &Quant, layer: u32) -> Tensors {
    if shape.architecture == "bert" {
        return bert::layer_tensors(shape, quant);
    }
    let ModelShape { width, hidden, .. } = *shape;
    let (q, kv) = (shape.heads * shape.head_width, shape.kv_heads * shape.head_width);
    let sensitive = if layer.is_multiple_of(2) { quant.sensitive } else { quant.matrix };
    if delta::has(shape) {
        return delta::tensors(shape, quant, layer, sensitive);
    }
    let mut all = vec![
        ("attn_norm.weight", vec![width], F32),
        ("attn_q.weight", vec![width, q], quant.matrix),
        ("attn_k.weight", vec![width, kv], quant.matrix),
        ("attn_v.weight", vec![width, kv], sensitive),
        ("attn_output.weight", vec![q, width], quant.matrix),
        ("ffn_norm.weight", vec![width], F32),
        ("ffn_gate.weight", vec![width, hidden], quant.matrix),
        ("ffn_up.weight", vec![width, hidden], quant.matrix),
        ("ffn_down.weight", vec![hidden, width], sensitive),
    ];
    if shape.architecture == "qwen3" {
        all.push(("attn_q_norm.weight", vec![shape.head_width], F32));
        all.push(("attn_k_norm.weight", vec![shape.head_width], F32));
    }
    if shape.architecture == "qwen2" {
        all.push(("attn_q.bias", vec![q], F32));
        all.push(("attn_k.bias", vec![kv], F32));
        all.push(("attn_v.bias", vec![kv], F32));
    }
    match shape.architecture {
        lean::WINDOWED => [all, lean::windowed_tensors(shape)].concat(),
        lean::HYBRID => lean::hybrid_tensors(shape, quant, layer, all),
        experts::EXPERTS => experts::tensors(shape, quant, sensitive, all),
        mtp::GLM => mtp::glm_tensors(shape, quant, layer, all),
        mla::MLA => mla::tensors(shape, quant, layer, all),
        _ => all,
    }
}

fn write_metadata(writer: &mut Writer, shape: &ModelShape, vocabulary: &Vocabulary) {
    let key = |name: &str| format!("{}.{name}", shape.architecture);
    writer.text("general.architecture", shape.architecture);
    writer.text("general.name", &format!("{} with random weights", shape.name));
    writer.number(&key("context_length"), shape.context);
    writer.number(&key("embedding_length"), shape.width as u32);
    writer.number(&key("block_count"), shape.blocks());
    writer.number(&key("feed_forward_length"), shape.hidden as u32);
    writer.number(&key("attention.head_count"), shape.heads as u32);
    if shape.architecture == "bert" {
        return bert::write_metadata(writer, shape);
    }
    if delta::has(shape) {
        delta::write_metadata(writer, shape);
    } else if shape.architecture == mla::MLA {
        mla::write_metadata(writer, shape);
    } else {
        lean::write_metadata(writer, shape);
        writer.number(&key("rope.dimension_count"), shape.head_width as u32);
    }
    if shape.architecture == experts::EXPERTS {
        experts::write_metadata(writer, shape);
    }
    mtp::write_metadata(writer, shape);
    writer.fraction(&key("rope.freq_base"), shape.rope_base);
    writer.fraction(&key("attention.layer_norm_rms_epsilon"), shape.epsilon);
    vocabulary.write_metadata(writer);
    if shape.ranks {
        writer.number(&key("pooling_type"), POOLING_RANK);
        writer.texts(&key("classifier.output_labels"), &RERANK_LABELS.map(String::from));
        writer.text("tokenizer.chat_template.rerank", RERANK_TEMPLATE);
        return;
    }
    writer.text("tokenizer.chat_template", CHAT_TEMPLATE);
}

/// A small model file with a vocabulary, for tokenizer tests.
#[cfg(test)]
pub(crate) fn small_file(vocabulary: &Vocabulary, layers: u32) -> Vec<u8> {
    let vocabulary_size = vocabulary.len();
    let shape = ModelShape {
        layers,
        width: 32,
        hidden: 32,
        heads: 1,
        kv_heads: 1,
        head_width: 32,
        vocabulary: vocabulary_size,
        ..SHAPES[0]
    };
    let mut file = Vec::new();
    let synth = Synth::with_vocabulary(&shape, &QUANTS[0], vocabulary).expect("rows fit f16");
    synth.write(&mut file, |_| {}).expect("memory has room");
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_file::gguf::read_header;

    #[test]
    fn every_shape_can_be_planned_in_every_quantisation() {
        for shape in SHAPES {
            for quant in QUANTS {
                let synth = Synth::new(shape, quant).unwrap();
                assert!(synth.file_bytes() > 100_000, "{} {}", shape.name, quant.name);
            }
        }
    }

    #[test]
    fn the_first_layers_of_a_model_are_those_of_the_whole_one() {
        let file = |shape: &ModelShape| {
            let mut file = Vec::new();
            Synth::new(shape, &QUANTS[1]).unwrap().write(&mut file, |_| {}).unwrap();
            file
        };
        let (whole, first) = (file(&SHAPES[0]), file(&SHAPES[0].with_layers(1).unwrap()));
        let weights = &first[first.len() - 100_000..];
        assert!(whole.windows(weights.len()).any(|part| part == weights));
        assert_eq!(SHAPES[0].with_layers(0), None);
        assert_eq!(SHAPES[0].with_layers(3), None);
    }

    #[test]
    fn the_tiny_one_is_a_model_file_of_the_size_that_was_said() {
        let synth = Synth::new(&SHAPES[0], &QUANTS[2]).unwrap();
        let (mut file, mut written) = (Vec::new(), 0);
        synth.write(&mut file, |bytes| written += bytes).unwrap();
        assert_eq!(file.len() as u64, synth.file_bytes());
        assert!(written > 0 && written <= synth.file_bytes());
        let header = read_header(&file[..], file.len() as u64).unwrap();
        assert_eq!((header.architecture.as_str(), header.tensors), ("llama", 2 + 2 * 9));
    }
}
