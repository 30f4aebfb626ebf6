//! llama-server's own API: `/completion`, `/infill`, `/embedding` and `/props`.
//!
//! Source: the README of llama.cpp's `tools/server`, and what llama.vim, llama.vscode and
//! SillyTavern send.

use crate::fields::Field;

pub(crate) mod completion;
pub(crate) mod embedding;
pub(crate) mod props;
pub(crate) mod response;

pub use props::props_body;

const MODEL: Field = Field::honored(
    "model",
    "Without it, the gateway takes the only one that the key may use, and a node its own.",
);
const STREAM: Field = Field::honored("stream", "Server-sent events, without `[DONE]` at the end.");
const N_PREDICT: Field = Field::honored(
    "n_predict",
    "Most tokens to generate; -1, the default, is as many as the context holds, and 0 only computes the prompt. \
     `max_tokens` is the same.",
);
const N_PROBS: Field = Field::honored(
    "n_probs",
    "Up to 20: `completion_probabilities` with this many of the most likely tokens at each place. Tokens have no `id`.",
);
const RESPONSE_FIELDS: Field = Field::honored(
    "response_fields",
    "Only these fields in a whole response and in the last event of a stream; `a/b` is field `b` of object `a`.",
);
const N_CMPL: Field = Field::honored("n_cmpl", "1. `/v1/completions` returns several, with `n`.");
const TOKENS: Field = Field::ignored(
    "return_tokens",
    "`tokens` is always empty: tokens have no numbers outside nodes.",
);
/// The fields of `POST /completion` that `/v1/completions` does not have, or has with another
/// meaning.
pub const COMPLETION_FIELDS: &[Field] = &[
    MODEL,
    Field::honored(
        "prompt",
        "Required: a text, or a list of token ids, or an object with `prompt_string`. One prompt in a request; \
         `/v1/completions` takes several.",
    ),
    N_PREDICT,
    STREAM,
    N_PROBS,
    RESPONSE_FIELDS,
    N_CMPL,
    TOKENS,
];

/// The fields of `POST /infill` that `/v1/completions` does not have, or has with another meaning.
pub const INFILL_FIELDS: &[Field] = &[
    MODEL,
    Field::honored("input_prefix", "Required: the text before the gap."),
    Field::honored("input_suffix", "Required: the text after the gap, which may be empty."),
    Field::honored("prompt", "Text right before the gap, after `input_prefix`."),
    Field::honored("input_extra", "Other files, at most 256: objects with `filename` and `text`."),
    N_PREDICT,
    STREAM,
    N_PROBS,
    RESPONSE_FIELDS,
    N_CMPL,
    TOKENS,
    Field::ignored("samplers", "Their order is fixed, and there is no sampler `infill`."),
    Field::ignored("t_max_prompt_ms", "llama-server does not read it either."),
];

/// Every field of `POST /embedding`.
pub const EMBEDDING_FIELDS: &[Field] = &[
    MODEL,
    Field::honored("content", "Required: a text, a list of token ids, or a list of both."),
    Field::honored("input", "Another name of `content`."),
    Field::honored("embd_normalize", "2, the Euclidean length."),
];
