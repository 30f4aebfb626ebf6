//! The table of models. Dimensions: the `config.json` of each model's original repository.

use super::{Experts, KnownModel, Purpose, Quantization};
use Quantization::{Mxfp4, Q4KM, Q8};

/// A gated transformer without windows, whose embedding table is also the output matrix.
const PLAIN: KnownModel = KnownModel {
    name: "",
    license: "Apache-2.0",
    repository: "",
    quantizations: &[Q4KM, Q8],
    purpose: Purpose::Chat,
    architecture: "llama",
    layers: 0,
    width: 0,
    hidden: 0,
    heads: 0,
    kv_heads: 0,
    head_width: 128,
    vocabulary: 0,
    context_tokens: 0,
    is_tied: true,
    is_gated: true,
    window: 0,
    experts: None,
};
const QWEN2: KnownModel =
    KnownModel { architecture: "qwen2", vocabulary: 151_936, context_tokens: 32_768, ..PLAIN };
const QWEN3: KnownModel =
    KnownModel { architecture: "qwen3", vocabulary: 151_936, context_tokens: 40_960, ..PLAIN };
const LLAMA3: KnownModel = KnownModel {
    license: "Llama 3 Community",
    vocabulary: 128_256,
    context_tokens: 131_072,
    ..PLAIN
};
const GEMMA3: KnownModel = KnownModel {
    license: "Gemma",
    architecture: "gemma3",
    head_width: 256,
    vocabulary: 262_208,
    context_tokens: 131_072,
    window: 1024,
    ..PLAIN
};

macro_rules! model {
    ($base:ident, $name:literal, $repository:literal,
     [$layers:literal, $width:literal, $hidden:literal, $heads:literal, $kv_heads:literal]
     $(, $field:ident: $value:expr)*) => {
        KnownModel {
            name: $name,
            repository: $repository,
            layers: $layers,
            width: $width,
            hidden: $hidden,
            heads: $heads,
            kv_heads: $kv_heads,
            $($field: $value,)*
            ..$base
        }
    };
}

/// Well-known open models with GGUF files on the hub.
pub const MODELS: &[KnownModel] = &[
    model!(QWEN2, "Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct-GGUF",
        [24, 896, 4864, 14, 2], head_width: 64),
    model!(
        QWEN2,
        "Qwen2.5-1.5B-Instruct",
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF",
        [28, 1536, 8960, 12, 2]
    ),
    model!(QWEN2, "Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-7B-Instruct-GGUF",
        [28, 3584, 18944, 28, 4], vocabulary: 152_064, is_tied: false),
    model!(QWEN3, "Qwen3-0.6B", "Qwen/Qwen3-0.6B-GGUF",
        [28, 1024, 3072, 16, 8], quantizations: &[Q8]),
    model!(QWEN3, "Qwen3-1.7B", "Qwen/Qwen3-1.7B-GGUF",
        [28, 2048, 6144, 16, 8], quantizations: &[Q8]),
    model!(QWEN3, "Qwen3-4B", "Qwen/Qwen3-4B-GGUF", [36, 2560, 9728, 32, 8]),
    model!(QWEN3, "Qwen3-8B", "Qwen/Qwen3-8B-GGUF", [36, 4096, 12288, 32, 8], is_tied: false),
    model!(QWEN3, "Qwen3-14B", "Qwen/Qwen3-14B-GGUF", [40, 5120, 17408, 40, 8], is_tied: false),
    model!(QWEN3, "Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B-GGUF", [48, 2048, 6144, 32, 4],
        architecture: "qwen3moe", is_tied: false,
        experts: Some(Experts { count: 128, used: 8, hidden: 768 })),
    model!(LLAMA3, "Llama-3.2-1B-Instruct", "bartowski/Llama-3.2-1B-Instruct-GGUF",
        [16, 2048, 8192, 32, 8], head_width: 64),
    model!(
        LLAMA3,
        "Llama-3.2-3B-Instruct",
        "bartowski/Llama-3.2-3B-Instruct-GGUF",
        [28, 3072, 8192, 24, 8]
    ),
    model!(LLAMA3, "Llama-3.1-8B-Instruct", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
        [32, 4096, 14336, 32, 8], is_tied: false),
    model!(GEMMA3, "Gemma-3-1B-it", "ggml-org/gemma-3-1b-it-GGUF",
        [26, 1152, 6912, 4, 1], vocabulary: 262_144, context_tokens: 32_768, window: 512),
    model!(GEMMA3, "Gemma-3-4B-it", "ggml-org/gemma-3-4b-it-GGUF", [34, 2560, 10240, 8, 4]),
    model!(GEMMA3, "Gemma-3-12B-it", "ggml-org/gemma-3-12b-it-GGUF", [48, 3840, 15360, 16, 8]),
    model!(PLAIN, "Phi-4-mini-instruct", "bartowski/microsoft_Phi-4-mini-instruct-GGUF",
        [32, 3072, 8192, 24, 8], license: "MIT", architecture: "phi3",
        vocabulary: 200_064, context_tokens: 131_072),
    model!(PLAIN, "SmolLM2-360M-Instruct", "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
        [32, 960, 2560, 15, 5], head_width: 64, quantizations: &[Q8],
        vocabulary: 49_152, context_tokens: 8192),
    model!(PLAIN, "SmolLM2-1.7B-Instruct", "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
        [24, 2048, 8192, 32, 32], head_width: 64, quantizations: &[Q4KM],
        vocabulary: 49_152, context_tokens: 8192),
    model!(PLAIN, "SmolLM3-3B", "ggml-org/SmolLM3-3B-GGUF",
        [36, 2048, 11008, 16, 4], architecture: "smollm3",
        vocabulary: 128_256, context_tokens: 65_536),
    model!(PLAIN, "Mistral-7B-Instruct-v0.3", "bartowski/Mistral-7B-Instruct-v0.3-GGUF",
        [32, 4096, 14336, 32, 8], vocabulary: 32_768, context_tokens: 32_768, is_tied: false),
    model!(PLAIN, "gpt-oss-20b", "ggml-org/gpt-oss-20b-GGUF", [24, 2880, 2880, 64, 8],
        architecture: "gpt-oss", quantizations: &[Mxfp4], head_width: 64, is_tied: false,
        vocabulary: 201_088, context_tokens: 131_072, window: 128,
        experts: Some(Experts { count: 32, used: 4, hidden: 2880 })),
    model!(PLAIN, "bge-m3", "gpustack/bge-m3-GGUF", [24, 1024, 4096, 16, 16],
        license: "MIT", purpose: Purpose::Embeddings, architecture: "bert", head_width: 64,
        vocabulary: 250_002, context_tokens: 8192, is_gated: false),
    model!(PLAIN, "nomic-embed-text-v1.5", "nomic-ai/nomic-embed-text-v1.5-GGUF",
        [12, 768, 3072, 12, 12], purpose: Purpose::Embeddings, architecture: "nomic-bert",
        head_width: 64, vocabulary: 30_522, context_tokens: 2048),
];
