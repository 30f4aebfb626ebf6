//! PURE. Tokens that a request used. Reported usage is accepted as far as it is possible; without a
//! report, it is estimated from bytes.

use inference_protocol::resume::Usage;

use crate::access::spend::Need;

/// Request bytes per prompt token, for JSON and English.
pub(crate) const REQUEST_BYTES_PER_TOKEN: u64 = 5;
/// Bytes of generated text per token, for English.
pub(crate) const TEXT_BYTES_PER_TOKEN: u64 = 4;

/// Tokens that a chat template may add to a prompt: its own system prompt and instructions for
/// tools. Templates of known models add a few hundred; what they add per message is shorter than
/// the JSON around it.
const TEMPLATE_TOKENS_MAX: u64 = 4096;
/// Tokens per choice of a usual response.
const USUAL_CHOICE_TOKENS: u64 = 256;
/// Context size of external endpoints, which do not tell theirs.
const EXTERNAL_CONTEXT_TOKENS: u32 = 32_768;
/// Most prompt tokens that we accept from an external endpoint; larger than any context. It may see
/// more than our bytes (images by URL), and it bills by its own count.
const EXTERNAL_PROMPT_MAX: u64 = 1 << 22;
/// Most completion tokens per choice that we accept from an external endpoint, including hidden
/// reasoning.
const EXTERNAL_CHOICE_MAX: u64 = 1 << 20;

/// Most bytes per token in a response without `logprobs`, including escapes.
const RESPONSE_BYTES_PER_TOKEN: u64 = 64;
/// Most bytes per token with `logprobs`: twenty alternatives, each with its bytes as numbers.
const LOGPROBS_BYTES_PER_TOKEN: u64 = 4096;
/// Bytes of an embedding: 8,192 dimensions as decimal text.
const EMBEDDING_BYTES: u64 = 8192 * 16;
/// Bytes of a score, without its document.
const SCORE_BYTES: u64 = 256;
/// JSON may write one byte as six (`\u0000`).
const ESCAPED: u64 = 6;

/// The work that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Text generation.
    Generate {
        /// Most tokens per choice; `None` without a limit.
        tokens_max: Option<u64>,
        /// Number of choices.
        choices: u64,
        /// True if the request mentions `logprobs`.
        has_logprobs: bool,
        /// True if the request mentions `echo`: the response contains the prompts.
        echoes: bool,
    },
    /// Embeddings for this many inputs.
    Embed(u64),
    /// Scores for this many documents; each is prefilled together with the query.
    Rerank(u64),
    /// Work for the tokenizer or the chat template only, which uses no tokens.
    TextQuery,
}

/// Upper bounds on the tokens that a request can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsageLimits {
    body_bytes: u64,
    task: Task,
    /// Tokens that it may use by the budgets of its key and user; nodes hold it to that.
    usage_max: Option<u64>,
}

impl UsageLimits {
    /// Bounds of a request with a body of `body_bytes`.
    pub fn new(body_bytes: usize, task: Task) -> Self {
        Self { body_bytes: body_bytes as u64, task, usage_max: None }
    }

    /// The same bounds for a request that may use so many tokens by the budgets of its key and
    /// user.
    pub(crate) fn within(self, usage_max: Option<u64>) -> Self {
        Self { usage_max, ..self }
    }

    /// Tokens that the request may use by the budgets of its key and user.
    pub(crate) fn usage_max(&self) -> Option<u64> {
        self.usage_max
    }

    fn choices(&self) -> u64 {
        match self.task {
            Task::Generate { choices, .. } => choices.max(1),
            Task::Embed(_) | Task::Rerank(_) | Task::TextQuery => 0,
        }
    }

    /// Most completion tokens of all choices; `None` without a limit.
    fn completion_max(&self) -> Option<u64> {
        match self.task {
            Task::Generate { tokens_max, choices, .. } => {
                tokens_max.map(|max| max.saturating_mul(choices.max(1)))
            }
            Task::Embed(_) | Task::Rerank(_) | Task::TextQuery => Some(0),
        }
    }

    /// Most prompt tokens: no tokenizer makes more tokens than bytes of ordinary text.
    fn prompt_max(&self) -> u64 {
        let once = self.body_bytes.saturating_add(TEMPLATE_TOKENS_MAX);
        match self.task {
            Task::Rerank(documents) => once.saturating_mul(documents.max(1)),
            Task::Generate { .. } | Task::Embed(_) => once,
            Task::TextQuery => 0,
        }
    }

    /// How many tokens the request needs of a budget, with a model of this context size.
    pub(crate) fn need(&self, context_tokens: Option<u32>) -> Need {
        let context = u64::from(context_tokens.unwrap_or(EXTERNAL_CONTEXT_TOKENS));
        let choices = self.choices();
        let longest = self.completion_max().unwrap_or(context.saturating_mul(choices));
        let usual = longest.min(USUAL_CHOICE_TOKENS.saturating_mul(choices));
        let (likely, most) = match self.task {
            // The query is computed with each document, and may be the larger part.
            Task::Rerank(documents) => {
                let all = self.prompt_estimate().saturating_mul(documents.max(1));
                (all, all)
            }
            _ => (self.prompt_estimate(), self.prompt_max()),
        };
        Need { likely: likely.saturating_add(usual), most: most.saturating_add(longest) }
    }

