//! Models with multi-head latent attention, which keep one latent for the keys and values of all
//! heads (DeepSeek-V3, GLM-4.7-Flash), and experts.

use super::{F32, ModelShape, Quant, Tensors, mtp};
use crate::model_file::gguf::write::Writer;

/// Architecture of these shapes.
pub(super) const MLA: &str = "deepseek2";
/// Width of the latents that queries, and keys and values, are made of.
const QUERY_LATENT: u64 = 128;
const LATENT: u64 = 256;
/// The part of a head's width that has rotary positions; keys of all heads share it.
const ROTARY: u64 = 32;

/// Tensors of a layer; `plain` are those of an ordinary one.
pub(super) fn tensors(shape: &ModelShape, quant: &Quant, layer: u32, plain: Tensors) -> Tensors {
    let ModelShape { width, heads, head_width, .. } = *shape;
    let is_attention = |name: &str| name.starts_with("attn_") && name != "attn_norm.weight";
    let mut all: Tensors = plain.into_iter().filter(|(name, ..)| !is_attention(name)).collect();
    all = mtp::with_experts(shape, quant, layer, all);
    all.extend([
        ("attn_q_a.weight", vec![width, QUERY_LATENT], quant.matrix),
        ("attn_q_a_norm.weight", vec![QUERY_LATENT], F32),
        ("attn_q_b.weight", vec![QUERY_LATENT, heads * head_width], quant.matrix),
        ("attn_kv_a_mqa.weight", vec![width, LATENT + ROTARY], quant.matrix),
        ("attn_kv_a_norm.weight", vec![LATENT], F32),
        ("attn_k_b.weight", vec![head_width - ROTARY, LATENT, heads], quant.matrix),
        ("attn_v_b.weight", vec![LATENT, head_width - ROTARY, heads], quant.matrix),
        ("attn_output.weight", vec![heads * (head_width - ROTARY), width], quant.matrix),
    ]);
    all
}

/// Metadata in addition to what all shapes have.
pub(super) fn write_metadata(writer: &mut Writer, shape: &ModelShape) {
    mtp::write_later_experts(writer, shape);
    let numbers = [
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.q_lora_rank", QUERY_LATENT),
        ("attention.kv_lora_rank", LATENT),
        ("attention.key_length", LATENT + ROTARY),
        ("attention.value_length", LATENT),
        ("attention.key_length_mla", shape.head_width),
        ("attention.value_length_mla", shape.head_width - ROTARY),
        ("rope.dimension_count", ROTARY),
    ];
    for (name, number) in numbers {
        writer.number(&format!("{}.{name}", shape.architecture), number as u32);
    }
}
