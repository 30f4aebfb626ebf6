//! PURE. The parser: prose and delimiters here, calls in their machines.
//!
//! It takes characters one by one and holds text that may be the start of a delimiter, so that the
//! parts are a function of the whole text, however it was split into chunks.

use super::Part;
use super::format::{Format, Thinking};
use super::machine::{Context, Machine, Step};
use super::marks::{Open, Table, When, table};
use super::out::{Kind, Out};
use super::tools::ToolSet;

/// Maximum bytes of one call, from its opening delimiter to the end of its arguments. A longer one
/// is text.
pub const CALL_BYTES_MAX: usize = 1 << 20;
/// Maximum whitespace held in bytes: it may precede a call and then is not part of the content.
const SPACE_BYTES_MAX: usize = 256;

/// Parses one response.
#[derive(Debug)]
pub struct Parser {
    table: &'static Table,
    thinking: Option<Thinking>,
    tools: ToolSet,
    calls_max: usize,
    /// Kind of prose at this point.
    kind: Kind,
    place: Place,
    /// May be the start of a delimiter.
    held: String,
    /// Whitespace that may precede a delimiter.
    space: String,
    call: Option<Call>,
    out: Out,
}

/// The parser's position in the prose.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Nothing was emitted since the start of the response, or since reasoning or a call.
    fresh: bool,
    /// After reasoning or a call: whitespace up to the next word is not content.
    behind: bool,
    /// Only whitespace since the last line break.
    line_start: bool,
    /// Only closing delimiters since a call.
    after_call: bool,
}

/// A call being parsed.
#[derive(Debug)]
struct Call {
    machine: Machine,
    /// Parsed text that has not been emitted: it is content if this is not a call.
    raw: String,
    bytes: usize,
    /// A call was completed: `raw` came after it.
    completed: bool,
}

/// Meaning of a delimiter in prose.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    ThinkOpen,
    ThinkClose,
    Call(&'static Open),
    Drop,
}

impl Parser {
    /// Creates a parser for a response in `format`. It looks for calls only if there are `tools`,
    /// and for at most `calls_max`. `starts_thinking`: the prompt ends inside reasoning.
    pub fn new(format: &Format, tools: ToolSet, starts_thinking: bool, calls_max: usize) -> Self {
        let thinks = starts_thinking && format.thinking.is_some();
        Self {
            table: table(format.calls),
            thinking: format.thinking,
            tools,
            calls_max,
            kind: if thinks { Kind::Reasoning } else { Kind::Content },
            place: Place { fresh: true, behind: thinks, line_start: true, after_call: false },
            held: String::new(),
            space: String::new(),
            call: None,
            out: Out::default(),
        }
    }

    /// Parses more text and returns the new parts.
    pub fn push(&mut self, text: &str) -> Vec<Part> {
        text.chars().for_each(|c| self.take(c));
        self.out.take()
    }

    /// Ends the text. True if a call is complete, so that the response ends with tool calls.
    pub fn finish(&mut self) -> (Vec<Part>, bool) {
        self.settle(true);
        if let Some(mut call) = self.call.take() {
            if self.out.is_open() {
                call.machine.finish(&mut self.context());
                self.out.abandon();
            } else if !call.machine.is_between() {
                self.say_all(&call.raw);
            }
        }
        if self.kind == Kind::Content && !(self.place.fresh && self.place.behind) {
            self.flush_space();
        }
        (self.out.take(), self.out.counts().1 > 0)
    }

