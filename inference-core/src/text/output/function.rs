//! PURE. Parses calls that look like those of a programming language; see [`super::literal`].

use super::json::Scan;
use super::literal::Literal;
use super::machine::{Context, Step};
use super::marks::LiteralMarks;
use super::tools::NAME_BYTES_MAX;

/// Parses one call, or several in square brackets.
#[derive(Debug)]
pub struct Function {
    marks: &'static LiteralMarks,
    /// After an opening square bracket.
    list: bool,
    /// A call is complete, and no other has started.
    between: bool,
    head: String,
    literal: Option<Literal>,
}

impl Function {
    /// Starts before a call. `list`: an opening square bracket was parsed.
    pub fn new(marks: &'static LiteralMarks, list: bool) -> Self {
        Self { marks, list, between: false, head: String::new(), literal: None }
    }

    /// Parses the next character.
    pub fn step(&mut self, c: char, context: &mut Context<'_>) -> Step {
        if let Some(literal) = &mut self.literal {
            let mut shown = String::new();
            let scan = literal.step(c, &mut shown);
            if scan != Scan::Bad {
                context.out.arguments(&shown);
            }
            return match scan {
                Scan::More => Step::More,
                Scan::Done => self.ended(context),
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
            c if c == self.marks.open => self.begin(context),
            c => {
                self.between = false;
                self.head.push(c);
                let legal = c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
                let limit = NAME_BYTES_MAX + self.marks.before_name.len();
                if legal && self.head.len() <= limit { Step::More } else { Step::Bad }
            }
        }
    }

    /// True if a call is complete and no other has started.
    pub fn is_between(&self) -> bool {
        self.between
    }

    fn begin(&mut self, context: &mut Context<'_>) -> Step {
        let head = std::mem::take(&mut self.head);
        match head.strip_prefix(self.marks.before_name) {
            Some(name) if context.admits(name) => {
                context.out.start(name);
                context.out.arguments("{");
                self.literal = Some(Literal::new(self.marks));
                Step::More
            }
            _ => Step::Bad,
        }
    }

    fn ended(&mut self, context: &mut Context<'_>) -> Step {
        context.out.complete();
        self.literal = None;
        self.between = self.list;
        if self.list { Step::More } else { Step::Done }
    }
}
