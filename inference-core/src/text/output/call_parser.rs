//! PURE. State machines that each parse one notation of calls, from its opening delimiter to its
//! end. They take one character at a time, so chunk boundaries do not matter.

use super::call_context::{CallContext, Step};
use super::delimiters::{OpeningDelimiter, Syntax, namespaced};
use super::function::Function;
use super::header::Header;
use super::keyed::Keyed;
use super::list::List;
use super::named::Named;
use super::nested::Nested;
use super::recipient::Recipient;
use super::xml::Xml;

/// A machine for one notation.
#[derive(Debug)]
pub(crate) enum CallParser {
    /// The first character decides between JSON and the format's other notation.
    Choose(&'static OpeningDelimiter),
    /// JSON objects or an array of them.
    List(List),
    /// A name, a delimiter, JSON arguments.
    Named(Named),
    /// A function call as in a programming language.
    Function(Function),
    Xml(Xml),
    /// Tags in tags.
    Nested(Nested),
    /// Objects whose only key is the name.
    Keyed(Keyed),
    /// A name in its own line, and JSON after it.
    Recipient(Recipient),
    /// The header of a harmony message, or a call's arguments after it.
    Header(Header),
}

impl CallParser {
    /// The machine that continues after the delimiter of `open`.
    pub(crate) fn new(open: &'static OpeningDelimiter) -> Self {
        match open.syntax {
            Syntax::Json if open.text.ends_with(['{', '[']) => {
                Self::List(List::after_delimiter(open.text, open.is_bare()))
            }
            Syntax::Json => Self::List(List::new(open.is_bare())),
            Syntax::Xml(tags) if tags.is_call(open.text) => Self::Xml(Xml::in_name(tags)),
            Syntax::Nested => Self::Nested(Nested::new(open.text == namespaced::CALL)),
            Syntax::Keyed => Self::Keyed(Keyed::default()),
            Syntax::Recipient => Self::Recipient(Recipient::default()),
            Syntax::Header => Self::Header(Header::after_delimiter(open.text)),
            Syntax::Function(delimiters) if open.is_bare() => {
                Self::Function(Function::new(delimiters, true))
            }
            Syntax::Named(_) | Syntax::Xml(_) | Syntax::Function(_) => Self::Choose(open),
        }
    }

    pub(crate) fn step(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        match self {
            Self::Choose(_) if c.is_whitespace() => Step::More,
            Self::Choose(open) => {
                *self = choose_parser(open, c);
                self.step(c, context)
            }
            Self::Function(function) if c == '{' && function.is_at_list_start() => {
                // LFM2 writes JSON, too.
                *self = Self::List(List::after_delimiter("[", false));
                self.step(c, context)
            }
            Self::Keyed(keyed) => keyed.step(c, context),
            Self::Recipient(recipient) => recipient.step(c, context),
            Self::List(list) => list.step(c, context),
            Self::Named(named) => named.step(c, context),
            Self::Function(function) => function.step(c, context),
            Self::Xml(xml) => xml.step(c, context),
            Self::Nested(nested) => nested.step(c, context),
            Self::Header(header) => header.step(c, context),
        }
    }

    /// Ends the text. Emits what a started call still holds.
    pub(crate) fn finish(&mut self, context: &mut CallContext<'_>) {
        match self {
            Self::Xml(xml) => xml.finish(context),
            Self::Nested(nested) => nested.finish(context),
            _ => {}
        }
    }

    /// True if the machine has parsed nothing but separators since the last complete call.
    pub(crate) fn is_between(&self) -> bool {
        match self {
            Self::List(list) => list.is_between(),
            Self::Function(function) => function.is_between(),
            Self::Keyed(keyed) => keyed.is_between(),
            _ => false,
        }
    }
}

fn choose_parser(open: &'static OpeningDelimiter, c: char) -> CallParser {
    match open.syntax {
        Syntax::Named(delimiters) if !delimiters.json_too || !matches!(c, '{' | '[') => {
            CallParser::Named(Named::new(delimiters, open.text))
        }
        Syntax::Function(delimiters) if c != '{' => {
            CallParser::Function(Function::new(delimiters, false))
        }
        Syntax::Xml(tags) if !matches!(c, '{' | '[') => CallParser::Xml(Xml::new(tags)),
        _ => CallParser::List(List::new(false)),
    }
}
