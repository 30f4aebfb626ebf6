//! PURE. The table itself, sorted by field.

use super::Api::{LlamaServer, Ollama, OpenAi, Vllm};
use super::{Endpoint, Unsupported};

const CHAT: &[Endpoint] = &[Endpoint::Chat];
const TEXT: &[Endpoint] = &[Endpoint::Completions];
const BOTH: &[Endpoint] = &[Endpoint::Chat, Endpoint::Completions];
const EMBED: &[Endpoint] = &[Endpoint::Embeddings];
const RERANK: &[Endpoint] = &[Endpoint::Rerank];
const ALL: &[Endpoint] = &Endpoint::ALL;

/// Defines rows on two lines; rustfmt would spread each over nine.
macro_rules! rows {
    ($($field:literal $from:tt at $at:ident, neutral $neutral:tt, refused $refused:literal:
        $instead:literal;)*) => {
        &[$(Unsupported {
            field: $field,
            from: &$from,
            at: $at,
            neutral: &$neutral,
            refused: $refused,
            instead: $instead,
        }),*]
    };
}

/// Every field that is rejected. See the parent module.
pub const UNSUPPORTED: &[Unsupported] = rows! {
    "adaptive_target" [LlamaServer] at BOTH, neutral ["-1"], refused "0.5":
        "use temperature, top_p or min_p";
    "add_special_tokens" [Vllm] at TEXT, neutral ["true"], refused "false":
        "the prompt gets the tokens that the model expects; send its token ids as prompt";
    "audio" [OpenAi] at CHAT, neutral [], refused r#"{"voice":"alloy","format":"wav"}"#:
        "responses are text";
    "best_of" [OpenAi, Vllm] at CHAT, neutral ["1"], refused "2":
        "use n and choose among the choices";
    "context" [Ollama] at BOTH, neutral ["[]"], refused "[1,2]":
        "send the whole conversation in messages, or its tokens as prompt";
    "dynatemp_range" [LlamaServer] at BOTH, neutral ["0"], refused "0.5":
        "use temperature";
    "echo" [Vllm] at CHAT, neutral ["false"], refused "true":
        "a chat response holds only what was generated";
    "embd_normalize" [LlamaServer] at EMBED, neutral ["2"], refused "-1":
        "embeddings have the Euclidean length 1; scale them yourself";
    "embed_dtype" [Vllm] at EMBED, neutral ["\"float32\""], refused "\"float16\"":
        "embeddings are 32-bit floats; encoding_format chooses between numbers and base64";
    "endianness" [Vllm] at EMBED, neutral ["\"native\"", "\"little\""], refused "\"big\"":
        "base64 embeddings are little-endian";
    "extra_body" [OpenAi, Vllm] at ALL, neutral ["{}"], refused r#"{"guided_regex":"a+"}"#:
        "it is an argument of SDKs; put its members at the top level of the body";
    "format" [Ollama] at BOTH, neutral ["\"\""], refused "\"json\"":
        "use response_format";
    "function_call" [OpenAi] at BOTH, neutral ["\"none\""], refused "\"auto\"":
        "use tools and tool_choice";
    "functions" [OpenAi] at BOTH, neutral ["[]"], refused r#"[{"name":"f"}]"#:
        "use tools and tool_choice";
    "grammar_lazy" [LlamaServer] at BOTH, neutral ["false"], refused "true":
        "a grammar applies from the first token on";
    "grammar_triggers" [LlamaServer] at BOTH, neutral ["[]"], refused r#"[{"type":1,"value":"x"}]"#:
        "a grammar applies from the first token on";
    "guided_decoding_backend" [Vllm] at BOTH, neutral ["\"auto\"", "\"guidance\""],
        refused "\"xgrammar:no-fallback\"":
        "llguidance enforces every constraint; leave it out";
    "guided_whitespace_pattern" [Vllm] at BOTH, neutral [], refused r#""[ ]?""#:
        "use grammar or guided_regex to say where whitespace may be";
    "image_data" [LlamaServer] at BOTH, neutral ["[]"], refused r#"[{"data":"aGk=","id":1}]"#:
        "prompts are text";
    "images" [Ollama] at BOTH, neutral ["[]"], refused r#"["aGk="]"#:
        "prompts are text";
    "include_reasoning" [Vllm] at CHAT, neutral ["true"], refused "false":
        "ignore reasoning_content, or ask for less with reasoning_effort";
    "include_stop_str_in_output" [Vllm] at BOTH, neutral ["false"], refused "true":
        "append the stop string yourself";
    "instructions" [OpenAi] at BOTH, neutral ["\"\""], refused r#""Be brief.""#:
        "send a message with the role system";
    "length_penalty" [Vllm] at BOTH, neutral ["1"], refused "2":
        "it belongs to beam search; say in the prompt how long a response should be";
    "logits_processors" [Vllm] at BOTH, neutral ["[]"], refused r#"["p"]"#:
        "use logit_bias or a grammar";
    "logprob_token_ids" [Vllm] at BOTH, neutral ["[]"], refused "[5]":
        "use top_logprobs";
    "lora" [LlamaServer] at BOTH, neutral ["[]"], refused r#"[{"id":0,"scale":1}]"#:
        "serve a model file with the adapter merged into it";
    "max_completion_tokens" [OpenAi] at TEXT, neutral [], refused "5":
        "use max_tokens with this endpoint";
    "max_output_tokens" [OpenAi] at BOTH, neutral [], refused "5":
        "use max_tokens";
    "max_tokens_per_doc" [Vllm] at RERANK, neutral ["0"], refused "64":
        "shorten the documents yourself";
    "max_tokens_per_query" [Vllm] at RERANK, neutral ["0"], refused "64":
        "shorten the query yourself";
    "min_keep" [LlamaServer] at BOTH, neutral ["0", "1"], refused "5":
        "use a higher top_p or top_k, or a lower min_p";
    "mirostat" [LlamaServer, Ollama] at BOTH, neutral ["0"], refused "2":
        "use temperature, top_p or min_p";
    "modalities" [OpenAi] at CHAT, neutral ["[\"text\"]", "[]"], refused r#"["text","audio"]"#:
        "responses are text";
    "moderation" [OpenAi] at CHAT, neutral [], refused r#"{"model":"omni-moderation-latest"}"#:
        "nothing here moderates; ask a moderation service yourself";
    "normalize" [Vllm] at EMBED, neutral ["true"], refused "false":
        "embeddings have the Euclidean length 1";
    "num_ctx" [Ollama] at ALL, neutral [], refused "4096":
        "the agent's --context-tokens sets how many tokens a request may have";
    "num_predict" [Ollama] at BOTH, neutral ["-1"], refused "64":
        "use max_tokens";
    "options" [Ollama] at ALL, neutral ["{}"], refused r#"{"temperature":0}"#:
        "put its members at the top level of the body, num_predict as max_tokens";
    "parse_tool_calls" [LlamaServer] at CHAT, neutral ["true"], refused "false":
        "set tool_choice to none";
    "post_sampling_probs" [LlamaServer] at BOTH, neutral ["false"], refused "true":
        "logprobs are those before any sampling parameter applies";
    "preserved_tokens" [LlamaServer] at BOTH, neutral ["[]"], refused r#"["<x>"]"#:
        "set reasoning_format to none to see a chat's text as the model wrote it";
    "prompt_embeds" [Vllm] at TEXT, neutral [], refused r#""aGk=""#:
        "send a prompt of text or tokens";
    "prompt_logprobs" [Vllm] at BOTH, neutral ["false"], refused "1":
        "/v1/completions has them, with echo and logprobs";
    "raw" [Ollama] at BOTH, neutral ["false"], refused "true":
        "use /v1/completions, which applies no template";
    "reasoning" [OpenAi, Ollama] at CHAT, neutral ["{}"], refused r#"{"effort":"high"}"#:
        "use reasoning_effort";
    "reasoning_control" [LlamaServer] at CHAT, neutral ["false"], refused "true":
        "limit the reasoning with reasoning_budget";
    "reasoning_in_content" [LlamaServer] at CHAT, neutral ["false"], refused "true":
        "set reasoning_format to none";
    "repetition_detection" [Vllm] at BOTH, neutral [], refused r#"{"max_pattern_size":4}"#:
        "use repeat_penalty, frequency_penalty or max_tokens";
    "samplers" [LlamaServer] at BOTH, neutral [
        "[\"penalties\",\"dry\",\"top_n_sigma\",\"top_k\",\"typ_p\",\"top_p\",\"min_p\",\"xtc\",\"temperature\"]",
        "[\"penalties\",\"dry\",\"top_k\",\"typ_p\",\"top_p\",\"min_p\",\"xtc\",\"temperature\"]",
        "[\"penalties\",\"top_k\",\"typ_p\",\"top_p\",\"min_p\",\"temperature\"]",
        "\"edskypmxt\"", "\"edkypmxt\"", "\"ekypmt\""
    ], refused "[\"top_k\",\"temperature\"]":
        "the order of samplers is fixed; turn one off by its own parameter";
    "skip_special_tokens" [Vllm] at BOTH, neutral ["true"], refused "false":
        "set reasoning_format to none to see a chat's text as the model wrote it";
    "structural_tag" [Vllm] at BOTH, neutral ["\"\""], refused r#""{}""#:
        "use tools with strict functions, or grammar";
    "system" [Ollama] at BOTH, neutral ["\"\""], refused r#""Be brief.""#:
        "send a message with the role system";
    "template" [Ollama] at BOTH, neutral ["\"\""], refused r#""{{ .Prompt }}""#:
        "the model's own template applies; /v1/completions applies none";
    "text" [OpenAi] at BOTH, neutral ["{}", "{\"format\":{\"type\":\"text\"}}"],
        refused r#"{"format":{"type":"json_object"}}"#:
        "use response_format";
    "tfs_z" [Ollama] at BOTH, neutral ["1"], refused "0.9":
        "use top_p, min_p or typical_p";
    "thinking_forced_open" [LlamaServer] at CHAT, neutral ["false"], refused "true":
        "the model's template decides; set its variables with chat_template_kwargs";
    "tool_choice" [OpenAi] at TEXT, neutral ["\"none\"", "\"auto\""], refused "\"required\"":
        "use /v1/chat/completions";
    "tools" [OpenAi] at TEXT, neutral ["[]"], refused r#"[{"type":"function"}]"#:
        "use /v1/chat/completions";
    "truncate_prompt_tokens" [Vllm] at ALL, neutral [], refused "16":
        "shorten the input yourself; input that is too long is refused, never cut";
    "use_activation" [Vllm] at RERANK, neutral ["true"], refused "false":
        "scores are always 0 to 1";
    "use_beam_search" [Vllm] at BOTH, neutral ["false"], refused "true":
        "use n, or temperature 0";
    "verbosity" [OpenAi] at CHAT, neutral ["\"medium\""], refused "\"low\"":
        "say in a message how long a response should be";
    "vllm_xargs" [Vllm] at BOTH, neutral ["{}"], refused r#"{"a":1}"#:
        "there are no extensions here";
    "watermarking" [Vllm] at BOTH, neutral ["false"], refused "true":
        "responses are not marked";
    "web_search_options" [OpenAi] at CHAT, neutral [], refused "{}":
        "search in your own program and offer it as a tool";
};