    fn context(&mut self) -> Context<'_> {
        Context { tools: &self.tools, calls_max: self.calls_max, out: &mut self.out }
    }

    fn take(&mut self, c: char) {
        if self.call.is_some() {
            self.in_call(c);
        } else {
            self.held.push(c);
            self.settle(false);
        }
    }

    /// Decides about held text, as far as possible.
    fn settle(&mut self, at_end: bool) {
        while !self.held.is_empty() {
            let (found, may_grow) = self.look();
            match found {
                _ if may_grow && !at_end => return,
                Some((mark, meaning)) => {
                    let rest = self.held.split_off(mark.len());
                    self.held.clear();
                    self.mark(mark, meaning);
                    // No delimiter is long enough for deep recursion here.
                    rest.chars().for_each(|c| self.take(c));
                }
                None => {
                    let first = self.held.remove(0);
                    self.say(first);
                }
            }
        }
    }

    /// The longest delimiter at the start of the held text, and whether more text could make it
    /// one, or a longer one.
    fn look(&self) -> (Option<(&'static str, Meaning)>, bool) {
        let mut found: Option<(&str, Meaning)> = None;
        let mut may_grow = false;
        self.each_mark(|mark, meaning| {
            may_grow |= mark.len() > self.held.len() && mark.starts_with(&self.held);
            let longer = found.is_none_or(|(other, _)| mark.len() > other.len());
            if longer && self.held.starts_with(mark) {
                found = Some((mark, meaning));
            }
        });
        (found, may_grow)
    }

    /// Visits the delimiters that count at this position.
    fn each_mark(&self, mut visit: impl FnMut(&'static str, Meaning)) {
        let Place { fresh, line_start, after_call, .. } = self.place;
        let content = self.kind == Kind::Content;
        if let Some(thinking) = self.thinking {
            if fresh {
                visit(thinking.open, Meaning::ThinkOpen);
            }
            if !content {
                visit(thinking.close, Meaning::ThinkClose);
            }
        }
        let room = content && self.has_room();
        for open in self.table.opens {
            let counts = match open.when {
                When::Always => true,
                When::Anywhere => room,
                When::LineStart => room && line_start,
                When::AfterCall => room && after_call,
                When::First => room && fresh,
            };
            if counts {
                visit(open.mark, Meaning::Call(open));
            }
        }
        let after: &[&str] = if after_call { self.table.after } else { &[] };
        after.iter().chain(self.table.drops).for_each(|mark| visit(mark, Meaning::Drop));
    }

    fn has_room(&self) -> bool {
        !self.tools.is_empty() && self.out.counts().0 < self.calls_max
    }

    fn mark(&mut self, mark: &str, meaning: Meaning) {
        match meaning {
            Meaning::Drop => {}
            Meaning::ThinkOpen => self.turn(Kind::Reasoning),
            Meaning::ThinkClose => self.turn(Kind::Content),
            Meaning::Call(open) => {
                let raw = std::mem::take(&mut self.space) + mark;
                let bytes = mark.len();
                let machine = Machine::new(open);
                self.call = Some(Call { machine, raw, bytes, completed: false });
            }
        }
    }

    /// Switches to another kind of prose.
    fn turn(&mut self, kind: Kind) {
        self.space.clear();
        self.out.gap();
        self.kind = kind;
        self.place = Place { fresh: true, behind: true, line_start: true, after_call: false };
    }

    fn in_call(&mut self, c: char) {
        let Some(mut call) = self.call.take() else { return };
        let before = self.out.counts();
        call.bytes += c.len_utf8();
        let step = match call.bytes > CALL_BYTES_MAX {
            true => Step::Bad,
            false => call.machine.step(c, &mut self.context()),
        };
        let after = self.out.counts();
        if after != before {
            call.raw.clear();
        }
        if after.1 != before.1 {
            call.bytes = 0;
            call.completed = true;
        }
        match step {
            Step::More => {
                if after == before && !self.out.is_open() {
                    call.raw.push(c);
                }
                self.call = Some(call);
            }
            Step::Done => self.behind_call(),
            Step::Prose(kind) => self.turn(kind),
            Step::Bad if call.completed && !self.out.is_open() => {
                self.behind_call();
                call.raw.chars().for_each(|c| self.take(c));
                self.take(c);
            }
            Step::Bad => {
                if self.out.is_open() {
                    self.out.abandon();
                    self.turn(Kind::Content);
                }
                self.say_all(&call.raw);
                self.take(c);
            }
        }
    }

    fn behind_call(&mut self) {
        self.turn(Kind::Content);
        self.place.after_call = true;
    }

    fn say_all(&mut self, text: &str) {
        text.chars().for_each(|c| self.say(c));
    }

    /// Emits a character that belongs to no delimiter.
    fn say(&mut self, c: char) {
        if c.is_whitespace() {
            self.place.line_start |= c == '\n';
            if self.place.fresh && self.place.behind {
                return;
            }
            if self.space.len() < SPACE_BYTES_MAX && self.may_trim() {
                self.space.push(c);
                return;
            }
        }
        self.flush_space();
        self.out.prose(self.kind, c);
        self.place = Place {
            fresh: false,
            after_call: false,
            line_start: self.place.line_start && c.is_whitespace(),
            ..self.place
        };
    }

    /// True if a delimiter may follow that removes the whitespace before it.
    fn may_trim(&self) -> bool {
        let thinks = self.kind == Kind::Reasoning;
        thinks || self.has_room() || (self.place.fresh && self.thinking.is_some())
    }

    fn flush_space(&mut self) {
        for c in std::mem::take(&mut self.space).chars() {
            self.out.prose(self.kind, c);
            self.place.fresh = false;
        }
    }
}
