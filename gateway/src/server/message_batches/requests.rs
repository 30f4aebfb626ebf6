//! Reads the requests of a message batch, one after the other, and writes them as lines of a batch.
//! Never keeps more than one of them.

use std::cell::Cell;
use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

use inference_protocol::openai::ParseError;
use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

use crate::server::batch_body::{MODELS_MAX, place_of, refused_field};
use crate::types::error::Error;

/// Longest `custom_id`, as at Anthropic.
const CUSTOM_ID_BYTES_MAX: usize = 64;
/// Bytes between two `params`: a name, and whitespace.
const ENVELOPE_BYTES_MAX: usize = 16 * 1024;
/// Lines are handed on when they have so many bytes.
const PART_BYTES: usize = 256 * 1024;

/// What requests may be.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// How many there may be.
    pub requests_max: usize,
    /// Bytes of the `params` of one.
    pub request_bytes_max: usize,
}

#[derive(Deserialize)]
struct Request {
    custom_id: String,
    params: Box<RawValue>,
}

/// Hands the requests of a body on as lines that call `endpoint`, and counts them. `write` returns
/// false to stop. Blocks.
///
/// # Errors
/// The body is no valid batch; some lines may have been written.
pub fn read(
    source: impl Read,
    rules: &Rules,
    endpoint: &'static str,
    write: impl FnMut(Vec<u8>) -> bool,
) -> Result<usize, Error> {
    let left = Rc::new(Cell::new(0));
    let source = Bounded { source: BufReader::with_capacity(1 << 16, source), left: left.clone() };
    let mut reading = Reading {
        rules: *rules,
        endpoint,
        write,
        left,
        place: Place::Before,
        known: HashSet::new(),
        models: Vec::new(),
        lines: Vec::new(),
        refusal: None,
    };
    reading.allow_one();
    let mut deserializer = serde_json::Deserializer::from_reader(source);
    let read = Batch(&mut reading).deserialize(&mut deserializer);
    match read.and_then(|()| deserializer.end()) {
        Ok(()) => reading.finish(),
        Err(error) => Err(reading.why(&error)),
    }
}

/// Fails instead of reading more than is left.
struct Bounded<R> {
    source: R,
    left: Rc<Cell<usize>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let length = buffer.len().min(left);
        let read = self.source.read(&mut buffer[..length])?;
        self.left.set(left - read);
        Ok(read)
    }
}

/// Where the reader is.
#[derive(Debug, Clone, Copy)]
enum Place {
    Before,
    /// In the request with this index.
    In(usize),
    /// After so many requests.
    After(usize),
}

struct Reading<W> {
    rules: Rules,
    endpoint: &'static str,
    write: W,
    /// Bytes that may be read until the next request.
    left: Rc<Cell<usize>>,
    place: Place,
    known: HashSet<Box<str>>,
    models: Vec<String>,
    /// Lines that were not handed on yet.
    lines: Vec<u8>,
    /// Why reading has stopped, if that is not a matter of syntax.
    refusal: Option<Error>,
}

impl<W: FnMut(Vec<u8>) -> bool> Reading<W> {
    fn allow_one(&mut self) {
        self.left.set(self.rules.request_bytes_max.saturating_add(ENVELOPE_BYTES_MAX));
    }

    /// Stops reading.
    fn refuse<E: serde::de::Error>(&mut self, field: impl fmt::Display, why: &str) -> E {
        let field = field.to_string();
        let message = format!("{field}: {why}");
        self.refusal = Some(Error::Invalid(ParseError { message, param: Some(field) }));
        E::custom("refused")
    }

    fn add<E: serde::de::Error>(&mut self, index: usize, request: Request) -> Result<(), E> {
        let Request { custom_id, params } = request;
        let (id, body) = (&custom_id, params.get());
        let is_named = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        if id.is_empty() || id.len() > CUSTOM_ID_BYTES_MAX || !id.chars().all(is_named) {
            let why = format!("expected 1 to {CUSTOM_ID_BYTES_MAX} letters, digits, '_' or '-'");
            return Err(self.refuse(format_args!("requests.{index}.custom_id"), &why));
        }
        if !self.known.insert(id.as_str().into()) {
            let why = format!("'{id}' is the custom_id of an earlier request");
            return Err(self.refuse(format_args!("requests.{index}.custom_id"), &why));
        }
        if let Err((field, why)) = self.check(body) {
            let why = format!("{why} (custom_id '{id}')");
            return Err(self.refuse(format_args!("requests.{index}.params{field}"), &why));
        }
        self.push(id, body);
        if self.lines.len() >= PART_BYTES { self.hand_on() } else { Ok(()) }
    }

