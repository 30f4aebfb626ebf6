//! A JSON object whose values are still raw: request bodies are parsed once, and each view of one
//! deserializes only the values of its own fields.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::slice;

use serde::de::value::StrDeserializer;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::Error;
use serde_json::value::RawValue;

use super::aliases::{self, ALIASES};
use super::{ParseError, error_text};

/// Room for the fields of most requests.
const FIELDS: usize = 16;

/// The top-level fields of a request body, in the client's order.
///
/// ```
/// use inference_protocol::openai::{RawObject, SamplingFields, StreamOptions};
///
/// #[derive(serde::Deserialize)]
/// struct Streaming {
///     stream: Option<bool>,
///     stream_options: Option<StreamOptions>,
/// }
///
/// let body = br#"{"messages":[], "temperature":"hot", "stream":true}"#;
/// let object = RawObject::parse(body).unwrap();
/// assert_eq!(object.fields().next().unwrap().value, "[]");
/// assert_eq!(object.read::<Streaming>().unwrap().stream, Some(true));
///
/// let error = object.read::<SamplingFields>().unwrap_err();
/// assert_eq!(error.param.as_deref(), Some("temperature"));
/// ```
#[derive(Debug, Clone)]
pub struct RawObject<'a> {
    body: &'a [u8],
    fields: Vec<RawField<'a>>,
}

/// A field of a [`RawObject`].
#[derive(Debug, Clone)]
pub struct RawField<'a> {
    /// Its name, unescaped.
    pub name: Cow<'a, str>,
    /// Its value as JSON without surrounding whitespace. Numbers may be out of range, and escaped
    /// surrogates may be unpaired.
    pub value: &'a str,
}

impl<'a> RawObject<'a> {
    /// Splits a request body, which must be a JSON object, into its fields. A name may occur twice.
    ///
    /// # Errors
    /// The body is not a JSON object.
    pub fn parse(body: &'a [u8]) -> Result<Self, ParseError> {
        if body.trim_ascii_start().starts_with(b"[") {
            let message = "the request body is a JSON list; expected an object".into();
            return Err(ParseError { message, param: None });
        }
        let mut reader = serde_json::Deserializer::from_slice(body);
        let fields = reader.deserialize_map(FieldsVisitor);
        let fields = fields.map_err(|e| match e.is_data() {
            true => ParseError {
                message: format!("the request body: {}", error_text::plain(&without_position(&e))),
                param: None,
            },
            false => super::malformed(&e),
        })?;
        reader.end().map_err(|e| ParseError {
            message: format!("the request body goes on after its JSON value: {e}"),
            param: None,
        })?;
        Ok(Self { body, fields })
    }

    /// The fields, in the client's order.
    pub fn fields(&self) -> slice::Iter<'_, RawField<'a>> {
        self.fields.iter()
    }

