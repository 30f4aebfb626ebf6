//! PURE. The MTP head in a model file: a layer behind the others that drafts what the model may
//! say.

use crate::model_file::gguf::Header;

/// Architectures whose head llama.cpp computes, as far as it was tried: for others it may abort.
const ARCHITECTURES: &[&str] = &["qwen35", "qwen35moe", "glm4moe"];

/// Layers of the head.
fn layers(header: &Header) -> u64 {
    header.number("nextn_predict_layers").unwrap_or(0)
}

/// Layers of the model itself, which come first.
pub(crate) fn model_layers(header: &Header) -> u64 {
    header.number("block_count").unwrap_or(0).saturating_sub(layers(header))
}

/// True if a tensor belongs to an MTP head, used or not.
pub(crate) fn has_tensor(header: &Header, name: &str) -> bool {
    let layer = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
    let layer = layer.and_then(|number| number.parse().ok());
    layers(header) > 0 && layer.is_some_and(|layer: u64| layer >= model_layers(header))
}

/// True if the file has one head that can be used. Files may announce one that was left out when
/// they were written.
pub fn is_usable(header: &Header) -> bool {
    let joins = format!("blk.{}.nextn.eh_proj.weight", model_layers(header));
    ARCHITECTURES.contains(&header.architecture.as_str())
        && layers(header) == 1
        && header.tensor_list.iter().any(|tensor| tensor.name == joins)
}
