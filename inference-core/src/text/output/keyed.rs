//! PURE. Parses calls written as an array of objects whose only key is the function's name:
//! `[{"name": {..}}]`, as Apertus writes them.

use super::call_context::{CallContext, Step};
use super::named::Arguments;
use super::tools::NAME_BYTES_MAX;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// The array's bracket, or a single object's brace.
    #[default]
    Start,
    /// An object's brace.
    Object,
    /// The quotation mark before a name.
    Quote,
    Name,
    Colon,
    Arguments,
    /// The brace after the arguments.
    Close,
    /// A comma or the end of the array.
    Next,
}

/// Parses one array of calls, or one call.
#[derive(Debug, Default)]
pub(crate) struct Keyed {
    state: State,
    array: bool,
    name: String,
    arguments: Option<Arguments>,
}

impl Keyed {
    pub(crate) fn step(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        if self.state == State::Arguments {
            return self.in_arguments(c, context);
        }
        if self.state != State::Name && c.is_whitespace() {
            return Step::More;
        }
        self.state = match (self.state, c) {
            (State::Start, '[') => {
                self.array = true;
                State::Object
            }
            (State::Start | State::Object, '{') => State::Quote,
            (State::Quote, '"') => {
                self.name.clear();
                State::Name
            }
            (State::Name, '"') => State::Colon,
            (State::Name, c) if self.name.len() < NAME_BYTES_MAX => {
                self.name.push(c);
                State::Name
            }
            (State::Colon, ':') => {
                self.arguments = Some(Arguments::new(std::mem::take(&mut self.name), None));
                State::Arguments
            }
            (State::Close, '}') if self.array => State::Next,
            (State::Close, '}') | (State::Next, ']') => return Step::Done,
            (State::Next, ',') => State::Object,
            _ => return Step::Bad,
        };
        Step::More
    }

    /// True if a call is complete and no other has started.
    pub(crate) fn is_between(&self) -> bool {
        matches!(self.state, State::Close | State::Next)
    }

    fn in_arguments(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        let Some(arguments) = &mut self.arguments else { return Step::Bad };
        match arguments.step(c, context) {
            Step::Done => {
                self.state = State::Close;
                Step::More
            }
            other => other,
        }
    }
}
