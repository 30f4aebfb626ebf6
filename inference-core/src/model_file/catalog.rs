//! PURE. Well-known open models: license, dimensions and the repository of their files. A header
//! made of the dimensions is planned like that of a file, before anything is downloaded.
//!
//! Dimensions are those of the published configurations. Types of tensors follow llama.cpp's rules
//! for each quantization (`llama-quant.cpp`), so that sizes are those of the files within a few
//! percent.

use crate::model_file::gguf::{Header, TensorInfo, kinds};

mod table;

pub use table::MODELS;

/// Columns, rows, and the number of experts if the tensor holds several.
type Shape = Vec<u64>;

/// What a model is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Generates text.
    Chat,
    /// Computes embeddings.
    Embeddings,
}

/// A quantization that repositories offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// About 4.9 bits per weight.
    Q4KM,
    /// 8.5 bits per weight.
    Q8,
    /// Experts of 4.25 bits per weight, everything else as in `Q8_0`.
    Mxfp4,
}

impl Quantization {
    /// The name in file names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4KM => "Q4_K_M",
            Self::Q8 => "Q8_0",
            Self::Mxfp4 => "MXFP4",
        }
    }
}

/// Experts of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Experts {
    pub(crate) count: u64,
    pub(crate) used: u64,
    /// Elements inside one.
    pub(crate) hidden: u64,
}

/// A model, as published.
#[derive(Debug, Clone, Copy)]
pub struct KnownModel {
    /// Common name.
    pub name: &'static str,
    /// SPDX identifier, or the name of the license.
    pub license: &'static str,
    /// `owner/repo` of GGUF files on the Hugging Face hub.
    pub repository: &'static str,
    /// Quantizations in that repository.
    pub quantizations: &'static [Quantization],
    /// What it is for.
    pub purpose: Purpose,
    pub(crate) architecture: &'static str,
    pub(crate) layers: u64,
    pub(crate) width: u64,
    pub(crate) hidden: u64,
    pub(crate) heads: u64,
    pub(crate) kv_heads: u64,
    pub(crate) head_width: u64,
    pub(crate) vocabulary: u64,
    /// Context that it was trained for, in tokens.
    pub context_tokens: u32,
    /// The embedding table is also the output matrix.
    pub(crate) is_tied: bool,
    /// The feed-forward block has a gate.
    pub(crate) is_gated: bool,
    /// Tokens of the sliding window; 0 without.
    pub(crate) window: u64,
    pub(crate) experts: Option<Experts>,
}

impl KnownModel {
    /// The header of its file with a quantization, as far as a memory plan reads it.
    pub fn header(&self, quantization: Quantization) -> Header {
        let mut header = Header {
            architecture: self.architecture.into(),
            name: Some(self.name.into()),
            context_tokens: self.context_tokens,
            vocabulary: self.vocabulary,
            // About as many as tokens, if there are any.
            merges: self.vocabulary,
            ..Header::default()
        };
        let mut set = |key: &str, n: u64| {
            header.numbers.insert(format!("{}.{key}", self.architecture), vec![n]);
        };
        set("block_count", self.layers);
        set("embedding_length", self.width);
        set("feed_forward_length", self.hidden);
        set("attention.head_count", self.heads);
        set("attention.head_count_kv", self.kv_heads);
        set("attention.key_length", self.head_width);
        set("attention.value_length", self.head_width);
        if self.window > 0 {
            set("attention.sliding_window", self.window);
        }
        if let Some(experts) = self.experts {
            set("expert_count", experts.count);
            set("expert_used_count", experts.used);
            set("expert_feed_forward_length", experts.hidden);
        }
        let tensors = self.tensors().into_iter().filter_map(|(name, dimensions)| {
            let kind = self.kind_of(&name, *dimensions.first()?, quantization)?;
            Some(TensorInfo { name, dimensions, kind })
        });
        header.tensor_list = tensors.collect();
        header.tensors = header.tensor_list.len() as u64;
        header
    }

