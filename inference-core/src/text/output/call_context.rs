//! PURE. What the parsers of calls share: the tools and the collected parts, and the result of a
//! character.

use super::part_collector::{PartCollector, ProseKind};
use super::tools::ToolSet;

/// Result of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The machine needs more.
    More,
    /// The notation ends with this character.
    Done,
    /// This character does not fit the notation. What the machine has parsed since the last
    /// complete call is text, unless a call has started.
    Bad,
    /// Prose of this kind starts after this character.
    Prose(ProseKind),
}

/// What the machines use and write to.
#[derive(Debug)]
pub(crate) struct CallContext<'a> {
    /// Functions that may be called.
    pub(crate) tools: &'a ToolSet,
    /// Maximum number of calls in one response.
    pub(crate) calls_max: usize,
    /// Destination of the parts.
    pub(crate) out: &'a mut PartCollector,
}

impl CallContext<'_> {
    /// True if one more call may start.
    pub(crate) fn has_room(&self) -> bool {
        !self.tools.is_empty() && self.out.counts().0 < self.calls_max
    }

    /// True if a call of `name` may start.
    pub(crate) fn can_call(&self, name: &str) -> bool {
        self.has_room() && self.tools.get(name).is_some()
    }
}
