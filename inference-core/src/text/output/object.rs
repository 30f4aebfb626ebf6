//! PURE. Parses one call as a JSON object. Models differ in the names of the keys, so all usual
//! ones are accepted, and in their order: arguments that come before the name are held.

use serde_json::{Map, Value};

use super::call_context::{CallContext, Step};
use super::json::{Json, Scan, escape_control};
use super::tools::NAME_BYTES_MAX;

/// Maximum bytes of a key, and of a name with its escapes.
const KEY_BYTES_MAX: usize = 4 * NAME_BYTES_MAX;
/// Maximum number of objects around the call, as in `{"type": "function", "function": {..}}`.
const WRAPPERS_MAX: usize = 2;

/// Meaning of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Name,
    Arguments,
    /// The call itself, or its name.
    Wrapper,
    /// The call's ID.
    Id,
    Other,
}

impl Role {
    fn of(key: &str) -> Option<Self> {
        match key {
            "name" | "tool_name" => Some(Self::Name),
            "arguments" | "parameters" => Some(Self::Arguments),
            "function" | "tool_call" => Some(Self::Wrapper),
            "id" | "call_id" | "tool_call_id" => Some(Self::Id),
            "type" => Some(Self::Other),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A key, or the end of an empty object.
    First,
    Key,
    InKey,
    Colon(Role),
    Value(Role),
    InName,
    InId,
    InArguments,
    /// Arguments written as a string that contains JSON, or as null.
    InQuoted,
    InOther,
    /// A comma or the end.
    Next,
}

/// Parses one object, starting after its opening brace.
#[derive(Debug)]
pub(crate) struct Object {
    /// A key that does not belong to a call ends it.
    bare: bool,
    wrappers: usize,
    state: State,
    json: Json,
    /// The JSON text of the key, name or quoted arguments being parsed.
    text: String,
    name: Option<String>,
    id: Option<String>,
    /// Arguments that wait for the name.
    pending_arguments: Option<String>,
    /// The arguments are complete.
    ready: bool,
    started: bool,
    /// The call is complete, whatever follows: some models forget the last brace.
    complete: bool,
}

impl Object {
    /// Starts after the opening brace.
    pub(crate) fn new(bare: bool) -> Self {
        Self {
            bare,
            wrappers: 0,
            state: State::First,
            json: Json::new(),
            text: String::new(),
            name: None,
            id: None,
            pending_arguments: None,
            ready: false,
            started: false,
            complete: false,
        }
    }

    pub(crate) fn step(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        match self.state {
            State::InKey | State::InName | State::InId | State::InQuoted => {
                return self.in_text(c, context);
            }
            State::InArguments => return self.in_arguments(c, context),
            State::InOther => return self.in_other(c, context),
            _ if c.is_whitespace() => return Step::More,
            State::First if c == '}' => return self.close(context),
            State::First | State::Key if c == '"' => return self.read(State::InKey, c),
            State::Colon(role) if c == ':' => self.state = State::Value(role),
            State::Value(role) => return self.value(role, c, context),
            State::Next if c == ',' => self.state = State::Key,
            State::Next if c == '}' => return self.close(context),
            _ => return Step::Bad,
        }
        Step::More
    }

    /// Starts a value whose first character is `c`.
    fn read(&mut self, state: State, c: char) -> Step {
        self.state = state;
        self.json = Json::new();
        self.text = c.to_string();
        if self.json.step(c) == Scan::Bad { Step::Bad } else { Step::More }
    }

    fn value(&mut self, role: Role, c: char, context: &mut CallContext<'_>) -> Step {
        match (role, c) {
            // The first value of a duplicate key counts.
            (Role::Name, _) if self.name.is_some() => self.read(State::InOther, c),
            (Role::Arguments, _) if self.pending_arguments.is_some() => {
                self.read(State::InOther, c)
            }
            (Role::Name, '"') | (Role::Wrapper, '"') => self.read(State::InName, c),
            (Role::Wrapper, '{') if self.wrappers < WRAPPERS_MAX => {
                self.wrappers += 1;
                self.state = State::First;
                Step::More
            }
            (Role::Arguments, '{') => {
                self.pending_arguments = Some(String::new());
                if !self.start(context) {
                    return Step::Bad;
                }
                self.push_arguments("{", context);
                self.read(State::InArguments, c)
            }
            (Role::Arguments, '"' | 'n') => self.read(State::InQuoted, c),
            (Role::Id, '"') => self.read(State::InId, c),
            (Role::Id | Role::Other, _) => self.read(State::InOther, c),
            _ => Step::Bad,
        }
    }

    fn in_arguments(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        let mut shown = String::new();
        if self.json.in_text() {
            escape_control(c, &mut shown)
        } else {
            shown.push(c)
        }
        match self.json.step(c) {
            Scan::More => {}
            Scan::Done => {
                self.state = State::Next;
                self.ready = true;
            }
            Scan::DoneBefore | Scan::Bad => return Step::Bad,
        }
        self.push_arguments(&shown, context);
        self.complete(context);
        Step::More
    }

    fn in_other(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        match self.json.step(c) {
            Scan::More => Step::More,
            Scan::Bad => Step::Bad,
            Scan::Done => {
                self.state = State::Next;
                Step::More
            }
            Scan::DoneBefore => {
                self.state = State::Next;
                self.step(c, context)
            }
        }
    }

    fn in_text(&mut self, c: char, context: &mut CallContext<'_>) -> Step {
        self.text.push(c);
        let limited = self.state != State::InQuoted;
        match self.json.step(c) {
            Scan::More if limited && self.text.len() > KEY_BYTES_MAX => Step::Bad,
            Scan::More => Step::More,
            Scan::Done if self.read_text(context) => Step::More,
            _ => Step::Bad,
        }
    }

    /// Handles a complete key, name or quoted arguments. Returns false if they are invalid.
    fn read_text(&mut self, context: &mut CallContext<'_>) -> bool {
        let text = std::mem::take(&mut self.text);
        let Ok(text) = serde_json::from_str::<Option<String>>(&text) else { return false };
        let (text, null) = (text.as_deref().unwrap_or_default(), text.is_none());
        match std::mem::replace(&mut self.state, State::Next) {
            State::InKey => {
                let role = Role::of(text);
                self.state = State::Colon(role.unwrap_or(Role::Other));
                role.is_some() || !self.bare
            }
            State::InId => {
                self.id = Some(text.to_string());
                true
            }
            State::InName if !context.can_call(text) => false,
            State::InName => {
                self.name = Some(text.to_string());
                self.start(context)
            }
            _ => {
                let text = if null { "{}" } else { text.trim() };
                self.pending_arguments = Some(text.to_string());
                self.ready = true;
                serde_json::from_str::<Map<String, Value>>(text).is_ok() && self.start(context)
            }
        }
    }

    /// Starts the call if its name is known and its arguments have started. Returns false if there
    /// is no room for it.
    fn start(&mut self, context: &mut CallContext<'_>) -> bool {
        let (Some(name), Some(pending_arguments)) = (&self.name, &mut self.pending_arguments)
        else {
            return true;
        };
        if !self.started {
            if !context.has_room() {
                return false;
            }
            context.out.start_call(name, self.id.as_deref());
            context.out.push_arguments(&std::mem::take(pending_arguments));
            self.started = true;
        }
        self.complete(context);
        true
    }

    fn complete(&mut self, context: &mut CallContext<'_>) {
        if self.started && self.ready && !self.complete {
            self.complete = true;
            context.out.complete_call();
        }
    }

    /// True if the call is complete and only its end is missing.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete
    }

    fn push_arguments(&mut self, more: &str, context: &mut CallContext<'_>) {
        match &mut self.pending_arguments {
            Some(pending_arguments) if !self.started => pending_arguments.push_str(more),
            _ => context.out.push_arguments(more),
        }
    }

    fn close(&mut self, context: &mut CallContext<'_>) -> Step {
        if self.wrappers > 0 {
            self.wrappers -= 1;
            self.state = State::Next;
            return Step::More;
        }
        if self.name.is_none() {
            return Step::Bad;
        }
        self.pending_arguments.get_or_insert_with(|| "{}".into());
        self.ready = true;
        if self.start(context) { Step::Done } else { Step::Bad }
    }
}