    /// Size of its file with a quantization, in bytes.
    pub fn file_bytes(&self, quantization: Quantization) -> u64 {
        let header = self.header(quantization);
        header.tensor_list.iter().filter_map(TensorInfo::bytes).fold(0, u64::saturating_add)
    }

    /// Number of parameters.
    pub fn parameters(&self) -> u64 {
        let elements = |(_, shape): (String, Shape)| shape.iter().product::<u64>();
        self.tensors().into_iter().map(elements).sum()
    }

    /// The matrices; all other tensors are small.
    fn tensors(&self) -> Vec<(String, Shape)> {
        let mut all = vec![("token_embd.weight".to_string(), vec![self.width, self.vocabulary])];
        if !self.is_tied {
            all.push(("output.weight".into(), vec![self.width, self.vocabulary]));
        }
        let (query, kv) = (self.heads * self.head_width, self.kv_heads * self.head_width);
        for layer in 0..self.layers {
            let mut add = |name: &str, shape: Shape| {
                all.push((format!("blk.{layer}.{name}.weight"), shape));
            };
            add("attn_q", vec![self.width, query]);
            add("attn_k", vec![self.width, kv]);
            add("attn_v", vec![self.width, kv]);
            add("attn_output", vec![query, self.width]);
            match self.experts {
                Some(Experts { count, hidden, .. }) => {
                    add("ffn_gate_exps", vec![self.width, hidden, count]);
                    add("ffn_up_exps", vec![self.width, hidden, count]);
                    add("ffn_down_exps", vec![hidden, self.width, count]);
                }
                None => {
                    if self.is_gated {
                        add("ffn_gate", vec![self.width, self.hidden]);
                    }
                    add("ffn_up", vec![self.width, self.hidden]);
                    add("ffn_down", vec![self.hidden, self.width]);
                }
            }
        }
        all
    }

    /// The type of a tensor.
    fn kind_of(&self, name: &str, columns: u64, quantization: Quantization) -> Option<u32> {
        let kind = match quantization {
            Quantization::Q8 => "q8_0",
            Quantization::Mxfp4 if name.contains("_exps.") => "mxfp4",
            Quantization::Mxfp4 => "q8_0",
            Quantization::Q4KM if self.is_important(name) => "q6_k",
            Quantization::Q4KM => "q4_k",
        };
        // Rows that do not fill blocks of 256 get a type with smaller ones.
        let kind = match kind {
            "q4_k" if !columns.is_multiple_of(256) => "q5_0",
            "q6_k" if !columns.is_multiple_of(256) => "q8_0",
            other => other,
        };
        kinds::named(kind).map(|kind| kind.code)
    }

