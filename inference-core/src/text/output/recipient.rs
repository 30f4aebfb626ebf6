//! PURE. Parses messages of Functionary 3.2: the recipient in its own line, a function's name or
//! `all`, and then its arguments or text.

use super::call_context::{CallContext, Step};
use super::named::Arguments;
use super::part_collector::ProseKind;

/// The recipient of ordinary text.
const EVERYONE: &str = "all";

/// Parses one message, starting before the recipient.
#[derive(Debug, Default)]
pub(crate) struct Recipient {
    name: String,
    arguments: Option<Arguments>,
}

impl Recipient {
    pub(crate) fn step(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        if let Some(arguments) = &mut self.arguments {
            return arguments.step(c, context);
        }
        if c != '\n' {
            self.name.push(c);
            let begins = |name: &str| name.starts_with(&self.name);
            let known = begins(EVERYONE) || context.tools.iter().any(|tool| begins(&tool.name));
            return if known { Step::More } else { Step::Bad };
        }
        if self.name == EVERYONE {
            return Step::Prose(ProseKind::Content);
        }
        if !context.can_call(&self.name) {
            return Step::Bad;
        }
        self.arguments = Some(Arguments::new(std::mem::take(&mut self.name), None));
        Step::More
    }
}
