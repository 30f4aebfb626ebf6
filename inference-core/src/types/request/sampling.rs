//! Parameters of sampling.

use serde::{Deserialize, Serialize};

use super::Token;

/// Most tokens whose logits one request may shift.
pub const BIASES_MAX: usize = 1024;
/// Most tokens that `repeat_penalty` looks back.
pub const RECENT_TOKENS_MAX: u32 = 4096;

/// How to choose tokens. See [`crate::scheduler::sampler`] for the order of the steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 0 is greedy, and so is anything below 1e-5.
    pub temperature: f32,
    /// The k likeliest tokens only; 0 is off.
    pub top_k: u32,
    /// The smallest set with this probability; 1 is off.
    pub top_p: f32,
    /// Tokens at least this likely relative to the likeliest; 0 is off.
    pub min_p: f32,
    /// The smallest set with this probability of tokens whose surprise is nearest to what
    /// is expected; 1 is off.
    pub typical_p: f32,
    /// Divides the logits of recent tokens (multiplies negative ones); 1 is off.
    pub repeat_penalty: f32,
    /// How many tokens are recent, those of the prompt included.
    pub repeat_last_n: u32,
    /// Taken from a token's logit for each time that the answer holds it.
    pub frequency_penalty: f32,
    /// Taken from the logit of each token that the answer holds.
    pub presence_penalty: f32,
    /// Added to the logits of these tokens.
    pub bias: Vec<(Token, f32)>,
    /// Never choose a token that ends the answer.
    pub ignore_end: bool,
    /// Seed of the request's own random numbers.
    pub seed: u64,
}

impl Sampling {
    /// Always the likeliest token.
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
        bias: Vec::new(),
        ignore_end: false,
        seed: 0,
    };
}
