//! Server-sent events (WHATWG HTML, section 9.2), as far as OpenAI streams use them.
//!
//! [`Splitter`] splits a byte stream into whole events without copying twice, and never passes on
//! half an event; [`data`] writes one.
//!
//! ```
//! use inference_protocol::sse::{DONE, Splitter, data, payloads};
//!
//! let stream = data(r#"{"n":1}"#) + &data(DONE);
//! let (first, second) = stream.as_bytes().split_at(20);
//! let mut splitter = Splitter::new(1024);
//!
//! // Ends in the middle of the second event, which waits for its other half.
//! let events = splitter.push(first).unwrap().into_owned();
//! assert_eq!(payloads(&events).collect::<Vec<_>>(), [br#"{"n":1}"#]);
//! let events = splitter.push(second).unwrap().into_owned();
//! assert_eq!(payloads(&events).collect::<Vec<_>>(), [DONE.as_bytes()]);
//! ```

use std::borrow::Cow;

use memchr::memchr_iter;

/// Payload of the last event of an OpenAI stream.
pub const DONE: &str = "[DONE]";

/// An event with `payload` as its data. `payload` must not contain a line break; JSON from serde
/// never does.
///
/// ```
/// assert_eq!(inference_protocol::sse::data("{}"), "data: {}\n\n");
/// ```
pub fn data(payload: &str) -> String {
    debug_assert!(!payload.contains(['\n', '\r']));
    format!("data: {payload}\n\n")
}

/// The event is larger than the splitter's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

/// Splits a byte stream into events: each is everything up to and including the blank line.
#[derive(Debug)]
pub struct Splitter {
    buffer: Vec<u8>,
    /// Bytes before this index were already searched.
    searched: usize,
    event_bytes_max: usize,
}

impl Splitter {
    /// Creates a splitter that holds at most `event_bytes_max` bytes of an unfinished event.
    pub fn new(event_bytes_max: usize) -> Self {
        Self { buffer: Vec::new(), searched: 0, event_bytes_max }
    }

    /// Takes more bytes and returns all events that they complete, as one block (empty if none is
    /// complete). Does not copy bytes that are whole events.
    pub fn push<'b>(&mut self, bytes: &'b [u8]) -> Result<Cow<'b, [u8]>, TooLarge> {
        if self.buffer.is_empty() && bytes.ends_with(b"\n\n") {
            return Ok(Cow::Borrowed(bytes));
        }
        self.buffer.extend_from_slice(bytes);
        let end = self.last_event_end();
        let rest = self.buffer.split_off(end);
        let events = Cow::Owned(std::mem::replace(&mut self.buffer, rest));
        // A terminator has at most 4 bytes, so one may start in the last 3 bytes already seen.
        self.searched = self.buffer.len().saturating_sub(3);
        if self.buffer.len() > self.event_bytes_max {
            return Err(TooLarge);
        }
        Ok(events)
    }

    /// Takes what follows the last whole event.
    pub fn take_rest(&mut self) -> Vec<u8> {
        self.searched = 0;
        std::mem::take(&mut self.buffer)
    }

    /// True in the middle of an event.
    pub fn is_mid_event(&self) -> bool {
        !self.buffer.is_empty()
    }

    fn last_event_end(&self) -> usize {
        let from = self.searched.min(self.buffer.len());
        let feeds = memchr_iter(b'\n', &self.buffer[from..]).map(|at| from + at);
        let mut ends = feeds.filter(|at| is_blank_line_end(&self.buffer, *at));
        ends.next_back().map_or(0, |at| at + 1)
    }
}

/// True if the line feed at `at` ends an empty line. A block may start with one: blank lines
/// between two events are empty events.
fn is_blank_line_end(bytes: &[u8], at: usize) -> bool {
    let before = &bytes[..at];
    let before = before.strip_suffix(b"\r").unwrap_or(before);
    before.is_empty() || before.ends_with(b"\n")
}

