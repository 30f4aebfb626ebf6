//! PURE. Parses harmony, the notation of gpt-oss: every message has a header that names its channel
//! and, for a call, its recipient.
//! <https://github.com/openai/openai-cookbook/blob/main/articles/openai-harmony.md>

use super::machine::{Context, Step};
use super::named::Arguments;
use super::out::Kind;

/// Maximum length of a header in bytes.
const HEADER_BYTES_MAX: usize = 256;
const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";
/// Precedes the recipient.
const TO: &str = "to=";

/// Parses a header, and the arguments of a call after it.
#[derive(Debug)]
pub struct Header {
    text: String,
    arguments: Option<Arguments>,
}

impl Header {
    /// Starts after `mark`, which begins a header.
    pub fn behind(mark: &str) -> Self {
        Self { text: mark.to_string(), arguments: None }
    }

    /// Parses the next character.
    pub fn step(&mut self, c: char, context: &mut Context<'_>) -> Step {
        if let Some(arguments) = &mut self.arguments {
            return arguments.step(c, context);
        }
        self.text.push(c);
        if self.text.len() > HEADER_BYTES_MAX {
            return Step::Bad;
        }
        if self.text.ends_with(MESSAGE) { self.complete(context) } else { Step::More }
    }

    fn complete(&mut self, context: &Context<'_>) -> Step {
        if let Some(recipient) = word_behind(&self.text, TO) {
            let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
            if !context.admits(name) {
                return Step::Bad;
            }
            self.arguments = Some(Arguments::new(name.to_string()));
            return Step::More;
        }
        match word_behind(&self.text, CHANNEL) {
            Some("analysis") => Step::Prose(Kind::Reasoning),
            Some("commentary" | "final") => Step::Prose(Kind::Content),
            _ => Step::Bad,
        }
    }
}

/// The word that follows `mark`.
fn word_behind<'a>(text: &'a str, mark: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(mark)?;
    rest.split(|c: char| c.is_whitespace() || c == '<').next()
}
