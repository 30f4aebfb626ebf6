//! PURE. The parser: prose and delimiters here, calls in their machines.
//!
//! It takes characters one by one and holds text that may be the start of a delimiter, so that the
//! parts are a function of the whole text, however it was split into chunks.

use super::call_context::{CallContext, Step};
use super::call_format::CallFormat;
use super::call_parser::CallParser;
use super::delimiters::{
    DelimiterScope, DelimiterTable, FUNCTIONARY_LINE, OpeningDelimiter, delimiter_table,
};
use super::format::{Format, ReasoningDelimiters};
use super::part_collector::{PartCollector, ProseKind};
use super::parts::OutputPart;
use super::tools::ToolSet;

/// Maximum bytes of one call, from its opening delimiter to the end of its arguments. A longer one
/// is text.
pub(crate) const CALL_BYTES_MAX: usize = 1 << 20;
/// Maximum whitespace held in bytes: it may precede a call and then is not part of the content.
const SPACE_BYTES_MAX: usize = 256;

/// Parses one response.
#[derive(Debug)]
pub struct Parser {
    table: &'static DelimiterTable,
    reasoning: Option<ReasoningDelimiters>,
    tools: ToolSet,
    calls_max: usize,
    /// Kind of prose at this point.
    kind: ProseKind,
    place: Place,
    /// May be the start of a delimiter.
    pending: String,
    /// Whitespace that may precede a delimiter.
    space: String,
    call: Option<PendingCall>,
    out: PartCollector,
}

/// The parser's position in the prose.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Nothing was emitted since the start of the response, or since reasoning or a call.
    fresh: bool,
    /// After reasoning or a call: whitespace up to the next word is not content.
    after_section: bool,
    /// Only whitespace since the last line break.
    line_start: bool,
    /// Only closing delimiters since a call.
    after_call: bool,
}

/// A call being parsed.
#[derive(Debug)]
struct PendingCall {
    machine: CallParser,
    /// Parsed text that has not been emitted: it is content if this is not a call.
    raw: String,
    bytes: usize,
    /// A call was completed: `raw` came after it.
    completed: bool,
}

impl PendingCall {
    /// The message that the prompt has begun, in families whose prompt ends with its delimiter.
    fn at_start(calls: CallFormat) -> Option<Self> {
        let machine = CallParser::new(&FUNCTIONARY_LINE);
        let begun = Self { machine, raw: String::new(), bytes: 0, completed: false };
        (calls == CallFormat::FunctionaryLines).then_some(begun)
    }
}

/// Meaning of a delimiter in prose.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    ReasoningOpen,
    ReasoningClose,
    Call(&'static OpeningDelimiter),
    Drop,
}

impl Parser {
    /// Creates a parser for a response in `format`. It looks for calls only if there are `tools`,
    /// and for at most `calls_max`. `starts_in_reasoning`: the prompt ends inside reasoning.
    pub fn new(
        format: &Format,
        tools: ToolSet,
        starts_in_reasoning: bool,
        calls_max: usize,
    ) -> Self {
        let in_reasoning = starts_in_reasoning && format.reasoning.is_some();
        Self {
            table: delimiter_table(format.calls),
            reasoning: format.reasoning,
            tools,
            calls_max,
            kind: if in_reasoning { ProseKind::Reasoning } else { ProseKind::Content },
            place: Place {
                fresh: true,
                after_section: in_reasoning,
                line_start: true,
                after_call: false,
            },
            pending: String::new(),
            space: String::new(),
            call: (!in_reasoning).then(|| PendingCall::at_start(format.calls)).flatten(),
            out: PartCollector::default(),
        }
    }

    /// Parses more text and returns the new parts.
    pub fn push(&mut self, text: &str) -> Vec<OutputPart> {
        text.chars().for_each(|c| self.parse_char(c));
        self.out.take_parts()
    }

    /// Ends the text. True if a call is complete, so that the response ends with tool calls.
    pub fn finish(&mut self) -> (Vec<OutputPart>, bool) {
        self.resolve_pending(true);
        if let Some(mut call) = self.call.take() {
            if self.out.is_open() {
                call.machine.finish(&mut self.context());
                self.out.abandon_call();
            } else if !call.machine.is_between() {
                self.emit_all(&call.raw);
            }
        }
        if self.kind == ProseKind::Content && !(self.place.fresh && self.place.after_section) {
            self.flush_space();
        }
        (self.out.take_parts(), self.out.counts().1 > 0)
    }

    /// True if the text so far ends inside reasoning.
    pub fn is_in_reasoning(&self) -> bool {
        self.kind == ProseKind::Reasoning
    }

    /// True if a call has started and its arguments are incomplete.
    pub fn is_cut_off(&self) -> bool {
        let (started, complete) = self.out.counts();
        started > complete
    }

