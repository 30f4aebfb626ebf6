//! MTP heads, and the experts of models whose files have one (GLM-4.5, GLM-4.7-Flash, Qwen3.5).

use super::{F32, ModelShape, Quant, Tensors};
use crate::model_file::gguf::write::Writer;

/// Architecture of the shapes with experts and a head.
pub(crate) const GLM: &str = "glm4moe";
/// Experts of a layer, how many of them a token uses, and those that all tokens use.
const EXPERTS: u64 = 8;
const USED: u32 = 2;
const SHARED: u32 = 1;
/// Layers without experts.
const DENSE: u32 = 1;

/// Tensors of a head in addition to those of its layer.
pub(crate) fn tensors(shape: &ModelShape, quant: &Quant) -> Tensors {
    let width = shape.width;
    vec![
        ("nextn.eh_proj.weight", vec![2 * width, width], quant.matrix),
        ("nextn.enorm.weight", vec![width], F32),
        ("nextn.hnorm.weight", vec![width], F32),
        ("nextn.shared_head_norm.weight", vec![width], F32),
    ]
}

/// Tensors of a layer of GLM-4.5; `plain` are those of an ordinary one.
pub(crate) fn glm_tensors(
    shape: &ModelShape,
    quant: &Quant,
    layer: u32,
    plain: Tensors,
) -> Tensors {
    let plain = plain.into_iter().filter(|(name, ..)| *name != "ffn_norm.weight").collect();
    let mut all = with_experts(shape, quant, layer, plain);
    all.push(("post_attention_norm.weight", vec![shape.width], F32));
    all
}

/// Tensors of a layer that has experts, if it is not one of the first.
pub(super) fn with_experts(
    shape: &ModelShape,
    quant: &Quant,
    layer: u32,
    plain: Tensors,
) -> Tensors {
    if layer < DENSE {
        return plain;
    }
    let is_dense = |name: &str| name.starts_with("ffn_") && name != "ffn_norm.weight";
    let mut all: Tensors = plain.into_iter().filter(|(name, ..)| !is_dense(name)).collect();
    all.extend(experts(shape, quant));
    all.push(("exp_probs_b.bias", vec![EXPERTS], F32));
    all
}

/// The experts of a layer, and the one that all tokens use.
pub(super) fn experts(shape: &ModelShape, quant: &Quant) -> Tensors {
    let (width, hidden) = (shape.width, shape.hidden);
    vec![
        ("ffn_gate_inp.weight", vec![width, EXPERTS], F32),
        ("ffn_gate_exps.weight", vec![width, hidden, EXPERTS], quant.matrix),
        ("ffn_up_exps.weight", vec![width, hidden, EXPERTS], quant.matrix),
        ("ffn_down_exps.weight", vec![hidden, width, EXPERTS], quant.sensitive),
        ("ffn_gate_shexp.weight", vec![width, hidden], quant.matrix),
        ("ffn_up_shexp.weight", vec![width, hidden], quant.matrix),
        ("ffn_down_shexp.weight", vec![hidden, width], quant.sensitive),
    ]
}

/// Metadata in addition to what all shapes have.
pub(crate) fn write_metadata(writer: &mut Writer, shape: &ModelShape) {
    let key = |name: &str| format!("{}.{name}", shape.architecture);
    if shape.mtp_head {
        writer.number(&key("nextn_predict_layers"), 1);
    }
    if shape.architecture == GLM {
        write_later_experts(writer, shape);
    }
}

/// Metadata of [`with_experts`].
pub(super) fn write_later_experts(writer: &mut Writer, shape: &ModelShape) {
    let key = |name: &str| format!("{}.{name}", shape.architecture);
    write_experts(writer, shape);
    writer.number(&key("expert_shared_count"), SHARED);
    writer.number(&key("leading_dense_block_count"), DENSE);
}

/// Metadata of [`experts`].
pub(super) fn write_experts(writer: &mut Writer, shape: &ModelShape) {
    let key = |name: &str| format!("{}.{name}", shape.architecture);
    writer.number(&key("expert_count"), EXPERTS as u32);
    writer.number(&key("expert_used_count"), USED);
    writer.number(&key("expert_feed_forward_length"), shape.hidden as u32);
}
