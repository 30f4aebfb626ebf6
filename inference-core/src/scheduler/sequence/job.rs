//! A request that is ready to run, and the flag that cancels it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::scheduler::sampler::ResolvedOptions;
use crate::text::grammar::Grammar;
use crate::types::request::{Failure, Options, RequestId, Tenant, Token};

/// Cancellation flag: the caller sets it, the engine reads it.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    /// Cancels the request.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// True if the request was canceled.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A request that is ready to run: it is tokenized and fits into the context.
#[derive(Debug)]
pub struct Job {
    /// Id chosen by the caller.
    pub id: RequestId,
    /// Tenant that sent the request.
    pub tenant: Tenant,
    /// The prompt, at least one token and fewer than the context holds, followed by the tokens of a
    /// resumed response.
    pub tokens: Vec<Token>,
    /// How many of these tokens belong to the response.
    pub resumed_len: usize,
    /// Sampling and stop options.
    pub options: Options,
    /// The options that are texts, as tokens.
    pub resolved: ResolvedOptions,
    /// Control tokens whose text is part of the response text.
    pub visible: Vec<Token>,
    /// True if the prompt ends inside the assistant's reasoning.
    pub in_reasoning: bool,
    /// Grammar of the response, if constrained.
    pub grammar: Option<ResponseGrammar>,
    /// Set when the caller no longer wants the response.
    pub cancel: CancelFlag,
}

impl Job {
    /// The tenant or group of tenants whose cached prefixes it shares.
    pub(crate) fn prefix_owner(&self) -> Tenant {
        self.options.prefix_group.unwrap_or(self.tenant)
    }

    /// True if it may begin with a cached prefix: nothing is known of the logits of one.
    pub(crate) fn uses_prefixes(&self) -> bool {
        self.options.uses_cache && !self.options.prompt_logprobs
    }
}

/// A constraint on the response.
#[derive(Debug)]
pub struct ResponseGrammar {
    /// The compiled grammar, which decides the tokens that may come next.
    pub grammar: Grammar,
    /// Turns a grammar failure into the [`Failure`] that matches what the request asked for.
    pub(crate) to_failure: fn(String) -> Failure,
    /// The response continues without the grammar if that fails.
    pub(crate) is_optional: bool,
}

impl ResponseGrammar {
    /// A copy for another choice: see [`Grammar::separate`].
    pub(crate) fn separate(&self) -> Self {
        Self { grammar: self.grammar.separate(), ..*self }
    }
}
