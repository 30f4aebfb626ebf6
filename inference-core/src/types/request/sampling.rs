//! Sampling parameters.

use serde::{Deserialize, Serialize};

use super::Token;

/// Maximum tokens whose logits one request may bias.
pub const BIASES_MAX: usize = 1024;
/// Maximum tokens that `repeat_penalty` looks back.
pub const RECENT_TOKENS_MAX: u32 = 4096;

/// Maximum words or tokens in a list of a request: `bad_words`, `stop_token_ids`.
pub const LIST_MAX: usize = 64;
/// Maximum bytes of a word in `bad_words`.
pub const WORD_BYTES_MAX: usize = 256;
/// Maximum tokens in `allowed_token_ids`.
pub const ALLOWED_MAX: usize = 1 << 16;
/// Maximum texts in `dry_sequence_breakers`.
pub const BREAKERS_MAX: usize = 16;
/// Where repetitions end for DRY by default, as in llama.cpp.
pub const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// How to choose tokens. [`crate::scheduler::sampler`] documents the order of the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy, and so is anything below 1e-5.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 is off.
    pub top_k: u32,
    /// Keep the smallest set with this probability; 1 is off.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the most likely one; 0 is off.
    pub min_p: f32,
    /// Keep the smallest set with this probability, of the tokens whose surprise is nearest to the
    /// expected one; 1 is off.
    pub typical_p: f32,
    /// Divides the logits of recent tokens (multiplies negative ones); 1 is off.
    pub repeat_penalty: f32,
    /// How many tokens count as recent, including the prompt's.
    pub repeat_last_n: u32,
    /// Subtracted from a token's logit for each time the response contains it.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of each token that the response contains.
    pub presence_penalty: f32,
    /// Keep tokens whose logit is within this many standard deviations of the largest; 0 is off.
    pub top_n_sigma: f32,
    /// Sometimes drop the most likely tokens.
    pub xtc: Xtc,
    /// Penalty for tokens that would extend a repetition.
    pub dry: Dry,
    /// Values added to the logits of these tokens.
    pub bias: Vec<(Token, f32)>,
    /// Never choose a token that ends the response.
    pub ignore_end: bool,
    /// Tokens to generate before one that ends the response.
    pub min_tokens: u32,
    /// Words that the response must not contain.
    pub bad_words: Vec<String>,
    /// The only tokens to choose from; `None` is all.
    pub allowed: Option<Vec<Token>>,
    /// Seed of the request's random number generator.
    pub seed: u64,
}

/// XTC ("Exclude Top Choices"): drops the most likely tokens, but for the least likely one that
/// reaches the threshold.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Xtc {
    /// Probability that it acts on a token; 0 is off.
    pub probability: f32,
    /// Probability that a token needs to be dropped; above 0.5 is off.
    pub threshold: f32,
}

/// DRY ("Don't Repeat Yourself"): subtracts `multiplier * base ^ (length - allowed_length)` from
/// the logit of a token that would extend a repetition of `length` tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Dry {
    /// 0 is off.
    pub multiplier: f32,
    /// Below 1 is off.
    pub base: f32,
    /// Shorter repetitions are not penalized.
    pub allowed_length: u32,
    /// How many of the last tokens, including the prompt's, are searched for repetitions.
    pub last_n: u32,
    /// Texts that no repetition reaches across; `None` is [`BREAKERS`].
    pub breakers: Option<Vec<String>>,
}

impl Dry {
    /// llama.cpp's defaults.
    pub const OFF: Self =
        Self { multiplier: 0.0, base: 1.75, allowed_length: 2, last_n: 64, breakers: None };
}

/// Sampling parameters that a model recommends, for requests that do not set them; `None` leaves
/// ours. Values are finite and in the ranges of the API.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingDefaults {
    /// For [`Sampling::temperature`].
    pub temperature: Option<f32>,
    /// For [`Sampling::top_k`].
    pub top_k: Option<u32>,
    /// For [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// For [`Sampling::min_p`].
    pub min_p: Option<f32>,
    /// For [`Sampling::repeat_penalty`].
    pub repeat_penalty: Option<f32>,
    /// For [`Sampling::repeat_last_n`].
    pub repeat_last_n: Option<u32>,
}

impl Eq for SamplingDefaults {}

impl SamplingDefaults {
    /// The parameters that are set, by their names in the API.
    pub fn set(&self) -> impl Iterator<Item = (&'static str, f32)> {
        let whole = |n: Option<u32>| n.map(|n| n as f32);
        let all = [
            ("temperature", self.temperature),
            ("top_k", whole(self.top_k)),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("repeat_penalty", self.repeat_penalty),
            ("repeat_last_n", whole(self.repeat_last_n)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?)))
    }
}

/// Such as `temperature 0.7, top_k 20`, or `none`.
impl std::fmt::Display for SamplingDefaults {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let set: Vec<String> = self.set().map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(if set.is_empty() { "none" } else { "" })?;
        f.write_str(&set.join(", "))
    }
}

impl Sampling {
    /// Always the most likely token.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        typical_p: 1.0,
        repeat_penalty: 1.0,
        repeat_last_n: 64,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        top_n_sigma: 0.0,
        xtc: Xtc { probability: 0.0, threshold: 0.1 },
        dry: Dry::OFF,
        bias: Vec::new(),
        ignore_end: false,
        min_tokens: 0,
        bad_words: Vec::new(),
        allowed: None,
        seed: 0,
    };
}
