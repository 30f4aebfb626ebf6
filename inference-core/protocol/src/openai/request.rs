//! Requests: only the fields that we use are typed.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

use super::numbers::{maybe_wholes, whole, whole_lists, wholes};

/// Sampling and length, shared by chat and text completions and read from the same body
/// in a second pass (a flattened field would lose its path in errors). `null` is the default.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct SamplingFields {
    /// Sampling temperature; 0 is greedy; default 0.8.
    #[schemars(range(min = 0, max = 2), extend("default" = 0.8))]
    pub temperature: Option<f32>,
    /// Nucleus: smallest set of tokens with this probability; 1 is off; default 0.95.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.95))]
    pub top_p: Option<f32>,
    /// Sample from the k most likely tokens only; 0 or -1 is off; default 40.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(extend("default" = 40))]
    pub top_k: Option<i64>,
    /// Minimum probability relative to the most likely token; 0 is off; default 0.05.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.05))]
    pub min_p: Option<f32>,
    /// Seed of the sampler; absent is random.
    #[serde(default, deserialize_with = "whole")]
    pub seed: Option<i64>,
    /// Most tokens to generate; -1 is as many as the context holds.
    #[serde(default, deserialize_with = "whole", alias = "n_predict")]
    #[schemars(range(min = -1, max = 4294967295_u32))]
    pub max_tokens: Option<i64>,
    /// Do not end the response before this many tokens, except by a stop string.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(extend("default" = 0))]
    pub min_tokens: Option<u32>,
    /// Up to 16 strings that end the response.
    pub stop: Option<OneOrMany>,
    /// Tokens that end the response and are not part of its text.
    #[serde(default, deserialize_with = "maybe_wholes")]
    #[schemars(length(max = 64))]
    pub stop_token_ids: Option<Vec<u32>>,
    /// llama-server's: end the response at the first line after the first one that begins with
    /// fewer spaces and tabs than this; default 0.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(max = 1024), extend("default" = 0))]
    pub n_indent: Option<u32>,
    /// llama-server's: end the response with the first line that ends later than this after the
    /// first token, in milliseconds; 0 and -1 are no limit.
    #[serde(default, deserialize_with = "whole")]
    pub t_max_predict_ms: Option<i64>,
    /// Number of choices.
    #[schemars(range(min = 1, max = 16), extend("default" = 1))]
    #[serde(default, deserialize_with = "whole", alias = "n_cmpl")]
    pub n: Option<u32>,
    /// Keep tokens within this many standard deviations of the largest logit; 0 or less is off.
    #[schemars(extend("default" = 0))]
    pub top_n_sigma: Option<f32>,
    /// Chance that XTC removes the most likely tokens; default 0.
    #[schemars(range(min = 0, max = 1), extend("default" = 0))]
    pub xtc_probability: Option<f32>,
    /// Probability from which XTC removes all tokens but the least likely; above 0.5 is off.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.1))]
    pub xtc_threshold: Option<f32>,
    /// DRY: penalty for a token that would extend a repetition; default 0.
    #[schemars(range(min = 0, max = 100), extend("default" = 0))]
    pub dry_multiplier: Option<f32>,
    /// DRY: growth of the penalty with each repeated token; below 1 is the default.
    #[schemars(range(min = 0, max = 100), extend("default" = 1.75))]
    pub dry_base: Option<f32>,
    /// DRY: repetitions shorter than this are not penalized.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(extend("default" = 2))]
    pub dry_allowed_length: Option<u32>,
    /// DRY: how many of the last tokens to search for repetitions; 0 is off, -1 is all.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(min = -1, max = 4294967295_u32), extend("default" = 64))]
    pub dry_penalty_last_n: Option<i64>,
    /// DRY: texts that no repetition reaches across.
    #[schemars(length(max = 16))]
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// llama.cpp's locally typical sampling; default 1.
    #[serde(alias = "typ_p")]
    #[schemars(range(min = 0, max = 1), extend("default" = 1))]
    pub typical_p: Option<f32>,
    /// llama.cpp's penalty for recent tokens; default 1.
    #[serde(alias = "repetition_penalty")]
    #[schemars(range(min = 0.1, max = 10), extend("default" = 1))]
    pub repeat_penalty: Option<f32>,
    /// How many of the last tokens `repeat_penalty` looks at; -1 for all; default 64.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(min = -1, max = 4096), extend("default" = 64))]
    pub repeat_last_n: Option<i64>,
    /// Penalty for each occurrence of a token in the response; default 0.
    #[schemars(range(min = -2, max = 2), extend("default" = 0))]
    pub frequency_penalty: Option<f32>,
    /// Penalty for tokens that occur in the response; default 0.
    #[schemars(range(min = -2, max = 2), extend("default" = 0))]
    pub presence_penalty: Option<f32>,
    /// Changes of logits, by token.
    pub logit_bias: Option<BiasFields>,
    /// Continue when the model generates an end-of-generation token.
    pub ignore_eos: Option<bool>,
    /// Words that the response does not contain.
    #[schemars(length(max = 64))]
    pub bad_words: Option<Vec<String>>,
    /// The only tokens that may be generated.
    #[serde(default, deserialize_with = "maybe_wholes")]
    #[schemars(length(max = 65536))]
    pub allowed_token_ids: Option<Vec<u32>>,
    /// False computes the whole prompt, without the cached prefix; default true.
    #[schemars(extend("default" = true))]
    pub cache_prompt: Option<bool>,
    /// At an agent with `--slot-save-path`: the slot that the response is saved as; default -1, the
    /// one that it runs in.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(extend("default" = -1))]
    pub id_slot: Option<i64>,
    /// Return `timings` at the end of the response.
    pub timings: Option<bool>,
    /// Return `timings` with every chunk of a stream.
    pub timings_per_token: Option<bool>,
    /// Send `prompt_progress` in chunks of a stream while the prompt is computed.
    pub return_progress: Option<bool>,
}

