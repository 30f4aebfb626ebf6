//! PURE. JSON as template values: lists and dicts that print as Python's do, and dicts whose
//! methods hide keys of the same name behind a dot (`x.items` is the method, `x['items']` the key),
//! which templates rely on.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectExt, ObjectRepr};
use minijinja::{Error, ErrorKind, State, Value};
use serde_json::Value as Json;

use super::repr::write_repr;

/// Methods that Jinja's sandbox allows.
const METHODS: [&str; 6] = ["copy", "fromkeys", "get", "items", "keys", "values"];
/// Methods that it hides, because they change the dict.
const HIDDEN: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];

/// A Python list.
pub(crate) struct List(pub(crate) Vec<Value>);
/// A Python dict, in insertion order.
pub(crate) struct Dict(pub(crate) Vec<(Arc<str>, Value)>);

/// Converts JSON to a template value.
pub(crate) fn from_json(json: Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(value),
        Json::Number(number) => from_number(&number),
        Json::String(text) => Value::from(text),
        Json::Array(items) => list(items.into_iter().map(from_json).collect()),
        Json::Object(map) => {
            let entry = |(key, value): (String, Json)| (Arc::from(key), from_json(value));
            Value::from_object(Dict(map.into_iter().map(entry).collect()))
        }
    }
}

fn from_number(number: &serde_json::Number) -> Value {
    match (number.as_i64(), number.as_u64(), number.as_f64()) {
        (Some(n), ..) => Value::from(n),
        (_, Some(n), _) => Value::from(n),
        (.., n) => Value::from(n.unwrap_or(f64::NAN)),
    }
}

/// Wraps items as a list value.
pub(crate) fn list(items: Vec<Value>) -> Value {
    Value::from_object(List(items))
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(Value::from_dyn_object(self.clone()), f)
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let key = key.as_str()?;
        self.0.iter().find(|(k, _)| &**k == key).map(|(_, v)| v.clone())
    }

    /// The attribute with this name, as in `x.key`.
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if HIDDEN.contains(&key) {
            return None;
        }
        if METHODS.contains(&key) {
            let owner = Value::from_dyn_object(self.clone());
            return Some(Value::from_object(Method { owner, name: key.into() }));
        }
        self.0.iter().find(|(k, _)| &**k == key).map(|(_, v)| v.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| Box::new(this.0.iter().map(|(k, _)| Value::from(k.clone()))))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        render(Value::from_dyn_object(self.clone()), f)
    }
}

/// `dict.items` and the like, before the call.
#[derive(Debug)]
pub(crate) struct Method {
    owner: Value,
    name: String,
}

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.owner.call_method(state, &self.name, args)
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        method: &str,
        _: &[Value],
    ) -> Result<Value, Error> {
        let message = format!("a method has no method named {method}");
        Err(Error::new(ErrorKind::InvalidOperation, message))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<built-in method {} of dict object>", self.name)
    }
}

fn render(value: Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut out = String::new();
    write_repr(&mut out, &value);
    f.write_str(&out)
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {}", self.0.len())
    }
}

impl fmt::Debug for Dict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a dict of {}", self.0.len())
    }
}
