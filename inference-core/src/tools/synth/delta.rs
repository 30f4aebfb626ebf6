//! Models with gated delta nets, which have a recurrent state, in three of four layers (Qwen3.5,
//! and Qwen3-Next before it).

use super::{F32, ModelShape, Quant, Tensors, mtp};
use crate::model_file::gguf::write::Writer;

/// Architecture of these shapes, and of those with experts.
const DELTA: &str = "qwen35";
const WITH_EXPERTS: [&str; 2] = ["qwen35moe", NEXT];
/// Here, one matrix has both rates of each head.
const NEXT: &str = "qwen3next";
/// One of so many layers has attention, the last one.
const INTERVAL: u32 = 4;
/// Width of a head of the delta net, and of its state.
const HEAD: u64 = 128;
/// Width of the convolution before it, in tokens.
const CONVOLUTION: u64 = 4;
/// A part of a head's width that has rotary positions.
const ROTARY_PART: u64 = 4;

/// Heads of the delta net, of keys and values alike.
fn heads(shape: &ModelShape) -> u64 {
    2 * shape.width / HEAD
}

/// True for these shapes.
pub(crate) fn has(shape: &ModelShape) -> bool {
    shape.architecture == DELTA || has_experts(shape)
}

fn has_experts(shape: &ModelShape) -> bool {
    WITH_EXPERTS.contains(&shape.architecture)
}

/// Tensors of a layer; `sensitive` is the type of those that matter most.
pub(crate) fn tensors(shape: &ModelShape, quant: &Quant, layer: u32, sensitive: u32) -> Tensors {
    let ModelShape { width, hidden, .. } = *shape;
    let mut all = vec![
        ("attn_norm.weight", vec![width], F32),
        ("post_attention_norm.weight", vec![width], F32),
    ];
    if has_experts(shape) {
        all.extend(mtp::experts(shape, quant));
        all.push(("ffn_gate_inp_shexp.weight", vec![width], F32));
    } else {
        all.extend([
            ("ffn_gate.weight", vec![width, hidden], quant.matrix),
            ("ffn_up.weight", vec![width, hidden], quant.matrix),
            ("ffn_down.weight", vec![hidden, width], sensitive),
        ]);
    }
    // An MTP head comes last.
    if (layer + 1).is_multiple_of(INTERVAL) || layer == shape.layers {
        all.extend(attention(shape, quant, sensitive));
    } else {
        all.extend(delta_net(shape, quant));
    }
    all
}

/// A query has a gate as wide as itself.
fn attention(shape: &ModelShape, quant: &Quant, sensitive: u32) -> Tensors {
    let ModelShape { width, head_width, .. } = *shape;
    let (q, kv) = (shape.heads * head_width, shape.kv_heads * head_width);
    vec![
        ("attn_q.weight", vec![width, 2 * q], quant.matrix),
        ("attn_k.weight", vec![width, kv], quant.matrix),
        ("attn_v.weight", vec![width, kv], sensitive),
        ("attn_output.weight", vec![q, width], quant.matrix),
        ("attn_q_norm.weight", vec![head_width], F32),
        ("attn_k_norm.weight", vec![head_width], F32),
    ]
}

fn delta_net(shape: &ModelShape, quant: &Quant) -> Tensors {
    let (width, heads) = (shape.width, heads(shape));
    let inner = heads * HEAD;
    let rates: Tensors = match shape.architecture {
        NEXT => vec![("ssm_ba.weight", vec![width, 2 * heads], quant.matrix)],
        _ => ["ssm_beta.weight", "ssm_alpha.weight"]
            .map(|name| (name, vec![width, heads], quant.matrix))
            .to_vec(),
    };
    let first = vec![
        ("attn_qkv.weight", vec![width, 3 * inner], quant.matrix),
        ("attn_gate.weight", vec![width, inner], quant.matrix),
        ("ssm_conv1d.weight", vec![CONVOLUTION, 3 * inner], F32),
        ("ssm_dt.bias", vec![heads], F32),
        ("ssm_a", vec![heads], F32),
    ];
    let last = vec![
        ("ssm_norm.weight", vec![HEAD], F32),
        ("ssm_out.weight", vec![inner, width], quant.matrix),
    ];
    [first, rates, last].concat()
}

/// Metadata in addition to what all shapes have.
pub(crate) fn write_metadata(writer: &mut Writer, shape: &ModelShape) {
    let key = |name: &str| format!("{}.{name}", shape.architecture);
    if has_experts(shape) {
        mtp::write_experts(writer, shape);
        writer.number(&key("expert_shared_feed_forward_length"), shape.hidden as u32);
    }
    let (heads, rotary) = (heads(shape), shape.head_width / ROTARY_PART);
    for (name, size) in [
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head_width),
        ("attention.value_length", shape.head_width),
        ("full_attention_interval", INTERVAL.into()),
        ("rope.dimension_count", rotary),
        ("ssm.conv_kernel", CONVOLUTION),
        ("ssm.inner_size", heads * HEAD),
        ("ssm.state_size", HEAD),
        ("ssm.time_step_rank", heads),
        ("ssm.group_count", heads),
    ] {
        writer.number(&key(name), size as u32);
    }
    if shape.architecture == NEXT {
        return;
    }
    // Positions of text are the same in all sections.
    let rest = (rotary / 2) as i32;
    writer
        .numbers(&key("rope.dimension_sections"), &[rest - 2 * (rest / 3), rest / 3, rest / 3, 0]);
}