/// `logit_bias`: OpenAI's map, or llama.cpp's list of pairs; `false` forbids a token.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected an object from token ids to numbers, or a list of pairs of both"
)]
pub enum BiasFields {
    /// `{"15043": -100}`
    Map(serde_json::Map<String, Value>),
    /// `[[15043, false]]`
    Pairs(Vec<(Value, Value)>),
}

/// Structured output, for chat and text completions, in the fields of OpenAI, llama.cpp and vLLM.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
pub struct ConstraintFields {
    /// `text`, `json_object` or `json_schema`.
    pub response_format: Option<ResponseFormat>,
    /// A JSON schema, or its text.
    #[serde(alias = "guided_json")]
    pub json_schema: Option<Value>,
    /// A grammar in GBNF.
    pub grammar: Option<String>,
    /// SGLang's name of `grammar`.
    pub ebnf: Option<String>,
    /// A grammar in GBNF, or in Lark if it has no `::=`.
    pub guided_grammar: Option<String>,
    /// True for any JSON object.
    pub guided_json_object: Option<bool>,
    /// A regular expression.
    pub guided_regex: Option<String>,
    /// SGLang's name of `guided_regex`.
    pub regex: Option<String>,
    /// vLLM's object with one constraint.
    pub structured_outputs: Option<StructuredOutputs>,
    /// One of these texts.
    pub guided_choice: Option<Vec<String>>,
}

/// `structured_outputs` of vLLM: one constraint. One that is not known would not be enforced.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StructuredOutputs {
    /// A JSON schema, or its text.
    pub json: Option<Value>,
    /// True for any JSON object.
    pub json_object: Option<bool>,
    /// A regular expression.
    pub regex: Option<String>,
    /// One of these texts.
    pub choice: Option<Vec<String>>,
    /// A grammar in GBNF, or in Lark if it has no `::=`.
    pub grammar: Option<String>,
    /// Not supported: null or false.
    pub disable_any_whitespace: Option<bool>,
    /// Not supported: null or false.
    pub disable_additional_properties: Option<bool>,
    /// Not supported: null.
    pub structural_tag: Option<Value>,
    /// Not supported: null.
    pub whitespace_pattern: Option<Value>,
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
    /// Refuse a schema with keywords that cannot be enforced.
    pub strict: Option<bool>,
}

/// A string or a list of strings.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
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

/// `prediction`: text that a response is likely to repeat.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct Prediction {
    /// `content`
    #[serde(rename = "type")]
    pub kind: String,
    /// The text, or its parts.
    pub content: PredictedContent,
}

/// Content of a [`Prediction`].
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string or a list of text parts")]
pub enum PredictedContent {
    /// `"a"`
    Text(String),
    /// `[{"type": "text", "text": "a"}]`
    Parts(Vec<PredictedPart>),
}

