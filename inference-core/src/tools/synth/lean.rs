//! Models whose sequences cannot share cells: sliding windows (Gemma 2), and recurrent states
//! beside attention (Jamba).

use super::{F32, ModelShape, Quant};
use crate::model_file::gguf::write::Writer;

/// Architecture of the shapes with windows: every other layer has one.
pub const WINDOWED: &str = "gemma2";
/// Architecture of the shapes with states: every other layer has one.
pub const HYBRID: &str = "jamba";
/// Tokens of a window.
const WINDOW: u32 = 128;
/// Elements of the state of a channel. Larger than in real models: what sequences cost shows in a
/// small file.
const STATE: u64 = 256;
/// Tokens that the convolution before it sees.
const CONVOLUTION: u64 = 4;
/// Rank of the time steps.
const RANK: u64 = 16;

type Tensors = Vec<(&'static str, Vec<u64>, u32)>;

/// Whether a layer of a hybrid attends.
fn attends(layer: u32) -> bool {
    layer % 2 == 1
}

/// What a layer with a window has beside an ordinary one.
pub fn windowed_tensors(shape: &ModelShape) -> Tensors {
    ["post_attention_norm.weight", "post_ffw_norm.weight"]
        .map(|name| (name, vec![shape.width], F32))
        .to_vec()
}

/// A hybrid's layer: `plain` is what an ordinary one has.
pub fn hybrid_tensors(shape: &ModelShape, quant: &Quant, layer: u32, plain: Tensors) -> Tensors {
    if attends(layer) {
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

/// How fast a state fades: negative, or it would grow without end.
pub fn fading(drawn: f32) -> f32 {
    -drawn.abs() * 25.0
}

/// Metadata beside what all shapes have.
pub fn write_metadata(writer: &mut Writer, shape: &ModelShape) {
    let key = |name: &str| format!("{}.{name}", shape.architecture);
    if shape.architecture == WINDOWED {
        writer.number(&key("attention.sliding_window"), WINDOW);
    }
    if shape.architecture != HYBRID {
        return writer.number(&key("attention.head_count_kv"), shape.kv_heads as u32);
    }
    let heads = |layer| if attends(layer) { shape.kv_heads as i32 } else { 0 };
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
