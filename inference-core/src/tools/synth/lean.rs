//! Models whose sequences cannot share KV cells: sliding windows (Gemma 2), and recurrent states
//! besides attention (Jamba).

use super::{F32, ModelShape, Quant, Tensors};
use crate::model_file::gguf::write::Writer;

/// Architecture of the shapes with sliding windows, in every other layer.
pub(crate) const WINDOWED: &str = "gemma2";
/// Architecture of the shapes with recurrent states, in every other layer.
pub(crate) const HYBRID: &str = "jamba";
/// Tokens of the sliding window of small shapes, and of the others, as in Gemma 3 1B.
const WINDOWS: [u32; 2] = [128, 512];
/// Width below which a shape is small.
const SMALL_WIDTH: u64 = 512;
/// Elements of the recurrent state per channel. Larger than in real models, so that the cost of
/// sequences shows in a small file.
const STATE: u64 = 256;
/// Width of the convolution before it, in tokens.
const CONVOLUTION: u64 = 4;
/// Rank of the time steps.
const RANK: u64 = 16;

/// True if a layer of a hybrid model has attention.
fn has_attention(layer: u32) -> bool {
    layer % 2 == 1
}

/// Tensors that a layer with a sliding window has in addition to an ordinary one.
pub(crate) fn windowed_tensors(shape: &ModelShape) -> Tensors {
    ["post_attention_norm.weight", "post_ffw_norm.weight"]
        .map(|name| (name, vec![shape.width], F32))
        .to_vec()
}

/// Tensors of a hybrid model's layer; `plain` are those of an ordinary one.
pub(crate) fn hybrid_tensors(
    shape: &ModelShape,
    quant: &Quant,
    layer: u32,
    plain: Tensors,
) -> Tensors {
    if has_attention(layer) {
        return plain;
    }
    let (width, inner) = (shape.width, 2 * shape.width);
    let is_attention = |name: &str| name.starts_with("attn_") && name != "attn_norm.weight";
    let mut all: Tensors = plain.into_iter().filter(|(name, ..)| !is_attention(name)).collect();
    all.extend([
        ("ssm_in.weight", vec![width, 2 * inner], quant.matrix),
        ("ssm_conv1d.weight", vec![CONVOLUTION, inner], F32),
        ("ssm_conv1d.bias", vec![inner], F32),
        ("ssm_x.weight", vec![inner, RANK + 2 * STATE], quant.matrix),
        ("ssm_dt_norm.weight", vec![RANK], F32),
        ("ssm_dt.weight", vec![RANK, inner], F32),
        ("ssm_dt.bias", vec![inner], F32),
        ("ssm_b_norm.weight", vec![STATE], F32),
        ("ssm_c_norm.weight", vec![STATE], F32),
        ("ssm_a", vec![STATE, inner], F32),
        ("ssm_d", vec![inner], F32),
        ("ssm_out.weight", vec![inner, width], quant.matrix),
    ]);
    all
}

/// Decay rate of the state: negative, or the state would grow without limit.
pub(crate) fn fading(drawn: f32) -> f32 {
    -drawn.abs() * 25.0
}

/// Metadata in addition to what all shapes have.
pub(crate) fn write_metadata(writer: &mut Writer, shape: &ModelShape) {
    let key = |name: &str| format!("{}.{name}", shape.architecture);
    if shape.architecture == WINDOWED {
        let window = WINDOWS[usize::from(shape.width >= SMALL_WIDTH)];
        writer.number(&key("attention.sliding_window"), window);
    }
    if shape.architecture != HYBRID {
        return writer.number(&key("attention.head_count_kv"), shape.kv_heads as u32);
    }
    let heads = |layer| if has_attention(layer) { shape.kv_heads as i32 } else { 0 };
    let heads: Vec<i32> = (0..shape.layers).map(heads).collect();
    writer.numbers(&key("attention.head_count_kv"), &heads);
    for (name, size) in [
        ("ssm.conv_kernel", CONVOLUTION),
        ("ssm.inner_size", 2 * shape.width),
        ("ssm.state_size", STATE),
        ("ssm.time_step_rank", RANK),
    ] {
        writer.number(&key(name), size as u32);
    }
}
