//! Models whose feed-forward blocks are mixtures of experts (Granite 3).

use super::{F32, ModelShape, Quant};
use crate::model_file::gguf::write::Writer;

/// Architecture of the shapes with experts.
pub(crate) const EXPERTS: &str = "granitemoe";
/// Experts of a layer, and how many of them a token uses.
const COUNT: u64 = 32;
const USED: u32 = 8;

type Tensors = Vec<(&'static str, Vec<u64>, u32)>;

/// Tensors of a layer with experts; `plain` are those of an ordinary one. `hidden` is that of one
/// expert.
pub(crate) fn tensors(
    shape: &ModelShape,
    quant: &Quant,
    sensitive: u32,
    plain: Tensors,
) -> Tensors {
    let is_dense =
        |name: &str| ["ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"].contains(&name);
    let mut all: Tensors = plain.into_iter().filter(|(name, ..)| !is_dense(name)).collect();
    let (width, hidden) = (shape.width, shape.hidden);
    all.extend([
        ("ffn_gate_inp.weight", vec![width, COUNT], F32),
        ("ffn_gate_exps.weight", vec![width, hidden, COUNT], quant.matrix),
        ("ffn_up_exps.weight", vec![width, hidden, COUNT], quant.matrix),
        ("ffn_down_exps.weight", vec![hidden, width, COUNT], sensitive),
    ]);
    all
}

/// Metadata in addition to what all shapes have.
pub(crate) fn write_metadata(writer: &mut Writer, shape: &ModelShape) {
    let key = |name: &str| format!("{}.{name}", shape.architecture);
    writer.number(&key("expert_count"), COUNT as u32);
    writer.number(&key("expert_used_count"), USED);
    writer.fraction(&key("logit_scale"), 1.0);
}
