//! PURE. The MTP head in a model file: a layer behind the others that drafts what the model may
//! say.

use crate::model_file::gguf::Header;

/// Architectures whose head llama.cpp computes, as far as it was tried: for others it may abort.
const ARCHITECTURES: &[&str] = &["qwen35", "qwen35moe", "qwen3next", "glm4moe", LATENT];

/// One of them, whose head must have latents of queries, keys and values, as GLM-4.7-Flash has.
const LATENT: &str = "deepseek2";

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
    let has = |key: &str| header.number(key).is_some_and(|number| number > 0);
    let latent = has("attention.key_length_mla") && has("attention.q_lora_rank");
    ARCHITECTURES.contains(&header.architecture.as_str())
        && layers(header) == 1
        && (latent || header.architecture != LATENT)
        && header.tensor_list.iter().any(|tensor| tensor.name == joins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_file::gguf::read_header;
    use crate::tools::synth::{QUANTS, SHAPES, Synth};

    fn header(shape: &str) -> Header {
        let shape = SHAPES.iter().find(|known| known.name == shape).unwrap();
        let mut file = Vec::new();
        Synth::new(shape, &QUANTS[1]).unwrap().write(&mut file, |_| {}).unwrap();
        read_header(&file[..], file.len() as u64).unwrap()
    }

    #[test]
    fn a_head_is_used_if_it_is_the_only_one_and_in_the_file() {
        let whole = header("tiny-delta-mtp");
        assert!(is_usable(&whole) && is_usable(&header("tiny-glm-mtp")));
        assert!(is_usable(&header("tiny-mla-mtp")));
        assert!(!is_usable(&header("tiny-delta")));
        let key = "nextn_predict_layers";
        let changed = |change: &dyn Fn(&mut Header)| {
            let mut header = whole.clone();
            change(&mut header);
            header
        };
        for number in [0, 2, u64::MAX] {
            let several = changed(&|header| {
                let (name, _) =
                    header.numbers.iter().find(|(name, _)| name.ends_with(key)).unwrap();
                let name = name.clone();
                header.numbers.insert(name, vec![number]);
            });
            assert!(!is_usable(&several), "{number} layers");
        }
        let latent = |key: &str| {
            let mut header = header("tiny-mla-mtp");
            header.numbers.retain(|name, _| !name.ends_with(key));
            is_usable(&header)
        };
        assert!(latent("nothing"));
        assert!(!latent("key_length_mla") && !latent("q_lora_rank"), "llama.cpp would abort");
        let other = changed(&|header| header.architecture = "qwen36".into());
        assert!(!is_usable(&other), "nobody has tried it");
        let left_out = changed(&|header| {
            header.tensor_list.retain(|tensor| !has_tensor(&whole, &tensor.name))
        });
        assert!(!is_usable(&left_out), "it was left out when the file was written");
    }

    #[test]
    fn tensors_of_the_last_layer_are_those_of_the_head() {
        let header = header("tiny-delta-mtp");
        let of_head = |name| has_tensor(&header, name);
        assert!(of_head("blk.4.nextn.enorm.weight") && of_head("blk.4.attn_q.weight"));
        assert!(!of_head("blk.3.attn_q.weight") && !of_head("output_norm.weight"));
        assert!(!of_head("blk.x.attn_q.weight") && !of_head("blk."));
        assert!(!has_tensor(&self::header("tiny-delta"), "blk.9.attn_q.weight"));
    }
}
