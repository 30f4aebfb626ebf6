//! Embedding models: tensors, metadata and vocabulary of BERT.

use super::{F32, ModelShape, POOLING_RANK, Quant};
use crate::model_file::gguf::write::Writer;

/// Ids of BERT's special tokens, where llama.cpp expects them.
const SPECIAL: [(usize, &str); 5] =
    [(0, "[PAD]"), (100, "[UNK]"), (101, "[CLS]"), (102, "[SEP]"), (103, "[MASK]")];
/// Marks the start of a word.
const WORD: char = '\u{2581}';
const POOLING_CLS: u32 = 2;

/// Tensors outside the layers.
pub(crate) fn tensors(shape: &ModelShape, quant: &Quant) -> Vec<(String, Vec<u64>, u32)> {
    let (width, context) = (shape.width, u64::from(shape.context));
    let mut all = vec![
        ("token_embd.weight", vec![width, shape.vocabulary as u64], quant.embedding),
        ("token_types.weight", vec![width, 2], F32),
        ("position_embd.weight", vec![width, context], F32),
        ("token_embd_norm.weight", vec![width], F32),
        ("token_embd_norm.bias", vec![width], F32),
    ];
    if shape.ranks {
        all.push(("cls.weight", vec![width, width], F32));
        all.push(("cls.bias", vec![width], F32));
        all.push(("cls.output.weight", vec![width, 1], F32));
        all.push(("cls.output.bias", vec![1], F32));
    }
    all.into_iter().map(|(name, dimensions, kind)| (name.to_string(), dimensions, kind)).collect()
}

/// Tensors of a layer.
pub(crate) fn layer_tensors(
    shape: &ModelShape,
    quant: &Quant,
) -> Vec<(&'static str, Vec<u64>, u32)> {
    let ModelShape { width, hidden, .. } = *shape;
    let mut all = vec![
        ("ffn_up.weight", vec![width, hidden], quant.matrix),
        ("ffn_up.bias", vec![hidden], F32),
        ("ffn_down.weight", vec![hidden, width], quant.matrix),
        ("ffn_down.bias", vec![width], F32),
        ("attn_output_norm.weight", vec![width], F32),
        ("attn_output_norm.bias", vec![width], F32),
        ("layer_output_norm.weight", vec![width], F32),
        ("layer_output_norm.bias", vec![width], F32),
    ];
    for (weight, bias) in [
        ("attn_q.weight", "attn_q.bias"),
        ("attn_k.weight", "attn_k.bias"),
        ("attn_v.weight", "attn_v.bias"),
        ("attn_output.weight", "attn_output.bias"),
    ] {
        all.push((weight, vec![width, width], quant.matrix));
        all.push((bias, vec![width], F32));
    }
    all
}

/// Metadata in addition to what all shapes have.
pub(crate) fn write_metadata(writer: &mut Writer, shape: &ModelShape) {
    writer.fraction("bert.attention.layer_norm_epsilon", shape.epsilon);
    writer.flag("bert.attention.causal", false);
    writer.number("bert.pooling_type", if shape.ranks { POOLING_RANK } else { POOLING_CLS });
    let tokens = vocabulary(shape.vocabulary);
    let is_special = |token: &String| SPECIAL.iter().any(|(_, name)| name == token);
    let kind = |token: &String| if is_special(token) { 3 } else { 1 };
    writer.numbers("tokenizer.ggml.token_type", &tokens.iter().map(kind).collect::<Vec<_>>());
    writer.text("tokenizer.ggml.model", "bert");
    writer.number("tokenizer.ggml.token_type_count", 2);
    writer.texts("tokenizer.ggml.tokens", &tokens);
}

/// Every printable character at the start of and inside a word, and names that no text is tokenized
/// to.
fn vocabulary(size: usize) -> Vec<String> {
    let letters = || (33u8..127).filter(|b| !b.is_ascii_uppercase()).map(char::from);
    let first = letters().map(|c| format!("{WORD}{c}"));
    let rest = letters().map(String::from);
    let mut pieces = first.chain(rest).chain((0..).map(|n| format!("[unused{n}]")));
    let mut token = |place: usize| match SPECIAL.iter().find(|(at, _)| *at == place) {
        Some((_, name)) => (*name).to_string(),
        None => pieces.next().unwrap_or_default(),
    };
    (0..size).map(&mut token).collect()
}
