//! Models with multi-head latent attention, which keep one latent for the keys and values of all
//! heads (DeepSeek-V3, GLM-4.7-Flash), and experts.

use super::{F32, ModelShape, Quant, Tensors, mtp};
use crate::model_file::gguf::write::Writer;

/// Architecture of these shapes.
pub(super) const MLA: &str = "deepseek2";
/// Width below which a shape is small.
const SMALL_WIDTH: u64 = 512;

/// Widths beside those of a shape.
struct Widths {
    /// Of the latents that queries, and keys and values, are made of.
    query_latent: u64,
    latent: u64,
    /// The part of a head's width that has rotary positions; keys of all heads share it.
    rotary: u64,
}

/// Those of small shapes, and of the others, as in GLM-4.7-Flash.
fn widths(shape: &ModelShape) -> Widths {
    match shape.width < SMALL_WIDTH {
        true => Widths { query_latent: 128, latent: 256, rotary: 32 },
        false => Widths { query_latent: 768, latent: 512, rotary: 64 },
    }
}

/// Tensors of a layer; `plain` are those of an ordinary one.
pub(super) fn tensors(shape: &ModelShape, quant: &Quant, layer: u32, plain: Tensors) -> Tensors {
    let ModelShape { width, heads, head_width, .. } = *shape;
    let Widths { query_latent, latent, rotary } = widths(shape);
    let is_attention = |name: &str| name.starts_with("attn_") && name != "attn_norm.weight";
    let mut all: Tensors = plain.into_iter().filter(|(name, ..)| !is_attention(name)).collect();
    all = mtp::with_experts(shape, quant, layer, all);
    all.extend([
        ("attn_q_a.weight", vec![width, query_latent], quant.matrix),
        ("attn_q_a_norm.weight", vec![query_latent], F32),
        ("attn_q_b.weight", vec![query_latent, heads * head_width], quant.matrix),
        ("attn_kv_a_mqa.weight", vec![width, latent + rotary], quant.matrix),
        ("attn_kv_a_norm.weight", vec![latent], F32),
        ("attn_k_b.weight", vec![head_width - rotary, latent, heads], quant.matrix),
        ("attn_v_b.weight", vec![latent, head_width - rotary, heads], quant.matrix),
        ("attn_output.weight", vec![heads * (head_width - rotary), width], quant.matrix),
    ]);
    all
}

/// Metadata in addition to what all shapes have.
pub(super) fn write_metadata(writer: &mut Writer, shape: &ModelShape) {
    mtp::write_later_experts(writer, shape);
    let Widths { query_latent, latent, rotary } = widths(shape);
    let numbers = [
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.q_lora_rank", query_latent),
        ("attention.kv_lora_rank", latent),
        ("attention.key_length", latent + rotary),
        ("attention.value_length", latent),
        ("attention.key_length_mla", shape.head_width),
        ("attention.value_length_mla", shape.head_width - rotary),
        ("rope.dimension_count", rotary),
    ];
    for (name, number) in numbers {
        writer.number(&format!("{}.{name}", shape.architecture), number as u32);
    }
}
