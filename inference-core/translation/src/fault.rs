//! Errors in requests, and typed access to JSON values that reports them with their path.

use std::fmt::Display;

use inference_protocol::openai::ParseError;
use serde_json::{Map, Value};

/// What is wrong with a request. The path is built from the inside out, and only for errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    path: String,
    /// `None` if the field is missing.
    message: Option<String>,
}

impl Fault {
    /// A fault of the value itself.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { path: String::new(), message: Some(message.into()) }
    }

    /// A fault of the field `name`.
    pub(crate) fn of(name: &str, message: impl Into<String>) -> Self {
        Self::new(message).within(name)
    }

    /// The field `name` is missing.
    pub(crate) fn missing(name: &str) -> Self {
        Self { path: name.into(), message: None }
    }

    /// The fault as seen from the object or list that has the value as `place`: a field's name, or
    /// an index in brackets.
    pub(crate) fn within(mut self, place: impl Display) -> Self {
        self.path = match self.path.as_str() {
            "" => place.to_string(),
            path if path.starts_with('[') => format!("{place}{path}"),
            path => format!("{place}.{path}"),
        };
        self
    }

    /// The fault of the only entry of a list, as a fault of that entry.
    pub(crate) fn of_first(mut self) -> Self {
        if let Some(rest) = self.path.strip_prefix("[0]") {
            self.path = rest.trim_start_matches('.').into();
        }
        self
    }

    /// The fault as seen from a list that has the value at `index`.
    pub(crate) fn at(self, index: usize) -> Self {
        self.within(format_args!("[{index}]"))
    }
}

impl From<Fault> for ParseError {
    fn from(Fault { path, message }: Fault) -> Self {
        let param = (!path.is_empty()).then(|| path.clone());
        let message = match message {
            None => format!("'{path}' is missing"),
            Some(message) if path.is_empty() => message,
            Some(message) => format!("invalid value for '{path}': {message}"),
        };
        Self { message, param }
    }
}

/// A JSON object whose fields are taken one by one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fields(pub(crate) Map<String, Value>);

impl Fields {
    /// The fields of an object.
    pub(crate) fn of(value: Value) -> Result<Self, Fault> {
        match value {
            Value::Object(map) => Ok(Self(map)),
            other => Err(expected("an object", &other)),
        }
    }

    /// Takes a field; `null` is absent. Leaves null in its place, which keeps the order and is
    /// faster than closing the gap.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.get_mut(name).map(Value::take).filter(|value| !value.is_null())
    }

    /// Takes a field by `read`.
    pub(crate) fn read<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Value) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        self.take(name).map(|value| read(value).map_err(|fault| fault.within(name))).transpose()
    }

    /// Takes a field that must be there.
    pub(crate) fn require<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(Value) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.read(name, read)?.ok_or_else(|| Fault::missing(name))
    }

    /// Takes a string.
    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, Fault> {
        self.read(name, text)
    }

    /// Takes a string that must be there.
    pub(crate) fn required_text(&mut self, name: &str) -> Result<String, Fault> {
        self.require(name, text)
    }

    /// Takes a boolean.
    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, Fault> {
        self.read(name, |value| value.as_bool().ok_or_else(|| expected("true or false", &value)))
    }

    /// Takes a number.
    pub(crate) fn number(&mut self, name: &str) -> Result<Option<f64>, Fault> {
        self.read(name, |value| value.as_f64().ok_or_else(|| expected("a number", &value)))
    }

    /// Takes a whole number, at least 0. `20.0` is one.
    pub(crate) fn count(&mut self, name: &str) -> Result<Option<u64>, Fault> {
        self.read(name, |value| {
            let whole = |number: f64| {
                let is_whole = number.fract() == 0.0 && (0.0..=9e15).contains(&number);
                is_whole.then_some(number as u64)
            };
            let count = value.as_u64().or_else(|| value.as_f64().and_then(whole));
            count.ok_or_else(|| expected("a whole number, at least 0", &value))
        })
    }

    /// Takes a list whose entries `read` reads.
    pub(crate) fn list<T>(
        &mut self,
        name: &str,
        read: impl FnMut(Value) -> Result<T, Fault>,
    ) -> Result<Option<Vec<T>>, Fault> {
        self.read(name, |value| list(value, read))
    }
}

/// Reads a string.
pub(crate) fn text(value: Value) -> Result<String, Fault> {
    match value {
        Value::String(text) => Ok(text),
        other => Err(expected("a string", &other)),
    }
}

/// Reads a list.
pub(crate) fn list<T>(
    value: Value,
    mut read: impl FnMut(Value) -> Result<T, Fault>,
) -> Result<Vec<T>, Fault> {
    match value {
        Value::Array(entries) => {
            let entries = entries.into_iter().enumerate();
            entries.map(|(index, value)| read(value).map_err(|fault| fault.at(index))).collect()
        }
        other => Err(expected("a list", &other)),
    }
}

/// The fault of a value that is not `what`. Names short values, and the kind of others.
pub(crate) fn expected(what: &str, value: &Value) -> Fault {
    let found = match value {
        Value::Object(_) => "an object".to_string(),
        Value::Array(_) => "a list".to_string(),
        Value::String(text) if text.len() > 40 => "a string".to_string(),
        short => short.to_string(),
    };
    Fault::new(format!("expected {what}, not {found}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_fault_has_its_path_from_the_body_on() {
        let body = json!({"input": [{"content": "a"}, {"content": [{"text": 7}]}]});
        let mut body = Fields::of(body).unwrap();
        let part = |value| Fields::of(value)?.required_text("text");
        let fault = body.list("input", |item| {
            let mut item = Fields::of(item)?;
            item.read("content", |value| match value {
                Value::String(text) => Ok(vec![text]),
                parts => list(parts, part),
            })
        });
        let error = ParseError::from(fault.unwrap_err());
        assert_eq!(error.param.as_deref(), Some("input[1].content[0].text"));
        assert_eq!(
            error.message,
            "invalid value for 'input[1].content[0].text': expected a string, not 7"
        );
    }

    #[test]
    fn a_missing_field_is_named_with_its_path() {
        let fault = Fault::missing("text").at(0).within("input");
        let error = ParseError::from(fault);
        assert_eq!(error.message, "'input[0].text' is missing");
    }

    #[test]
    fn whole_numbers_may_be_written_with_a_point() {
        let mut body = Fields::of(json!({"a": 20.0, "b": 1.5, "c": -1, "d": null})).unwrap();
        assert_eq!(body.count("a"), Ok(Some(20)));
        assert!(body.count("b").is_err() && body.count("c").is_err());
        assert_eq!(body.count("d"), Ok(None));
    }
}