/// Part of a [`PredictedContent`].
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct PredictedPart {
    /// `text`
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    pub text: String,
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
    /// `none` leaves the reasoning in the content; any other value returns it as
    /// `reasoning_content`.
    pub reasoning_format: Option<String>,
    /// Text that the response is likely to repeat, such as the code that it edits: it arrives
    /// sooner where that is right, and is the same in any case.
    pub prediction: Option<Prediction>,
    /// Allow several tool calls in one response; default true.
    pub parallel_tool_calls: Option<bool>,
    /// Return log probabilities of the tokens.
    pub logprobs: Option<bool>,
    /// Number of most likely tokens to return at each place, at most 20.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(max = 20))]
    pub top_logprobs: Option<u32>,
    /// llama-server's name for both: above 0, `logprobs` with this many `top_logprobs`.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(max = 20))]
    pub n_probs: Option<u32>,
    /// Documents for the chat template.
    pub documents: Option<Vec<Value>>,
    /// More variables for the chat template.
    pub chat_template_kwargs: Option<serde_json::Map<String, Value>>,
    /// Jinja template instead of the model's; only where the node's operator allows it.
    pub chat_template: Option<String>,
    /// A variable of some chat templates; `none` turns reasoning off.
    pub reasoning_effort: Option<String>,
    /// False turns reasoning off, with templates that can; default true.
    pub enable_thinking: Option<bool>,
    /// Ollama's name: true, false, or a `reasoning_effort`.
    pub think: Option<Value>,
    /// Most tokens of reasoning: 0 turns it off, -1 is no limit.
    #[serde(
        default,
        deserialize_with = "whole",
        alias = "reasoning_budget_tokens",
        alias = "thinking_budget_tokens",
        alias = "thinking_token_budget"
    )]
    #[schemars(range(min = -1, max = 4294967295_u32), extend("default" = -1))]
    pub reasoning_budget: Option<i64>,
    /// End the prompt with the beginning of an assistant message; default true.
    pub add_generation_prompt: Option<bool>,
    /// Continue the last message instead of beginning a new one; the default is true if that
    /// message is the assistant's.
    pub continue_final_message: Option<bool>,
    /// Newer name of `max_tokens`; wins over it.
    #[serde(default, deserialize_with = "whole")]
    #[schemars(range(min = -1, max = 4294967295_u32))]
    pub max_completion_tokens: Option<i64>,
    /// Stream the response.
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
    /// The text to continue.
    pub prompt: Prompt,
    /// The text after the gap to fill.
    pub suffix: Option<String>,
    /// llama-server's: other files to show to a model that fills a gap, at most 256. With it, also
    /// an empty `suffix` makes a gap.
    #[schemars(length(max = 256))]
    pub input_extra: Option<Vec<ExtraFile>>,
    /// Begin the response with the prompt.
    pub echo: Option<bool>,
    /// Return log probabilities, and this many of the most likely tokens at each place.
    #[serde(default, deserialize_with = "whole", alias = "n_probs")]
    #[schemars(range(max = 20))]
    pub logprobs: Option<u32>,
    /// Must be `n` or absent.
    #[serde(default, deserialize_with = "whole")]
    pub best_of: Option<u32>,
    /// Stream the response.
    pub stream: Option<bool>,
    /// Options of the stream.
    pub stream_options: Option<StreamOptions>,
}

/// A file of `input_extra`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
pub struct ExtraFile {
    /// Its name; default `tmp`.
    pub filename: Option<String>,
    /// Its text.
    pub text: String,
}

/// Prompts: texts, or lists of token ids.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected a string, a list of token ids, or a list of strings and lists of token ids"
)]
pub enum Prompt {
    /// `"text"`
    Text(String),
    /// `["text", "text"]`
    Texts(Vec<String>),
    /// `[1, 2, 3]`
    Tokens(#[serde(deserialize_with = "wholes")] Vec<u32>),
    /// `[[1, 2], [3]]`
    Lists(#[serde(deserialize_with = "whole_lists")] Vec<Vec<u32>>),
    /// `["text", [3]]`
    Mixed(Vec<PromptEntry>),
}

/// A prompt in a list of several.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string or a list of token ids")]
pub enum PromptEntry {
    /// `"text"`
    Text(String),
    /// `[1, 2]`
    Tokens(#[serde(deserialize_with = "wholes")] Vec<u32>),
}
