//! PURE. Renders chat templates: Jinja from the model file, with the results of Hugging Face's
//! `apply_chat_template`. `tests/chat_templates` holds what its renderer outputs for the template
//! shapes of known families; ours outputs the same.
//!
//! Rendering takes these steps: read the JSON -> [`adapt`] it to what the template supports
//! ([`Capabilities`], detected when it is compiled) -> break up control tokens that users wrote
//! ([`control`]) -> render ([`environment`]) -> cut, for a prefill ([`final_message`]).
//!
//! Templates are untrusted code: a rendering has no access to anything, and its instructions,
//! recursion and output are limited. Memory that a hostile template uses in between is not limited,
//! but the engine's process is.

use chrono::NaiveDateTime;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde_json::{Map, Value as Json};

pub use crate::types::request::GenerationPrompt;

mod adapt;
mod capabilities;
mod control;
mod data;
mod environment;
mod error;
mod filters;
mod final_message;
mod input;
mod json;
mod methods;
mod output;
mod repr;
mod source;
mod strftime;

pub use capabilities::{Capabilities, Content, ReasoningSupport};
pub(crate) use control::Control;
pub use control::{opens_reasoning, segments};
pub use error::TemplateError;

use environment::Raised;
use input::ParsedChat;

/// Maximum length of a template's source in bytes; those of known models have less than 64 KiB.
const SOURCE_BYTES_MAX: usize = 1 << 20;
/// The name that a template is compiled under.
const NAME: &str = "chat";

/// Template sources in a model file.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// `tokenizer.chat_template`.
    pub default: String,
    /// `tokenizer.chat_template.tool_use`: replaces the default for requests with tools.
    pub(crate) tool_use: Option<String>,
}

impl From<String> for Sources {
    fn from(default: String) -> Self {
        Self { default, tool_use: None }
    }
}

/// Texts of the model's special tokens.
#[derive(Debug, Clone, Default)]
pub struct SpecialTokens {
    /// Text of the beginning-of-sequence token; empty if there is none.
    pub bos: String,
    /// Text of the end-of-sequence token; empty if there is none.
    pub eos: String,
    /// Texts of all control tokens, which users must not be able to write.
    pub control: Vec<String>,
}

/// The conversation to render.
#[derive(Debug, Clone, Copy)]
pub struct Conversation<'a> {
    /// JSON array of messages.
    pub messages: &'a str,
    /// JSON array of tools.
    pub tools: Option<&'a str>,
    /// JSON array of documents, for templates that cite.
    pub documents: Option<&'a str>,
    /// JSON object of extra template variables (`chat_template_kwargs`).
    pub variables: Option<&'a str>,
    /// Current time, for templates that print a date.
    pub now: NaiveDateTime,
    /// How the prompt ends.
    pub generation_prompt: GenerationPrompt,
}

impl<'a> Conversation<'a> {
    /// Messages that the assistant responds to.
    pub fn new(messages: &'a str, now: NaiveDateTime) -> Self {
        let generation_prompt = GenerationPrompt::Add;
        Self { messages, tools: None, documents: None, variables: None, now, generation_prompt }
    }
}

/// A model's compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    default: Compiled,
    tool_use: Option<Compiled>,
    control: Control,
}

impl ChatTemplate {
    /// Compiles the sources and detects their capabilities. The error says which source is invalid,
    /// and why.
    pub fn new(sources: impl Into<Sources>, tokens: SpecialTokens) -> Result<Self, TemplateError> {
        let sources = sources.into();
        let control = Control::new(&tokens.control);
        let default = Compiled::new(sources.default, &tokens)?;
        let compile = |source| {
            Compiled::new(source, &tokens).map_err(|e| TemplateError::ToolUse(Box::new(e)))
        };
        let tool_use = sources.tool_use.map(compile).transpose()?;
        Ok(Self { default, tool_use, control })
    }