/// Each event of a block of whole events, including its blank line.
///
/// ```
/// use inference_protocol::sse::events;
///
/// let block = b"data: a\n\n: comment\n\n";
/// assert_eq!(events(block).collect::<Vec<_>>(), [&b"data: a\n\n"[..], b": comment\n\n"]);
/// ```
pub fn events(block: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = block;
    std::iter::from_fn(move || {
        let mut feeds = memchr_iter(b'\n', rest);
        let end = feeds.find(|at| is_blank_line_end(rest, *at)).map_or(rest.len(), |at| at + 1);
        let (event, left) = rest.split_at(end);
        rest = left;
        (!event.is_empty()).then_some(event)
    })
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut from = 0;
    let ends = memchr_iter(b'\n', text).chain([text.len()]);
    ends.map(move |end| &text[std::mem::replace(&mut from, end + 1)..end])
}

/// The data of each event in a block of whole events; skips comments and other fields.
pub fn payloads(events: &[u8]) -> impl Iterator<Item = &[u8]> {
    lines(events).filter_map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let value = line.strip_prefix(b"data:")?;
        Some(value.strip_prefix(b" ").unwrap_or(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_by(chunk: usize, text: &str) -> Vec<u8> {
        let mut splitter = Splitter::new(1024);
        let mut out = Vec::new();
        for part in text.as_bytes().chunks(chunk) {
            out.extend_from_slice(&splitter.push(part).unwrap());
        }
        out
    }

    #[test]
    fn events_come_out_whole_however_the_bytes_arrive() {
        let text = "data: a\n\n: note\n\ndata: b\r\n\r\ndata: unfinished\n";
        let whole = text.len() - "data: unfinished\n".len();
        for chunk in 1..text.len() {
            assert_eq!(split_by(chunk, text), &text.as_bytes()[..whole], "chunks of {chunk}");
        }
    }

    #[test]
    fn blank_lines_between_events_do_not_depend_on_how_the_bytes_arrive() {
        let text = "\n\r\ndata: a\n\n\n\r\n\ndata: b\r\n\r\n\r\n";
        for chunk in 1..=text.len() {
            assert_eq!(split_by(chunk, text), text.as_bytes(), "chunks of {chunk}");
        }
        let found: Vec<_> = events(b"\n\r\ndata: a\n\n\n").collect();
        assert_eq!(found, [&b"\n"[..], b"\r\n", b"data: a\n\n", b"\n"]);
    }

    #[test]
    fn nothing_of_an_unfinished_event_is_passed_on() {
        let mut splitter = Splitter::new(1024);
        assert_eq!(*splitter.push(b"data: {\"hal").unwrap(), *b"");
        assert!(splitter.is_mid_event());
        assert_eq!(*splitter.push(b"f\"}\n\n").unwrap(), *b"data: {\"half\"}\n\n");
        assert!(!splitter.is_mid_event());
        splitter.push(b"data: cut").unwrap();
        assert_eq!(splitter.take_rest(), b"data: cut");
        assert!(!splitter.is_mid_event());
        assert_eq!(*splitter.push(b"\n\n").unwrap(), *b"\n\n");
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut splitter = Splitter::new(8);
        assert_eq!(splitter.push(b"data: 123456789"), Err(TooLarge));
    }

    #[test]
    fn a_block_is_its_events() {
        let block = b": t 0 1\ndata: a\n\n: note\r\n\r\ndata: b\n\n";
        let found: Vec<_> = events(block).collect();
        assert_eq!(found, [&b": t 0 1\ndata: a\n\n"[..], b": note\r\n\r\n", b"data: b\n\n"]);
        assert_eq!(events(b"").count(), 0);
    }

    #[test]
    fn payloads_skip_comments_and_other_fields() {
        let events = b": hi\n\nevent: x\ndata: one\n\ndata:two\r\n\r\n";
        let found: Vec<_> = payloads(events).collect();
        assert_eq!(found, [b"one".as_slice(), b"two"]);
    }
}
