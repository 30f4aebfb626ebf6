//! One answer of a request: engine events -> what is new of it.

use std::collections::VecDeque;
use std::task::{Context, Poll};

use inference_core::text::output::{Format, Parser, Part, ToolSet};
use inference_core::types::request::{Event, FinishReason, Shown, Token, TokenLogprob};

use crate::engine::client::Generation;
use crate::types::error::Error;

/// How the text of an answer is read.
#[derive(Debug, Clone)]
pub enum Reading {
    /// As it is.
    Plain,
    /// Thoughts and calls are parted from it.
    Parted {
        /// How the model writes them.
        format: Format,
        /// What may be called.
        tools: ToolSet,
        /// Most calls.
        calls_max: usize,
    },
}

/// What is new of an answer.
#[derive(Debug, Default, PartialEq)]
pub struct News {
    /// Text and more, in order.
    pub parts: Vec<Part>,
    /// Its tokens, where they were asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// Characters of the answer that come before it, an echoed prompt included.
    pub offset: usize,
    /// The tokens that led to it and were not told before.
    pub tokens: Vec<Token>,
    /// Why nothing follows.
    pub finish: Option<&'static str>,
}

/// One answer. See the module.
#[derive(Debug)]
pub struct Choice {
    /// Its place in the list of choices.
    pub index: u32,
    /// Whether its prompt is not yet counted by another choice.
    pub is_first_of_prompt: bool,
    /// What its text begins with, where the prompt is echoed.
    pub echo: Option<String>,
    /// The engine's events.
    pub generation: Generation,
    /// Whether logprobs were asked for.
    pub wants_logprobs: bool,
    /// Whether its opening chunk was sent.
    pub opened: bool,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of those, found in the cache.
    pub cached_tokens: u32,
    /// Tokens generated.
    pub completion_tokens: u32,
    reading: Reading,
    /// Parts the text, once it has begun.
    parser: Option<Box<Parser>>,
    /// Characters that were told.
    chars: usize,
    /// Of tokens whose text the reader holds back.
    held: Vec<TokenLogprob>,
    /// These tokens.
    untold: Vec<Token>,
    /// What it has shown elsewhere, not yet read.
    replayed: VecDeque<Shown>,
    done: bool,
}

impl Choice {
    /// An answer that begins with `generation`'s first event.
    pub fn new(index: u32, generation: Generation, reading: Reading) -> Self {
        Self {
            index,
            is_first_of_prompt: true,
            echo: None,
            generation,
            wants_logprobs: false,
            opened: false,
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            reading,
            parser: None,
            chars: 0,
            held: Vec::new(),
            untold: Vec::new(),
            replayed: VecDeque::new(),
            done: false,
        }
    }

    /// Lets the answer begin with the prompt's text.
    pub fn echoing(mut self, echo: Option<String>) -> Self {
        self.chars = echo.as_ref().map_or(0, |text| text.chars().count());
        self.echo = echo;
        self
    }

    /// What is new, once there is an event.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<News>, Error>> {
        match self.replayed.pop_front() {
            Some(shown) => Poll::Ready(Ok(self.read(shown))),
            None => self.generation.poll_next(cx).map(|event| self.take(event)),
        }
    }

    /// The engine has begun.
    fn start(&mut self, prompt_tokens: u32, thinking: bool) {
        self.prompt_tokens = prompt_tokens;
        if let Reading::Parted { format, tools, calls_max } = &self.reading {
            let parser = Parser::new(format, tools.clone(), thinking, *calls_max);
            self.parser = Some(Box::new(parser));
        }
    }

    /// Whether nothing more comes.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Reads an event.
    pub fn take(&mut self, event: Option<Event>) -> Result<Option<News>, Error> {
        match event {
            Some(Event::Text(shown)) => Ok(self.read(shown)),
            Some(Event::Replayed(all)) => {
                // Whoever resumes the answer knows its tokens.
                let known = |shown| Shown { tokens: Vec::new(), ..shown };
                self.replayed.extend(all.into_iter().map(known));
                Ok(None)
            }
            Some(Event::Finished { reason, completion_tokens, cached_tokens, tokens }) => {
                self.completion_tokens = completion_tokens;
                self.cached_tokens = cached_tokens;
                self.untold.extend(tokens);
                Ok(Some(self.finish(reason)))
            }
            Some(Event::Failed(failure)) => Err(failure.into()),
            Some(Event::Started { prompt_tokens, thinking }) => {
                self.start(prompt_tokens, thinking);
                Ok(None)
            }
            Some(Event::Told(_) | Event::Embedded { .. }) => Ok(None),
            Some(Event::Cancelled) | None => Err(Error::EngineLost),
        }
    }

    fn read(&mut self, shown: Shown) -> Option<News> {
        self.held.extend(shown.logprobs);
        self.untold.extend(shown.tokens);
        let parts = match &mut self.parser {
            None => vec![Part::Content(shown.text)],
            Some(parser) => parser.push(&shown.text),
        };
        (!parts.is_empty()).then(|| self.news(parts, None))
    }

    fn news(&mut self, parts: Vec<Part>, finish: Option<&'static str>) -> News {
        let offset = self.chars;
        for part in &parts {
            if let Part::Content(text) = part {
                self.chars += text.chars().count();
            }
        }
        let logprobs = std::mem::take(&mut self.held);
        News { parts, logprobs, offset, tokens: std::mem::take(&mut self.untold), finish }
    }

    fn finish(&mut self, reason: FinishReason) -> News {
        self.done = true;
        let (parts, called) = match &mut self.parser {
            None => (Vec::new(), false),
            Some(parser) => parser.finish(),
        };
        let finish = match reason {
            FinishReason::Stop if called => "tool_calls",
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
        };
        self.news(parts, Some(finish))
    }
}