/// Fields that are accepted but change no response, grouped by reason.
pub const IGNORED: &[(&str, &[&str])] = &[
    (
        "They label a request; nothing is stored.",
        &["metadata", "request_id", "safety_identifier", "session_id", "store", "user"],
    ),
    (
        "They only make responses arrive sooner, at best. The node decides about caches and slots.",
        &[
            "backend_sampling",
            "keep_alive",
            "kv_transfer_params",
            "n_cache_reuse",
            "priority",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
        ],
    ),
    ("Tenants never share cached prefixes.", &["cache_salt"]),
    ("A context is never shifted: a response ends where it is full.", &["n_discard", "n_keep"]),
    (
        "They only tune a sampler or a mode that is off, or refused by its own field.",
        &[
            "adaptive_decay",
            "dynatemp_exponent",
            "early_stopping",
            "mirostat_eta",
            "mirostat_tau",
            "spaces_between_special_tokens",
            "truncation_side",
        ],
    ),
    ("llama.cpp does not read it anymore.", &["penalize_nl"]),
    (
        "They ask for more, fewer or larger pieces of information beside the same text.",
        &[
            "response_fields",
            "return_token_ids",
            "return_tokens",
            "return_tokens_as_token_ids",
            "sse_ping_interval",
            "stream_interval",
        ],
    ),
];
