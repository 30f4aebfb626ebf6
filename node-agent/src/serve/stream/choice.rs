//! One choice of a response: turns engine events into new parts.

use std::collections::VecDeque;
use std::task::{Context, Poll};
use std::time::Duration;

use inference_core::text::output::{Format, OutputPart, Parser, ToolSet};
use inference_core::types::request::{
    Event, FinishReason, ResponseTimes, TextChunk, Token, TokenLogprob,
};
use inference_protocol::openai::{PromptProgress, Timings};

use crate::engine::client::Generation;
use crate::types::error::Error;

/// Most logprobs of the prompts of one response, each of the alternatives counted: they are kept in
/// memory until the response begins.
pub(crate) const PROMPT_LOGPROBS_MAX: usize = 1 << 20;

/// How to parse the text of a response.
#[derive(Debug, Clone)]
pub(crate) enum Reading {
    Plain,
    /// Separate reasoning and tool calls from it.
    Parted {
        /// The model's notation.
        format: Format,
        tools: ToolSet,
        calls_max: usize,
    },
}

/// New parts of a choice.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ChoiceDelta {
    /// Text and other parts, in order.
    pub parts: Vec<OutputPart>,
    /// Logprobs of its tokens, if requested.
    pub logprobs: Vec<TokenLogprob>,
    /// Characters of the choice before this, including an echoed prompt.
    pub offset: usize,
    /// Tokens that led to it and were not reported before.
    pub tokens: Vec<Token>,
    /// Finish reason, if this is the end.
    pub finish: Option<&'static str>,
    /// The stop string that ended it.
    pub stop_reason: Option<String>,
    /// How much of the prompt is computed; then there is nothing else.
    pub prefill: Option<PromptProgress>,
}

/// One choice. See the module.
#[derive(Debug)]
pub(crate) struct Choice {
    pub index: u32,
    /// True for the first choice of its prompt, which counts the prompt's tokens.
    pub is_first_of_prompt: bool,
    /// The prompt's text, if it is echoed.
    pub echo: Option<String>,
    /// Logprobs of the prompt's tokens, if it is echoed with them.
    pub prompt_logprobs: Vec<TokenLogprob>,
    /// Most of these, with all alternatives.
    pub prompt_logprobs_max: usize,
    /// The engine's events; `None` while its prompt waits for others of the request.
    pub generation: Option<Generation>,
    /// True if the client requested logprobs.
    pub wants_logprobs: bool,
    /// The request's stop strings.
    pub stops: Vec<String>,
    /// True if its opening chunk was sent.
    pub opened: bool,
    pub prompt_tokens: u32,
    /// Prompt tokens served from the cache.
    pub cached_tokens: u32,
    pub completion_tokens: u32,
    /// Reasoning tokens so far: those whose text starts inside the reasoning.
    pub reasoning_tokens: u32,
    /// True if the client wants to know how much of the prompt is computed.
    pub shows_prefill: bool,
    /// How long the engine has worked on it.
    times: ResponseTimes,
    /// Tokens that another node generated.
    resumed_tokens: u32,
    /// Tokens that this node has generated.
    generated_tokens: u32,
    reading: Reading,
    /// Parses the text; set once the choice has started.
    parser: Option<Box<Parser>>,
    /// Number of characters emitted.
    chars: usize,
    /// Logprobs of tokens whose text the parser holds back.
    pending_logprobs: Vec<TokenLogprob>,
    /// Ids of those tokens.
    unreported: Vec<Token>,
    /// Pieces emitted on another node, not yet parsed, and how many tokens each has.
    replayed: VecDeque<(TextChunk, u32)>,
    done: bool,
}

impl Choice {
    /// Creates a choice that waits for its generation.
    pub(crate) fn new(index: u32, reading: Reading) -> Self {
        Self {
            index,
            is_first_of_prompt: true,
            echo: None,
            prompt_logprobs: Vec::new(),
            prompt_logprobs_max: PROMPT_LOGPROBS_MAX,
            generation: None,
            wants_logprobs: false,
            stops: Vec::new(),
            opened: false,
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            reasoning_tokens: 0,
            shows_prefill: false,
            times: ResponseTimes::default(),
            resumed_tokens: 0,
            generated_tokens: 0,
            reading,
            parser: None,
            chars: 0,
            pending_logprobs: Vec::new(),
            unreported: Vec::new(),
            replayed: VecDeque::new(),
            done: false,
        }
    }

    /// Starts the choice with the prompt's text.
    pub(crate) fn echoing(mut self, echo: Option<String>) -> Self {
        self.chars = echo.as_ref().map_or(0, |text| text.chars().count());
        self.echo = echo;
        self
    }

