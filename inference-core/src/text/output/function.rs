//! PURE. Parses calls that look like those of a programming language; see [`super::literal`].

use super::call_context::{CallContext, Step};
use super::delimiters::LiteralDelimiters;
use super::json::Scan;
use super::literal::Literal;
use super::tools::NAME_BYTES_MAX;

/// Parses one call, or several in square brackets.
#[derive(Debug)]
pub(crate) struct Function {
    delimiters: &'static LiteralDelimiters,
    /// After an opening square bracket.
    list: bool,
    /// A call is complete, and no other has started.
    between: bool,
    /// No delimiter came before the opening square bracket.
    bare: bool,
    head: String,
    literal: Option<Literal>,
}

impl Function {
    /// Starts before a call. `list`: an opening square bracket was parsed.
    pub(crate) fn new(delimiters: &'static LiteralDelimiters, list: bool) -> Self {
        Self { delimiters, list, bare: list, between: false, head: String::new(), literal: None }
    }

    pub(crate) fn step(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        if let Some(literal) = &mut self.literal {
            let mut shown = String::new();
            let scan = literal.step(c, &mut shown);
            if scan != Scan::Bad {
                context.out.push_arguments(&shown);
            }
            return match scan {
                Scan::More => Step::More,
                Scan::Done => self.end_call(context),
                Scan::DoneBefore | Scan::Bad => Step::Bad,
            };
        }
        match c {
            c if c.is_whitespace() && self.head.is_empty() => Step::More,
            '[' if self.head.is_empty() && !self.list => {
                self.list = true;
                Step::More
            }
            ',' if self.between => Step::More,
            ']' if self.between => Step::Done,
            c if c == self.delimiters.open => self.begin(context),
            c => {
                self.between = false;
                self.head.push(c);
                let legal = c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
                let limit = NAME_BYTES_MAX + self.delimiters.before_name.len();
                if legal && self.head.len() <= limit { Step::More } else { Step::Bad }
            }
        }
    }

    /// True after a delimiter and an opening square bracket.
    pub(crate) fn is_at_list_start(&self) -> bool {
        let is_empty = self.head.is_empty() && self.literal.is_none();
        self.list && !self.bare && !self.between && is_empty
    }

    /// True if a call is complete and no other has started.
    pub(crate) fn is_between(&self) -> bool {
        self.between
    }

    fn begin(&mut self, context: &mut CallContext<'_>) -> Step {
        let head = std::mem::take(&mut self.head);
        match head.strip_prefix(self.delimiters.before_name) {
            Some(name) if context.can_call(name) => {
                context.out.start_call(name, None);
                context.out.push_arguments("{");
                self.literal = Some(Literal::new(self.delimiters));
                Step::More
            }
            _ => Step::Bad,
        }
    }

    fn end_call(&mut self, context: &mut CallContext<'_>) -> Step {
        context.out.complete_call();
        self.literal = None;
        self.between = self.list;
        if self.list { Step::More } else { Step::Done }
    }
}