    fn context(&mut self) -> CallContext<'_> {
        CallContext { tools: &self.tools, calls_max: self.calls_max, out: &mut self.out }
    }

    fn parse_char(&mut self, c: char) {
        if self.call.is_some() {
            self.in_call(c);
        } else {
            self.pending.push(c);
            self.resolve_pending(false);
        }
    }

    /// Decides about held text, as far as possible.
    fn resolve_pending(&mut self, at_end: bool) {
        while !self.pending.is_empty() {
            let (found, may_grow) = self.match_delimiter();
            match found {
                _ if may_grow && !at_end => return,
                Some((delimiter, meaning)) => {
                    let rest = self.pending.split_off(delimiter.len());
                    self.pending.clear();
                    self.handle_delimiter(delimiter, meaning);
                    // No delimiter is long enough for deep recursion here.
                    rest.chars().for_each(|c| self.parse_char(c));
                }
                None => {
                    let first = self.pending.remove(0);
                    self.emit(first);
                }
            }
        }
    }

    /// The longest delimiter at the start of the held text, and whether more text could make it
    /// one, or a longer one.
    fn match_delimiter(&self) -> (Option<(&'static str, Meaning)>, bool) {
        let mut found: Option<(&str, Meaning)> = None;
        let mut may_grow = false;
        self.visit_delimiters(|delimiter, meaning| {
            may_grow |=
                delimiter.len() > self.pending.len() && delimiter.starts_with(&self.pending);
            let longer = found.is_none_or(|(other, _)| delimiter.len() > other.len());
            if longer && self.pending.starts_with(delimiter) {
                found = Some((delimiter, meaning));
            }
        });
        (found, may_grow)
    }

    /// Visits the delimiters that count at this position.
    fn visit_delimiters(&self, mut visit: impl FnMut(&'static str, Meaning)) {
        let Place { fresh, line_start, after_call, .. } = self.place;
        let content = self.kind == ProseKind::Content;
        if let Some(reasoning) = self.reasoning {
            if fresh {
                visit(reasoning.open, Meaning::ReasoningOpen);
            }
            if !content {
                visit(reasoning.close, Meaning::ReasoningClose);
            }
        }
        let room = content && self.has_room();
        for open in self.table.opens {
            let counts = match open.scope {
                DelimiterScope::Always => true,
                DelimiterScope::Anywhere => room,
                DelimiterScope::LineStart => room && line_start,
                DelimiterScope::AfterCall => room && after_call,
                DelimiterScope::First => room && fresh,
            };
            if counts {
                visit(open.text, Meaning::Call(open));
            }
        }
        let after: &[&str] = if after_call { self.table.after } else { &[] };
        after.iter().chain(self.table.drops).for_each(|delimiter| visit(delimiter, Meaning::Drop));
    }

    fn has_room(&self) -> bool {
        !self.tools.is_empty() && self.out.counts().0 < self.calls_max
    }

    fn handle_delimiter(&mut self, delimiter: &str, meaning: Meaning) {
        match meaning {
            Meaning::Drop => {}
            Meaning::ReasoningOpen => self.switch_to(ProseKind::Reasoning),
            Meaning::ReasoningClose => self.switch_to(ProseKind::Content),
            Meaning::Call(open) => {
                let raw = std::mem::take(&mut self.space) + delimiter;
                let bytes = delimiter.len();
                let machine = CallParser::new(open);
                self.call = Some(PendingCall { machine, raw, bytes, completed: false });
            }
        }
    }

    /// Switches to another kind of prose.
    fn switch_to(&mut self, kind: ProseKind) {
        self.space.clear();
        self.out.record_gap();
        self.kind = kind;
        self.place =
            Place { fresh: true, after_section: true, line_start: true, after_call: false };
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
            Step::Done => self.finish_call(),
            Step::Prose(kind) => self.switch_to(kind),
            Step::Bad if call.completed && !self.out.is_open() => {
                self.finish_call();
                call.raw.chars().for_each(|c| self.parse_char(c));
                self.parse_char(c);
            }
            Step::Bad => {
                if self.out.is_open() {
                    self.out.abandon_call();
                    self.switch_to(ProseKind::Content);
                }
                self.emit_all(&call.raw);
                self.parse_char(c);
            }
        }
    }

    fn finish_call(&mut self) {
        self.switch_to(ProseKind::Content);
        self.place.after_call = true;
    }

    fn emit_all(&mut self, text: &str) {
        text.chars().for_each(|c| self.emit(c));
    }

    /// Emits a character that belongs to no delimiter.
    fn emit(&mut self, c: char) {
        if c.is_whitespace() {
            self.place.line_start |= c == '\n';
            if self.place.fresh && self.place.after_section {
                return;
            }
            if self.space.len() < SPACE_BYTES_MAX && self.may_trim() {
                self.space.push(c);
                return;
            }
        }
        self.flush_space();
        self.out.push_prose(self.kind, c);
        self.place = Place {
            fresh: false,
            after_call: false,
            line_start: self.place.line_start && c.is_whitespace(),
            ..self.place
        };
    }

    /// True if a delimiter may follow that removes the whitespace before it.
    fn may_trim(&self) -> bool {
        let in_reasoning = self.kind == ProseKind::Reasoning;
        in_reasoning || self.has_room() || (self.place.fresh && self.reasoning.is_some())
    }

    fn flush_space(&mut self) {
        for c in std::mem::take(&mut self.space).chars() {
            self.out.push_prose(self.kind, c);
            self.place.fresh = false;
        }
    }
}
