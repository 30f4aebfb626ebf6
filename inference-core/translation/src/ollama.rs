//! Ollama's own API: `/api/chat`, `/api/generate`, `/api/embed`, `/api/tags` and others.
//!
//! Source: <https://docs.ollama.com/api>, and what Ollama's clients for Python and JavaScript, its
//! command line, and Open WebUI send.

use std::borrow::Cow;

use inference_protocol::openai::{ErrorDetail, to_json};
use serde::Serialize;

use crate::fields::Field;

mod calls;
pub(crate) mod embed;
mod load;
mod models;
mod options;
pub(crate) mod request;
pub(crate) mod response;

pub(crate) use load::load_request;
pub use models::{Capability, Model, ps, requested_model, show, tags, version};

/// Body of the response to `GET /`, by which clients recognize the server.
pub const GREETING: &str = "Ollama is running";

/// The release of Ollama whose API this is, for `GET /api/version`: clients refuse old ones.
pub const VERSION: &str = "0.13.0";

const MODEL: Field = Field::honored("model", "Required. `name` and `name:latest` are the same.");
const FORMAT: Field = Field::honored("format", "`json`, or a JSON schema.");
const THINK: Field = Field::honored(
    "think",
    "`true` and `false` set the switch of templates that have one; `low`, `medium`, `high` and `max` also set the \
     effort, a variable of some templates. Default: the template's. A model without a switch may think in any case.",
);
const OPTIONS: Field = Field::honored("options", "See below.");
const STREAM: Field = Field::honored("stream", "Default `true`: lines of JSON.");
const LOGPROBS: Field = Field::honored("logprobs", "");
const TOP_LOGPROBS: Field = Field::honored("top_logprobs", "Up to 20, with `logprobs`.");
const KEEP_ALIVE: Field = Field::ignored(
    "keep_alive",
    "Models stay loaded. A request without input, which loads or unloads a model at Ollama, is acknowledged.",
);
const SHIFT: Field = Field::ignored("shift", "A response ends where the context is full.");
const TRUNCATE: Field =
    Field::ignored("truncate", "Input that is longer than the context is refused, never cut.");
const DEBUG: Field = Field::rejected("_debug_render_only", "use /apply-template");

/// Every field of `POST /api/chat`.
pub const CHAT_FIELDS: &[Field] = &[
    MODEL,
    Field::honored("messages", "Required. See below."),
    Field::honored("tools", "Functions: `function.name`, `description` and `parameters`."),
    FORMAT,
    THINK,
    OPTIONS,
    STREAM,
    LOGPROBS,
    TOP_LOGPROBS,
    KEEP_ALIVE,
    TRUNCATE,
    SHIFT,
    DEBUG,
];

/// Every field of a message of `POST /api/chat`.
pub const MESSAGE_FIELDS: &[Field] = &[
    Field::honored(
        "role",
        "`system`, `user`, `assistant` or `tool`. Successive messages of the user become one; so do those of the \
         system. A last message of the assistant is continued.",
    ),
    Field::honored("content", "Text."),
    Field::honored("thinking", "Reasoning of the assistant, for templates that use it."),
    Field::honored(
        "tool_calls",
        "Calls of the assistant, with `function.name` and `function.arguments`, an object.",
    ),
    Field::honored(
        "tool_name",
        "The tool whose result the message is. A result without `tool_call_id` belongs to the first call of this \
         tool that has no result yet, and without either to the first call that has no result yet.",
    ),
    Field::honored("tool_call_id", "The call whose result the message is."),
    Field::rejected("images", "models read text"),
];

/// Every field of `POST /api/generate`.
pub const GENERATE_FIELDS: &[Field] = &[
    MODEL,
    Field::honored("prompt", "Required. Becomes a message of the user."),
    Field::honored("system", "Becomes a message of the system."),
    FORMAT,
    THINK,
    OPTIONS,
    STREAM,
    LOGPROBS,
    TOP_LOGPROBS,
    KEEP_ALIVE,
    TRUNCATE,
    SHIFT,
    Field::rejected("suffix", "use /v1/completions, which fills gaps"),
    Field::rejected("template", "the model's own template applies"),
    Field::rejected("context", "send the whole conversation to /api/chat"),
    Field::rejected("raw", "use /v1/completions, which applies no template"),
    Field::rejected("images", "models read text"),
    Field::rejected("width", "models write text"),
    Field::rejected("height", "models write text"),
    Field::rejected("steps", "models write text"),
    DEBUG,
];