    /// Waits for an event and returns its new parts.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<ChoiceDelta>, Error>> {
        match self.replayed.pop_front() {
            Some((shown, tokens)) => Poll::Ready(Ok(self.read(shown, tokens))),
            None => match &mut self.generation {
                Some(generation) => generation.poll_next(cx).map(|event| self.take(event)),
                None => Poll::Pending,
            },
        }
    }

    /// True if the engine works on it.
    pub(crate) fn is_running(&self) -> bool {
        self.generation.is_some() && !self.done
    }

    /// The speed of the choice so far.
    pub(crate) fn timings(&self) -> Timings {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let computed = self.prompt_tokens.saturating_sub(self.cached_tokens);
        let ResponseTimes { prefill, decode, drafted, accepted } = self.times;
        let generated = (self.generated_tokens, ms(decode));
        Timings::new(self.cached_tokens, (computed, ms(prefill)), generated)
            .with_drafts(drafted, accepted)
    }

    fn start(&mut self, prompt_tokens: u32, in_reasoning: bool) {
        self.prompt_tokens = prompt_tokens;
        if let Reading::Parted { format, tools, calls_max } = &self.reading {
            let parser = Parser::new(format, tools.clone(), in_reasoning, *calls_max);
            self.parser = Some(Box::new(parser));
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.done
    }

    pub(crate) fn take(&mut self, event: Option<Event>) -> Result<Option<ChoiceDelta>, Error> {
        match event {
            Some(Event::Text(shown)) => {
                self.times = shown.times;
                let tokens = count(&shown.tokens);
                self.generated_tokens = self.generated_tokens.saturating_add(tokens);
                Ok(self.read(shown, tokens))
            }
            Some(Event::Prefilled { tokens, cached_tokens, elapsed }) => {
                self.cached_tokens = cached_tokens;
                let progress = PromptProgress {
                    total: self.prompt_tokens,
                    cache: cached_tokens,
                    processed: tokens,
                    time_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
                };
                let delta = ChoiceDelta { prefill: Some(progress), ..ChoiceDelta::default() };
                Ok(self.shows_prefill.then_some(delta))
            }
            Some(Event::Replayed(all)) => {
                // The gateway that resumes the response already knows its tokens.
                self.replayed.extend(all.into_iter().map(|shown| {
                    let tokens = count(&shown.tokens);
                    (TextChunk { tokens: Vec::new(), ..shown }, tokens)
                }));
                self.resumed_tokens = self.replayed.iter().map(|(_, tokens)| tokens).sum();
                Ok(None)
            }
            Some(Event::Finished { reason, completion_tokens, cached_tokens, tokens, times }) => {
                self.times = times;
                self.completion_tokens = completion_tokens;
                self.cached_tokens = cached_tokens;
                self.generated_tokens = completion_tokens.saturating_sub(self.resumed_tokens);
                self.count_reasoning(count(&tokens));
                self.unreported.extend(tokens);
                Ok(Some(self.finish(reason)))
            }
            Some(Event::PromptLogprobs(logprobs)) => self.add_prompt_logprobs(logprobs),
            Some(Event::Failed(failure)) => Err(failure.into()),
            Some(Event::Started { prompt_tokens, in_reasoning }) => {
                self.start(prompt_tokens, in_reasoning);
                Ok(None)
            }
            Some(Event::QueryResult(_) | Event::SlotDone(_) | Event::Embedded { .. }) => Ok(None),
            Some(Event::Cancelled) | None => Err(Error::EngineLost),
        }
    }

    fn add_prompt_logprobs(
        &mut self,
        logprobs: Vec<TokenLogprob>,
    ) -> Result<Option<ChoiceDelta>, Error> {
        let of = |token: &TokenLogprob| 1 + token.likeliest.len();
        let count = logprobs.iter().map(of).sum::<usize>();
        self.prompt_logprobs_max =
            self.prompt_logprobs_max.checked_sub(count).ok_or_else(|| Error::Invalid {
                param: "logprobs",
                message: format!(
                    "the prompts of this request have too many tokens for logprobs with echo: with \
                     their alternatives, a response has at most {PROMPT_LOGPROBS_MAX}, shared by \
                     its choices; send fewer prompts at once or ask for fewer logprobs"
                ),
            })?;
        self.prompt_logprobs.extend(logprobs);
        Ok(None)
    }

    fn read(&mut self, shown: TextChunk, tokens: u32) -> Option<ChoiceDelta> {
        self.count_reasoning(tokens);
        self.pending_logprobs.extend(shown.logprobs);
        self.unreported.extend(shown.tokens);
        let parts = match &mut self.parser {
            None => vec![OutputPart::Content(shown.text)],
            Some(parser) => parser.push(&shown.text),
        };
        (!parts.is_empty()).then(|| self.delta(parts, None))
    }

    /// Counts tokens whose text comes next.
    fn count_reasoning(&mut self, tokens: u32) {
        if self.parser.as_ref().is_some_and(|parser| parser.is_in_reasoning()) {
            self.reasoning_tokens = self.reasoning_tokens.saturating_add(tokens);
        }
    }

    fn delta(&mut self, parts: Vec<OutputPart>, finish: Option<&'static str>) -> ChoiceDelta {
        let offset = self.chars;
        for part in &parts {
            if let OutputPart::Content(text) = part {
                self.chars += text.chars().count();
            }
        }
        let logprobs = std::mem::take(&mut self.pending_logprobs);
        ChoiceDelta {
            parts,
            logprobs,
            offset,
            tokens: std::mem::take(&mut self.unreported),
            finish,
            stop_reason: None,
            prefill: None,
        }
    }

    fn finish(&mut self, reason: FinishReason) -> ChoiceDelta {
        self.done = true;
        let (parts, called) = match &mut self.parser {
            None => (Vec::new(), false),
            Some(parser) => parser.finish(),
        };
        let is_cut_off = self.parser.as_ref().is_some_and(|parser| parser.is_cut_off());
        let finish = match reason {
            // A client must not run a call whose arguments are incomplete.
            FinishReason::Stop | FinishReason::StopString(_) if is_cut_off => "length",
            FinishReason::Length => "length",
            FinishReason::Stop | FinishReason::StopString(_) if called => "tool_calls",
            FinishReason::Stop | FinishReason::StopString(_) => "stop",
        };
        let stop_reason = match reason {
            FinishReason::StopString(index) => self.stops.get(index as usize).cloned(),
            FinishReason::Stop | FinishReason::Length => None,
        };
        ChoiceDelta { stop_reason, ..self.delta(parts, Some(finish)) }
    }
}

fn count(tokens: &[Token]) -> u32 {
    u32::try_from(tokens.len()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