    /// Tensors that `Q4_K_M` keeps more bits of: the output matrix, and in half of the layers the
    /// values and the feed-forward block's way down.
    fn is_important(&self, name: &str) -> bool {
        if name == "output.weight" || self.is_tied && name == "token_embd.weight" {
            return self.purpose == Purpose::Chat;
        }
        let mut parts = name.split('.');
        let layer = parts.nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        let (eighth, rest) = (self.layers / 8, layer.saturating_sub(self.layers / 8));
        let half = layer < eighth || layer >= 7 * self.layers / 8 || rest % 3 == 2;
        half && (name.contains("attn_v") || name.contains("ffn_down"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_file::memory_plan::weights::Repacking;
    use crate::model_file::memory_plan::{MachineFacts, RequestedSettings, plan};

    fn known(name: &str) -> &'static KnownModel {
        MODELS.iter().find(|model| model.name == name).unwrap()
    }

    #[test]
    fn models_have_the_published_number_of_parameters() {
        for (name, billions) in [
            ("Qwen2.5-0.5B-Instruct", 0.49),
            ("Qwen2.5-1.5B-Instruct", 1.54),
            ("Qwen2.5-7B-Instruct", 7.62),
            ("Qwen3-0.6B", 0.60),
            ("Qwen3-1.7B", 1.72),
            ("Qwen3-4B", 4.02),
            ("Qwen3-8B", 8.19),
            ("Qwen3-14B", 14.8),
            ("Qwen3-30B-A3B", 30.5),
            ("Llama-3.2-1B-Instruct", 1.24),
            ("Llama-3.2-3B-Instruct", 3.21),
            ("Llama-3.1-8B-Instruct", 8.03),
            ("Gemma-3-1B-it", 1.0),
            ("Gemma-3-4B-it", 3.88),
            ("Gemma-3-12B-it", 11.8),
            ("Phi-4-mini-instruct", 3.84),
            ("SmolLM2-360M-Instruct", 0.362),
            ("SmolLM2-1.7B-Instruct", 1.71),
            ("SmolLM3-3B", 3.08),
            ("Mistral-7B-Instruct-v0.3", 7.25),
            ("gpt-oss-20b", 20.9),
            ("bge-m3", 0.567),
            ("nomic-embed-text-v1.5", 0.137),
        ] {
            let counted = known(name).parameters() as f64 / 1e9;
            assert!((counted / billions - 1.0).abs() < 0.02, "{name}: {counted}");
        }
        assert_eq!(MODELS.len(), 23, "every model is in the list above");
    }

    #[test]
    fn files_have_about_the_published_sizes() {
        for (name, quantization, gigabytes) in [
            ("Qwen2.5-1.5B-Instruct", Quantization::Q4KM, 0.986),
            ("Llama-3.2-1B-Instruct", Quantization::Q8, 1.32),
            ("Llama-3.1-8B-Instruct", Quantization::Q4KM, 4.92),
            ("Llama-3.1-8B-Instruct", Quantization::Q8, 8.54),
            ("Mistral-7B-Instruct-v0.3", Quantization::Q4KM, 4.37),
            ("gpt-oss-20b", Quantization::Mxfp4, 12.1),
        ] {
            let computed = known(name).file_bytes(quantization) as f64 / 1e9;
            assert!((computed / gigabytes - 1.0).abs() < 0.05, "{name}: {computed}");
        }
    }

    #[test]
    fn every_model_can_be_planned_with_each_of_its_quantizations() {
        let facts = MachineFacts {
            available_bytes: 1 << 40,
            lockable_bytes: None,
            threads: 8,
            repacking: Repacking::Avx512,
            bandwidth: Some(50e9),
            prefill_rate: None,
        };
        for model in MODELS {
            assert!(!model.quantizations.is_empty() && model.repository.split('/').count() == 2);
            for quantization in model.quantizations {
                let header = model.header(*quantization);
                let plan = plan(&header, &facts, &RequestedSettings::default()).unwrap();
                assert!(plan.known_architecture && plan.fits, "{}", model.name);
                assert_eq!(plan.context_tokens, u64::from(model.context_tokens));
                assert_eq!(plan.embeds, model.purpose == Purpose::Embeddings, "{}", model.name);
                assert!(plan.decode_estimate.unwrap() > 1.0);
            }
        }
    }

    #[test]
    fn experts_that_are_not_used_cost_memory_but_no_time() {
        let speed = |name: &str, quantization| {
            let facts = MachineFacts {
                available_bytes: 1 << 40,
                lockable_bytes: None,
                threads: 8,
                repacking: Repacking::Off,
                bandwidth: Some(50e9),
                prefill_rate: None,
            };
            let header = known(name).header(quantization);
            plan(&header, &facts, &RequestedSettings::default()).unwrap().decode_estimate.unwrap()
        };
        let mixture = speed("Qwen3-30B-A3B", Quantization::Q4KM);
        assert!(mixture > 3.0 * speed("Qwen3-14B", Quantization::Q4KM), "{mixture}");
    }
}
