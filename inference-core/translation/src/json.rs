//! Writing JSON and events.

use serde::Serialize;

/// Appends `value` as JSON.
pub(crate) fn write<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    // Neither a vector nor types without foreign keys can fail.
    let _ = serde_json::to_writer(out, value);
}

/// Appends a named server-sent event.
pub(crate) fn event<T: Serialize>(name: &str, value: &T, out: &mut Vec<u8>) {
    event_of(name, |out| write(value, out), out);
}

/// Appends a named server-sent event whose data `write` appends.
pub(crate) fn event_of(name: &str, write: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\ndata: ");
    write(out);
    out.extend_from_slice(b"\n\n");
}

/// `value` as JSON.
pub(crate) fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    bytes_about(value, 0)
}

/// `value` as JSON, whose texts have about `text_bytes`: growing would copy it several times.
pub(crate) fn bytes_about<T: Serialize>(value: &T, text_bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(text_bytes + text_bytes / 16 + 1024);
    write(value, &mut out);
    out
}