    /// Renders the prompt of a conversation, adapted to the template's capabilities. The result may
    /// contain marks: see [`segments`]. The error is the template's own message if it raised one.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        let mut chat = ParsedChat::read(conversation)?;
        // llama.cpp's variable: templates that look for it would write a fixed date otherwise.
        let date = strftime::strftime(chat.now, "%d %b %Y");
        chat.variables.entry("date_string").or_insert_with(|| date.into());
        let compiled = self.of(conversation.tools.is_some());
        adapt::adapt(&mut chat, &compiled.capabilities);
        compiled.render(chat, &self.control)
    }

    /// Renders a conversation exactly as Hugging Face does, without adapting it.
    pub fn render_as_is(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        let chat = ParsedChat::read(conversation)?;
        self.of(conversation.tools.is_some()).render(chat, &self.control)
    }

    /// What the template supports by itself, with or without tools.
    pub fn capabilities(&self, with_tools: bool) -> &Capabilities {
        &self.of(with_tools).capabilities
    }

    /// The template's source, with or without tools.
    pub fn source(&self, with_tools: bool) -> &str {
        &self.of(with_tools).source
    }

    fn of(&self, with_tools: bool) -> &Compiled {
        self.tool_use.as_ref().filter(|_| with_tools).unwrap_or(&self.default)
    }
}

#[derive(Debug)]
struct Compiled {
    source: String,
    environment: Environment<'static>,
    bos: String,
    eos: String,
    capabilities: Capabilities,
}

impl Compiled {
    fn new(source: String, tokens: &SpecialTokens) -> Result<Self, TemplateError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(TemplateError::SourceTooLong(source.len()));
        }
        let mut environment = environment::build().map_err(explain)?;
        environment.add_template_owned(NAME, source::rewrite(&source)).map_err(explain)?;
        let (bos, eos) = (tokens.bos.clone(), tokens.eos.clone());
        let capabilities = Capabilities::default();
        let mut compiled = Self { source, environment, bos, eos, capabilities };
        compiled.capabilities = Capabilities::probe(&compiled);
        Ok(compiled)
    }

    fn render(&self, mut chat: ParsedChat, control: &Control) -> Result<String, TemplateError> {
        chat.neutralise(control);
        chat.alias_reasoning();
        let prefill = match chat.generation_prompt {
            GenerationPrompt::ContinueFinalMessage => {
                Some(final_message::add_tag(&mut chat.messages, &self.source)?)
            }
            GenerationPrompt::Add | GenerationPrompt::Omit => None,
        };
        let rendered = control::reveal(self.run(chat)?);
        match prefill {
            Some(prefill) => final_message::cut(rendered, &prefill),
            None => Ok(rendered),
        }
    }

    /// Renders with all variables set. minijinja panics on some expressions that only a faulty
    /// template contains; such a template must not end the engine.
    fn run(&self, chat: ParsedChat) -> Result<String, TemplateError> {
        let variables = self.variables(chat);
        let mut out = output::Bounded::default();
        let render = std::panic::AssertUnwindSafe(|| {
            let template = self.environment.get_template(NAME)?;
            template.render_captured_to(variables, &mut out).map(|_| ())
        });
        let result = std::panic::catch_unwind(render);
        match result.map_err(|_| TemplateError::Panicked)? {
            Err(_) if out.is_full() => Err(TemplateError::TooLarge),
            Err(error) => Err(explain(error)),
            Ok(()) => out.into_text(),
        }
    }

    fn variables(&self, chat: ParsedChat) -> Value {
        let now = chat.now;
        let strftime_now =
            Value::from_function(move |format: &str| strftime::strftime(now, format));
        let list = |all: Option<Vec<Json>>| data::from_json(all.map_or(Json::Null, Json::Array));
        let messages = chat.messages.into_iter().map(Json::Object).collect();
        let own = [
            ("messages", data::from_json(Json::Array(messages))),
            ("tools", list(chat.tools)),
            ("documents", list(chat.documents)),
            ("add_generation_prompt", Value::from(chat.generation_prompt == GenerationPrompt::Add)),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("strftime_now", strftime_now),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_string(), value));
        let more = chat.variables.into_iter().map(|(name, value)| (name, data::from_json(value)));
        Value::from_pairs(own.chain(more))
    }
}

/// A parsed message.
type Message = Map<String, Json>;

fn explain(error: Error) -> TemplateError {
    let is_raised = std::error::Error::source(&error).is_some_and(|source| source.is::<Raised>());
    match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => TemplateError::Endless,
        (_, Some(message)) if is_raised => TemplateError::Raised(message.into()),
        (ErrorKind::InvalidOperation, Some(detail)) => TemplateError::Rendering(detail.into()),
        _ => TemplateError::Rendering(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