    /// Tokens that the request may use at an external endpoint: its prompt by estimate, and the
    /// longest response.
    pub(crate) fn at_most(&self) -> Usage {
        let longest = u64::from(EXTERNAL_CONTEXT_TOKENS).saturating_mul(self.choices());
        let completion = self.completion_max().unwrap_or(longest);
        let Need { likely, .. } = self.need(None);
        let prompt = match self.task {
            Task::Rerank(_) | Task::Embed(_) => likely,
            _ => self.prompt_estimate(),
        };
        Usage { prompt, completion, cached: 0 }
    }

    /// Most tokens per choice by the budgets of its key and user, and the estimate of its prompt.
    pub(crate) fn choice_max(&self) -> Option<u64> {
        let room = self.usage_max?.saturating_sub(self.prompt_estimate());
        Some((room / self.choices().max(1)).max(1))
    }

    /// Estimated prompt tokens.
    pub(crate) fn prompt_estimate(&self) -> u64 {
        match self.task {
            Task::TextQuery => 0,
            _ => 1 + self.body_bytes / REQUEST_BYTES_PER_TOKEN,
        }
    }

    /// Caps the usage that a node reports, after the gateway saw `seen` completion tokens. `None`
    /// if the report is possible as it is.
    pub(crate) fn cap(&self, reported: Usage, seen: u64) -> Option<Usage> {
        // The token that ends a choice may not be visible.
        let seen = seen.saturating_add(self.choices());
        let completion_max = self.completion_max().map_or(seen, |max| max.min(seen));
        let corrected = bounded(reported, self.prompt_max(), completion_max);
        (corrected != reported).then_some(corrected)
    }

    /// Caps the usage that an external endpoint reports.
    pub(crate) fn cap_external(&self, reported: Usage) -> Usage {
        let completion_max = EXTERNAL_CHOICE_MAX.saturating_mul(self.choices());
        bounded(reported, EXTERNAL_PROMPT_MAX, completion_max)
    }

    /// Estimates the usage of a response without a report: no more than was reserved for it, or
    /// short prompts, of which the estimate is too large, would exceed a budget.
    pub fn estimate(&self, generated: u64) -> Usage {
        let usage_max = self.usage_max.unwrap_or(u64::MAX);
        let completion_max = self.completion_max().map_or(usage_max, |max| max.min(usage_max));
        let completion = generated.min(completion_max);
        Usage { prompt: self.prompt_estimate().min(usage_max - completion), completion, cached: 0 }
    }

    /// True if the request itself could produce a response of `bytes` bytes with this context size.
    pub(crate) fn can_fill(&self, bytes: usize, context_tokens: u32) -> bool {
        let most = match self.task {
            Task::Generate { tokens_max, choices, has_logprobs, echoes } => {
                let token = match has_logprobs {
                    true => LOGPROBS_BYTES_PER_TOKEN,
                    false => RESPONSE_BYTES_PER_TOKEN,
                };
                let context = u64::from(context_tokens);
                let tokens = tokens_max.map_or(context, |max| max.min(context));
                let echoed = if echoes { context.min(self.body_bytes) } else { 0 };
                tokens.saturating_add(echoed).saturating_mul(choices.max(1)).saturating_mul(token)
            }
            Task::Embed(inputs) => inputs.saturating_mul(EMBEDDING_BYTES),
            Task::Rerank(documents) => {
                documents.saturating_mul(SCORE_BYTES) + self.body_bytes.saturating_mul(ESCAPED)
            }
            // A number with its text for each byte.
            Task::TextQuery => self.body_bytes.saturating_mul(RESPONSE_BYTES_PER_TOKEN),
        };
        most >= bytes as u64
    }
}

fn bounded(reported: Usage, prompt_max: u64, completion_max: u64) -> Usage {
    let prompt = reported.prompt.min(prompt_max);
    Usage {
        prompt,
        completion: reported.completion.min(completion_max),
        cached: reported.cached.min(prompt),
    }
}

/// What the gateway saw of an attempt at an external endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MeasuredUsage {
    /// True if the request was sent and not refused.
    pub is_sent: bool,
    /// The reported usage.
    pub reported: Option<Usage>,
    /// Estimated tokens received.
    pub generated: u64,
    /// Bytes received of a response that is incomplete.
    pub partial_bytes: u64,
}

