//! Requests: only the fields that we use are typed.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// Sampling and length, shared by chat and text completions and read from the same body
/// in a second pass (a flattened field would lose its path in errors). `null` is the default.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct SamplingFields {
    /// 0 is greedy; default 1.
    #[schemars(range(min = 0, max = 2), extend("default" = 1))]
    pub temperature: Option<f32>,
    /// Nucleus: smallest set of tokens with this probability; default 1.
    #[schemars(range(min = 0, max = 1), extend("default" = 1))]
    pub top_p: Option<f32>,
    /// The k likeliest tokens only; 0, -1 or absent is off.
    pub top_k: Option<i64>,
    /// Tokens at least this likely relative to the likeliest; default 0.
    #[schemars(range(min = 0, max = 1), extend("default" = 0))]
    pub min_p: Option<f32>,
    /// Seed of the sampler; absent is random.
    pub seed: Option<i64>,
    /// Most tokens to generate.
    #[schemars(range(min = 1))]
    pub max_tokens: Option<u32>,
    /// Up to 16 strings that end the answer.
    pub stop: Option<OneOrMany>,
    /// How many answers.
    #[schemars(range(min = 1, max = 16), extend("default" = 1))]
    pub n: Option<u32>,
    /// llama.cpp's locally typical sampling; default 1.
    #[serde(alias = "typ_p")]
    #[schemars(range(min = 0, max = 1), extend("default" = 1))]
    pub typical_p: Option<f32>,
    /// llama.cpp's penalty for recent tokens; default 1.
    #[serde(alias = "repetition_penalty")]
    #[schemars(range(min = 0.1, max = 10), extend("default" = 1))]
    pub repeat_penalty: Option<f32>,
    /// How many tokens are recent; -1 is all; default 64.
    #[schemars(range(min = -1, max = 4096), extend("default" = 64))]
    pub repeat_last_n: Option<i64>,
    /// For each time that the answer holds a token; default 0.
    #[schemars(range(min = -2, max = 2), extend("default" = 0))]
    pub frequency_penalty: Option<f32>,
    /// For each token that the answer holds; default 0.
    #[schemars(range(min = -2, max = 2), extend("default" = 0))]
    pub presence_penalty: Option<f32>,
    /// Shifts of logits.
    pub logit_bias: Option<BiasFields>,
    /// Never end by a token of the model.
    pub ignore_eos: Option<bool>,
}

/// `logit_bias`: OpenAI's map, or llama.cpp's list of pairs; `false` forbids a token.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum BiasFields {
    /// `{"15043": -100}`
    Map(serde_json::Map<String, Value>),
    /// `[[15043, false]]`
    Pairs(Vec<(Value, Value)>),
}

/// What an answer must look like, shared by chat and text completions: OpenAI's way,
/// llama.cpp's and vLLM's.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct ConstraintFields {
    /// `text`, `json_object` or `json_schema`.
    pub response_format: Option<ResponseFormat>,
    /// A JSON schema.
    #[serde(alias = "guided_json")]
    pub json_schema: Option<Value>,
    /// A grammar in GBNF.
    pub grammar: Option<String>,
    /// A regular expression.
    pub guided_regex: Option<String>,
    /// One of these texts.
    pub guided_choice: Option<Vec<String>>,
}

/// `response_format`
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct ResponseFormat {
    /// Which.
    #[serde(rename = "type")]
    pub kind: String,
    /// For `json_schema`.
    pub json_schema: Option<NamedSchema>,
    /// llama.cpp's place for a schema.
    pub schema: Option<Value>,
}

/// A schema of a [`ResponseFormat`].
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct NamedSchema {
    /// The schema; absent is any object.
    pub schema: Option<Value>,
    /// Whether keywords that cannot be enforced are an error.
    pub strict: Option<bool>,
}

/// A string or a list of strings.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum OneOrMany {
    /// `"a"`
    One(String),
    /// `["a", "b"]`
    Many(Vec<String>),
}

impl OneOrMany {
    /// The strings as a slice.
    pub fn as_slice(&self) -> &[String] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(all) => all,
        }
    }
}

/// `stream_options`.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
pub struct StreamOptions {
    /// Send one last chunk with the usage and no choices.
    #[serde(default)]
    pub include_usage: Option<bool>,
}

/// `POST /v1/chat/completions`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct ChatRequest {
    /// The model's name; a node, which serves one, can do without.
    pub model: Option<String>,
    /// The conversation so far.
    pub messages: Vec<ChatMessage>,
    /// Tools, passed to the chat template as they are.
    pub tools: Option<Vec<Value>>,
    /// `auto`, `none`, `required`, or the name of one.
    pub tool_choice: Option<Value>,
    /// `none` leaves the thoughts in the text; anything else parts them from it.
    pub reasoning_format: Option<String>,
    /// Whether one answer may call several tools; default true.
    pub parallel_tool_calls: Option<bool>,
    /// Whether to tell how likely tokens were.
    pub logprobs: Option<bool>,
    /// And so many of the likeliest, at most 20.
    #[schemars(range(max = 20))]
    pub top_logprobs: Option<u32>,
    /// Documents for the chat template.
    pub documents: Option<Vec<Value>>,
    /// More variables for the chat template.
    pub chat_template_kwargs: Option<serde_json::Map<String, Value>>,
    /// A variable of some chat templates.
    pub reasoning_effort: Option<String>,
    /// Whether the prompt ends with the beginning of an answer; default true.
    pub add_generation_prompt: Option<bool>,
    /// Whether the assistant goes on with the last message; default: if it is its own.
    pub continue_final_message: Option<bool>,
    /// Newer name of `max_tokens`; wins over it.
    #[schemars(range(min = 1))]
    pub max_completion_tokens: Option<u32>,
    /// Whether the answer is streamed.
    pub stream: Option<bool>,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
}

/// A message as the client wrote it: the chat template may use more fields than we do.
pub type ChatMessage = serde_json::Map<String, Value>;

/// `POST /v1/completions`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct CompletionRequest {
    /// The model's name; a node, which serves one, can do without.
    pub model: Option<String>,
    /// The text to go on with.
    pub prompt: Prompt,
    /// The text after the gap that is to be filled.
    pub suffix: Option<String>,
    /// Whether the answer begins with the prompt.
    pub echo: Option<bool>,
    /// Tell how likely tokens were, and so many of the likeliest.
    #[schemars(range(max = 20))]
    pub logprobs: Option<u32>,
    /// Must be `n` or absent.
    pub best_of: Option<u32>,
    /// Whether the answer is streamed.
    pub stream: Option<bool>,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
}

/// Prompts: texts, or lists of token ids.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Prompt {
    /// `"text"`
    Text(String),
    /// `["text", "text"]`
    Texts(Vec<String>),
    /// `[1, 2, 3]`
    Tokens(Vec<u32>),
    /// `[[1, 2], [3]]`
    Lists(Vec<Vec<u32>>),
}
