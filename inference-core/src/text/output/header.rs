//! PURE. Parses harmony, the notation of gpt-oss: every message has a header that names its channel
//! and, for a call, its recipient.
//! <https://github.com/openai/openai-cookbook/blob/main/articles/openai-harmony.md>

use super::call_context::{CallContext, Step};
use super::named::Arguments;
use super::part_collector::ProseKind;

/// Maximum length of a header in bytes.
const HEADER_BYTES_MAX: usize = 256;
const MESSAGE: &str = "<|message|>";
const CHANNEL: &str = "<|channel|>";
/// Precedes the recipient.
const TO: &str = "to=";

/// Parses a header, and the arguments of a call after it.
#[derive(Debug)]
pub(crate) struct Header {
    text: String,
    arguments: Option<Arguments>,
}

impl Header {
    /// Starts after `delimiter`, which begins a header.
    pub(crate) fn after_delimiter(delimiter: &str) -> Self {
        Self { text: delimiter.to_string(), arguments: None }
    }

    pub(crate) fn step(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        if let Some(arguments) = &mut self.arguments {
            return arguments.step(c, context);
        }
        self.text.push(c);
        if self.text.len() > HEADER_BYTES_MAX {
            return Step::Bad;
        }
        if self.text.ends_with(MESSAGE) { self.complete(context) } else { Step::More }
    }

    fn complete(&mut self, context: &CallContext<'_>) -> Step {
        if let Some(recipient) = word_after(&self.text, TO) {
            let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
            if !context.can_call(name) {
                return Step::Bad;
            }
            self.arguments = Some(Arguments::new(name.to_string(), None));
            return Step::More;
        }
        match word_after(&self.text, CHANNEL) {
            Some("analysis") => Step::Prose(ProseKind::Reasoning),
            Some("commentary" | "final") => Step::Prose(ProseKind::Content),
            _ => Step::Bad,
        }
    }
}

/// The word that follows `delimiter`.
fn word_after<'a>(text: &'a str, delimiter: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(delimiter)?;
    rest.split(|c: char| c.is_whitespace() || c == '<').next()
}