impl MeasuredUsage {
    /// The usage to pay for, however the attempt ended. `None` if nothing is due.
    pub fn billed_usage(&self, limits: &UsageLimits) -> Option<Usage> {
        let partial = self.partial_bytes.div_ceil(TEXT_BYTES_PER_TOKEN);
        let estimated = || limits.estimate(self.generated.max(partial));
        self.is_sent
            .then(|| self.reported.map_or_else(estimated, |reported| limits.cap_external(reported)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tokens_max: Option<u64>, choices: u64) -> UsageLimits {
        let (has_logprobs, echoes) = (false, false);
        UsageLimits::new(1000, Task::Generate { tokens_max, choices, has_logprobs, echoes })
    }

    fn usage(prompt: u64, completion: u64, cached: u64) -> Usage {
        Usage { prompt, completion, cached }
    }

    #[test]
    fn what_is_possible_is_believed() {
        let limits = text(Some(50), 2);
        assert_eq!(limits.cap(usage(1000, 100, 999), 99), None);
        assert_eq!(limits.cap(usage(5096, 0, 0), 0), None, "the template may add some");
    }

    #[test]
    fn what_is_impossible_is_cut_to_what_is() {
        let limits = text(Some(50), 2);
        let most = u64::MAX;
        assert_eq!(limits.cap(usage(most, most, most), 10), Some(usage(5096, 12, 5096)));
        assert_eq!(limits.cap(usage(10, 101, 0), 999), Some(usage(10, 100, 0)));
        assert_eq!(limits.cap(usage(10, 0, 11), 0), Some(usage(10, 0, 10)));
        assert_eq!(text(None, 1).cap(usage(1, 9, 0), 3), Some(usage(1, 4, 0)));
        let embed = UsageLimits::new(100, Task::Embed(3));
        assert_eq!(embed.cap(usage(100, 7, 0), 0), Some(usage(100, 0, 0)));
        let rerank = UsageLimits::new(100, Task::Rerank(3));
        assert_eq!(rerank.cap(usage(300, 0, 0), 0), None, "the query is read with each");
    }

    #[test]
    fn an_external_endpoint_is_paid_by_its_count_or_by_bytes() {
        let limits = text(Some(50), 2);
        let mut measured = MeasuredUsage::default();
        assert_eq!(measured.billed_usage(&limits), None, "it was not asked");
        measured.is_sent = true;
        assert_eq!(measured.billed_usage(&limits), Some(usage(201, 0, 0)));
        measured.partial_bytes = 42;
        assert_eq!(measured.billed_usage(&limits), Some(usage(201, 11, 0)));
        measured.generated = 30;
        assert_eq!(measured.billed_usage(&limits), Some(usage(201, 30, 0)));
        measured.generated = 3000;
        assert_eq!(measured.billed_usage(&limits), Some(usage(201, 100, 0)));
        measured.reported = Some(usage(9000, 800, 0));
        assert_eq!(measured.billed_usage(&limits), Some(usage(9000, 800, 0)), "hidden reasoning");
        measured.reported = Some(usage(u64::MAX, u64::MAX, 0));
        assert_eq!(measured.billed_usage(&limits), Some(usage(1 << 22, 1 << 21, 0)));
    }

    #[test]
    fn a_large_response_is_the_requests_own_doing_only_where_it_asked_for_much() {
        let mib = 1024 * 1024;
        assert!(UsageLimits::new(9, Task::Embed(2048)).can_fill(64 * mib, 512));
        assert!(!UsageLimits::new(9, Task::Embed(1)).can_fill(mib, 512));
        assert!(!text(Some(100), 1).can_fill(mib, 4096));
        assert!(!text(None, 1).can_fill(mib, 4096) && text(None, 16).can_fill(mib, 4096));
        let task = |tokens_max, echoes| Task::Generate {
            tokens_max: Some(tokens_max),
            choices: 1,
            has_logprobs: true,
            echoes,
        };
        assert!(UsageLimits::new(9, task(500, false)).can_fill(mib, 4096));
        assert!(UsageLimits::new(999, task(0, true)).can_fill(mib, 4096), "it holds the prompt");
        assert!(!UsageLimits::new(999, task(0, false)).can_fill(mib, 4096));
        assert!(!UsageLimits::new(mib, Task::Rerank(9)).can_fill(64 * mib, 512));
    }

    #[test]
    fn what_a_request_needs_of_a_budget_has_an_estimate_and_a_bound() {
        let need = |limits: UsageLimits, context| {
            let Need { likely, most } = limits.need(context);
            (likely, most)
        };
        let prompt = 1000 + TEMPLATE_TOKENS_MAX;
        assert_eq!(need(text(Some(50), 2), None), (201 + 100, prompt + 100));
        assert_eq!(need(text(None, 2), Some(4096)), (201 + 512, prompt + 8192));
        assert_eq!(need(text(None, 1), None), (201 + 256, prompt + 32_768));
        assert_eq!(need(UsageLimits::new(1000, Task::Rerank(9)), None), (201 * 9, 201 * 9));
        assert_eq!(need(UsageLimits::new(1000, Task::TextQuery), None), (0, 0));
        let choice_max = |usage_max| text(None, 2).within(usage_max).choice_max();
        assert_eq!([Some(301), Some(0), None].map(choice_max), [Some(50), Some(1), None]);
    }

    #[test]
    fn an_estimate_is_no_more_than_was_reserved() {
        let limits = text(Some(50), 2).within(Some(90));
        assert_eq!(limits.estimate(0), usage(90, 0, 0));
        assert_eq!(limits.estimate(60), usage(30, 60, 0));
        assert_eq!(limits.estimate(200), usage(0, 90, 0));
        assert_eq!(limits.within(None).estimate(200), usage(201, 100, 0));
    }
}
