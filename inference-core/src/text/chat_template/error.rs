//! Why a chat template cannot be used, or a conversation cannot be rendered with it.

use super::SOURCE_BYTES_MAX;

/// Message for a rendered prompt that is too large.
pub(crate) const TOO_LARGE: &str = "the rendered prompt would be larger than 32 MiB";

/// Why a chat template or a conversation was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TemplateError {
    /// The source has this many bytes, which is too many.
    SourceTooLong(usize),
    /// The source for requests with tools is invalid.
    ToolUse(Box<Self>),
    /// The conversation's JSON is invalid; the text names the part.
    Conversation(String),
    /// The last message cannot be continued.
    NotContinuable(&'static str),
    /// The template raised this message.
    Raised(String),
    /// The template could not be rendered: the renderer's message.
    Rendering(String),
    /// Rendering does not end.
    Endless,
    /// The rendered prompt is too large.
    TooLarge,
    /// The rendered prompt is not UTF-8.
    BrokenText,
    /// The renderer panicked.
    Panicked,
}

impl TemplateError {
    /// True if another conversation may be rendered; otherwise the template is to blame.
    pub fn is_of_conversation(&self) -> bool {
        match self {
            Self::Conversation(_) | Self::NotContinuable(_) | Self::Raised(_) | Self::TooLarge => {
                true
            }
            Self::SourceTooLong(_)
            | Self::ToolUse(_)
            | Self::Rendering(_)
            | Self::Endless
            | Self::BrokenText
            | Self::Panicked => false,
        }
    }
}

impl std::fmt::Display for TemplateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::SourceTooLong(bytes) => {
                write!(f, "it has {bytes} bytes; {SOURCE_BYTES_MAX} are allowed")
            }
            Self::ToolUse(error) => write!(f, "tool_use: {error}"),
            Self::Conversation(why) | Self::Raised(why) | Self::Rendering(why) => f.write_str(why),
            Self::NotContinuable(why) => f.write_str(why),
            Self::Endless => f.write_str("it does not end"),
            Self::TooLarge => f.write_str(TOO_LARGE),
            Self::BrokenText => f.write_str("it wrote broken UTF-8"),
            Self::Panicked => f.write_str("it makes the renderer fail"),
        }
    }
}

impl std::error::Error for TemplateError {}