    /// Checks the `params` of a request; the field and why they are refused.
    fn check(&mut self, body: &str) -> Result<(), (&'static str, String)> {
        let bytes_max = self.rules.request_bytes_max;
        if !body.starts_with('{') {
            return Err(("", "expected an object".into()));
        }
        if body.len() > bytes_max {
            return Err(("", format!("they are longer than {bytes_max} bytes")));
        }
        match refused_field(body) {
            Some(("stream", why)) => Err((".stream", why.into())),
            Some((_, why)) => Err((".background", why.into())),
            None if place_of(body, &mut self.models).is_none() => {
                Err((".model", format!("the batch names more than {MODELS_MAX} models")))
            }
            None => Ok(()),
        }
    }

    fn push(&mut self, custom_id: &str, body: &str) {
        let endpoint = self.endpoint;
        let head =
            format!(r#"{{"custom_id":"{custom_id}","method":"POST","url":"{endpoint}","body":"#);
        self.lines.extend_from_slice(head.as_bytes());
        // An end of a line is whitespace in JSON; in a string it would be written as `\n`.
        let bytes =
            body.bytes().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { byte });
        self.lines.extend(bytes);
        self.lines.extend_from_slice(b"}\n");
    }

    fn hand_on<E: serde::de::Error>(&mut self) -> Result<(), E> {
        let lines = std::mem::take(&mut self.lines);
        if lines.is_empty() || (self.write)(lines) {
            return Ok(());
        }
        // Who takes them knows why.
        self.refusal = Some(Error::StoreUnavailable);
        Err(E::custom("stopped"))
    }

    fn finish(mut self) -> Result<usize, Error> {
        let handed_on: Result<(), serde_json::Error> = self.hand_on();
        match (self.refusal, handed_on, self.place) {
            (None, Ok(()), Place::After(count)) => Ok(count),
            (refusal, ..) => Err(refusal.unwrap_or(Error::StoreUnavailable)),
        }
    }

    /// Why the body was not read to its end.
    fn why(self, error: &serde_json::Error) -> Error {
        if let Some(refusal) = self.refusal {
            return refusal;
        }
        let is_cut = error.io_error_kind() == Some(io::ErrorKind::FileTooLarge);
        if error.is_io() && !is_cut {
            tracing::error!(%error, "requests of a message batch cannot be read");
            return Error::StoreUnavailable;
        }
        let field = match self.place {
            Place::In(index) => Some(format!("requests.{index}")),
            Place::Before | Place::After(_) => None,
        };
        let shown = field.as_deref().unwrap_or("the request body");
        let message = match is_cut {
            true => format!("{shown}: longer than {} bytes", self.rules.request_bytes_max),
            false => format!("{shown}: {error}"),
        };
        // What is wrong with the syntax is a matter of the whole body.
        let param = field.filter(|_| error.is_data() || is_cut);
        Error::Malformed(ParseError { message, param })
    }
}

/// The body of a request for a batch.
struct Batch<'a, W>(&'a mut Reading<W>);

impl<'de, W: FnMut(Vec<u8>) -> bool> DeserializeSeed<'de> for Batch<'_, W> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, W: FnMut(Vec<u8>) -> bool> Visitor<'de> for Batch<'_, W> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with a list of requests")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            match (key.as_str(), self.0.place) {
                ("requests", Place::Before) => map.next_value_seed(Requests(&mut *self.0))?,
                ("requests", _) => return Err(A::Error::duplicate_field("requests")),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match self.0.place {
            Place::After(1..) => Ok(()),
            Place::After(_) => Err(self.0.refuse("requests", "expected at least one request")),
            _ => Err(self.0.refuse("requests", "it is missing; expected a list of requests")),
        }
    }
}

/// The list of requests.
struct Requests<'a, W>(&'a mut Reading<W>);

impl<'de, W: FnMut(Vec<u8>) -> bool> DeserializeSeed<'de> for Requests<'_, W> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, W: FnMut(Vec<u8>) -> bool> Visitor<'de> for Requests<'_, W> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of requests")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut index = 0;
        loop {
            self.0.place = Place::In(index);
            self.0.allow_one();
            let Some(request) = list.next_element::<Request>()? else { break };
            if index >= self.0.rules.requests_max {
                let why = format!("there are more than {index} requests");
                return Err(self.0.refuse("requests", &why));
            }
            self.0.add(index, request)?;
            index += 1;
        }
        self.0.place = Place::After(index);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