    /// Deserializes a struct from its fields; does not look at the values of others. Only an error
    /// makes it read a value twice: to find the path in it.
    ///
    /// # Errors
    /// A value has the wrong type, or a field is missing or occurs twice.
    pub fn read<T: Deserialize<'a>>(&self) -> Result<T, ParseError> {
        let place = Cell::new(Place::End);
        T::deserialize(View::new(&self.fields, &place)).map_err(|error| match place.get() {
            Place::Value(field) => self.explain::<T>(field, &error),
            Place::Name(field) => self.repeated(field, &error),
            Place::End => self.incomplete(&error),
        })
    }

    /// Deserializes the value of one field.
    ///
    /// # Errors
    /// The value is not a `T`.
    pub fn read_field<T: Deserialize<'a>>(&self, field: &RawField<'a>) -> Result<T, ParseError> {
        serde_json::from_str(field.value).map_err(|e| self.wrong_value(field, &field.name, &e))
    }

    /// Reads a value that is not as `T` needs it once more, and finds out where.
    fn explain<T: Deserialize<'a>>(&self, field: &RawField<'a>, error: &Error) -> ParseError {
        let place = Cell::new(Place::End);
        let view = View::new(slice::from_ref(field), &place);
        match serde_path_to_error::deserialize::<_, T>(view) {
            Err(found) => self.wrong_value(field, &found.path().to_string(), found.inner()),
            Ok(_) => self.wrong_value(field, &field.name, error),
        }
    }

    fn wrong_value(&self, field: &RawField<'a>, path: &str, error: &Error) -> ParseError {
        let at = self.offset(field.value);
        let (line, column) = position(self.body, at);
        let (line, column) = match (error.line(), error.column()) {
            (0, _) => position(self.body, at + field.value.len()),
            (1, within) => (line, column + within),
            (below, column) => (line + below - 1, column),
        };
        let what = error_text::plain(&without_position(error));
        super::wrong_type(path, &format!("{what} at line {line} column {column}"))
    }

    /// A field that occurs twice, or by two names.
    fn repeated(&self, field: &RawField<'a>, error: &Error) -> ParseError {
        let by_name = |name: &str| self.fields.iter().filter(|f| f.name == name).count();
        let pair = ALIASES.iter().find(|(alias, of)| {
            (field.name == *alias || field.name == *of) && by_name(alias) > 0 && by_name(of) > 0
        });
        if let Some((alias, of)) = pair.filter(|_| by_name(&field.name) == 1) {
            let message = format!(
                "{alias} and {of} are two names of one field, and their values differ: send one of \
                 them"
            );
            return ParseError { message, param: Some((*alias).into()) };
        }
        let (line, column) = position(self.body, self.end_of_name(field));
        let what = error_text::plain(&error.to_string());
        let message = format!("invalid request at line {line} column {column}: {what}");
        ParseError { message, param: Some(field.name.to_string()) }
    }

    /// A field that is missing.
    fn incomplete(&self, error: &Error) -> ParseError {
        let text = error.to_string();
        let Some(name) = error_text::named(&text, "missing field ") else {
            return super::malformed(&text);
        };
        ParseError { message: format!("the field '{name}' is missing"), param: Some(name.into()) }
    }

    /// Where a part of the body begins in it.
    fn offset(&self, part: &'a str) -> usize {
        part.as_ptr().addr() - self.body.as_ptr().addr()
    }

    /// The offset of the colon.
    fn end_of_name(&self, field: &RawField<'a>) -> usize {
        let before = self.body.get(..self.offset(field.value)).unwrap_or_default();
        before.trim_ascii_end().len().saturating_sub(1)
    }
}

/// Line and column of an offset, counted as serde_json does.
fn position(body: &[u8], at: usize) -> (usize, usize) {
    let before = body.get(..at).unwrap_or(body);
    let line = memchr::memrchr(b'\n', before).map_or(0, |feed| feed + 1);
    (1 + memchr::memchr_iter(b'\n', before).count(), before.len() - line)
}

/// The message of an error. Its position in one value says nothing to a client.
fn without_position(error: &Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&position).map_or(text.clone(), String::from)
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Vec<RawField<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut fields = Vec::with_capacity(FIELDS);
        while let Some(Name(name)) = map.next_key()? {
            let value: &RawValue = map.next_value()?;
            fields.push(RawField { name, value: value.get() });
        }
        Ok(fields)
    }
}

/// A name, borrowed unless it has escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_str<E>(self, name: &'de str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Borrowed(name)))
    }

    fn visit_str<E>(self, name: &str) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Owned(name.into())))
    }
}

/// What a [`View`] has read last.
#[derive(Clone, Copy)]
enum Place<'v, 'a> {
    Name(&'v RawField<'a>),
    Value(&'v RawField<'a>),
    End,
}

/// Presents fields to a struct: only those that it has.
struct View<'v, 'a> {
    all: &'v [RawField<'a>],
    fields: slice::Iter<'v, RawField<'a>>,
    known: Option<&'static [&'static str]>,
    place: &'v Cell<Place<'v, 'a>>,
}

impl<'v, 'a> View<'v, 'a> {
    fn new(fields: &'v [RawField<'a>], place: &'v Cell<Place<'v, 'a>>) -> Self {
        Self { all: fields, fields: fields.iter(), known: None, place }
    }
}

impl<'de> Deserializer<'de> for View<'_, 'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_map(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_map(Self { known: Some(fields), ..self })
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for View<'_, 'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let (all, known) = (self.all, self.known);
        let is_read = |field: &&RawField<'_>| {
            let Some(known) = known else { return true };
            known.contains(&&*field.name)
                && !aliases::other(field, all, known)
                    .is_some_and(|other| aliases::is_redundant(field, other))
        };
        let Some(field) = self.fields.find(is_read) else {
            self.place.set(Place::End);
            return Ok(None);
        };
        self.place.set(Place::Name(field));
        seed.deserialize(StrDeserializer::new(&field.name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let Place::Name(field) = self.place.get() else {
            return Err(Error::custom("a value was read before its name"));
        };
        self.place.set(Place::Value(field));
        seed.deserialize(&mut serde_json::Deserializer::from_str(field.value))
    }
}

#[cfg(test)]
mod tests;