/// Every field of `options`. Options that are not listed are ignored, as Ollama does.
pub const OPTION_FIELDS: &[Field] = &[
    Field::honored("num_predict", "Maximum tokens of the response. 0 and less: no limit."),
    Field::honored("temperature", ""),
    Field::honored("top_k", ""),
    Field::honored("top_p", ""),
    Field::honored("min_p", ""),
    Field::honored("typical_p", ""),
    Field::honored("seed", "-1 is random."),
    Field::honored("stop", "A string, or up to 16."),
    Field::honored("repeat_penalty", ""),
    Field::honored("repeat_last_n", ""),
    Field::honored("presence_penalty", ""),
    Field::honored("frequency_penalty", ""),
    Field::ignored("num_ctx", "The agent's `--context-tokens` sets the context."),
    Field::ignored("num_keep", "A context is never shifted."),
    Field::ignored("num_batch", "The node decides."),
    Field::ignored("num_gpu", "The node decides."),
    Field::ignored("main_gpu", "The node decides."),
    Field::ignored("num_thread", "The node decides."),
    Field::ignored("use_mmap", "The node decides."),
    Field::ignored("use_mlock", "The node decides."),
    Field::ignored("numa", "The node decides."),
    Field::ignored("low_vram", "The node decides."),
    Field::ignored("f16_kv", "The node decides."),
    Field::ignored("penalize_newline", "Ollama does not read it anymore."),
    Field::ignored("mirostat_eta", "It tunes `mirostat`."),
    Field::ignored("mirostat_tau", "It tunes `mirostat`."),
    Field::rejected("mirostat", "use temperature, top_p or min_p. 0 is accepted"),
    Field::rejected("tfs_z", "use top_p, min_p or typical_p. 1 is accepted"),
];

/// Every field of `POST /api/embed`.
pub const EMBED_FIELDS: &[Field] = &[
    MODEL,
    Field::honored("input", "A text or a list of texts. Embeddings have length 1."),
    Field::honored("dimensions", "As at `/v1/embeddings`."),
    TRUNCATE,
    KEEP_ALIVE,
    Field::ignored("options", ""),
];

/// Every field of `POST /api/embeddings`, the older form of `/api/embed`.
pub const EMBEDDINGS_FIELDS: &[Field] = &[
    MODEL,
    Field::honored("prompt", "A text. The embedding has length 1."),
    KEEP_ALIVE,
    Field::ignored("options", ""),
];

/// The name with a tag, as Ollama lists models: `latest` if it has none.
///
/// ```
/// use inference_translation::ollama::with_tag;
///
/// assert_eq!(with_tag("qwen3"), "qwen3:latest");
/// assert_eq!(with_tag("host:5000/me/qwen3:4b"), "host:5000/me/qwen3:4b");
/// ```
pub fn with_tag(name: &str) -> Cow<'_, str> {
    match name.rsplit('/').next().is_some_and(|last| last.contains(':')) {
        true => Cow::Borrowed(name),
        false => Cow::Owned(format!("{name}:latest")),
    }
}

/// The name without the tag `latest`, which clients add to names without a tag. A server should
/// look for the name as it is first, and then for this one.
///
/// ```
/// use inference_translation::ollama::without_latest;
///
/// assert_eq!(without_latest("qwen3:latest"), "qwen3");
/// assert_eq!(without_latest("qwen3:4b"), "qwen3:4b");
/// ```
pub fn without_latest(name: &str) -> &str {
    name.strip_suffix(":latest").unwrap_or(name)
}

#[derive(Debug, Serialize)]
struct ErrorBody<'a> {
    error: &'a str,
}

/// The body of an error response, and the last line of a stream that breaks.
pub fn error_body(error: &ErrorDetail) -> String {
    to_json(&ErrorBody { error: &error.message })
}

/// A time as Ollama writes it.
fn rfc3339(seconds: u64, nanos: u32) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let time = chrono::DateTime::from_timestamp(seconds, nanos).unwrap_or_default();
    time.to_rfc3339_opts(chrono::SecondsFormat::Micros, true)
}
