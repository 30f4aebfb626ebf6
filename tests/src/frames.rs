//! Frames of HTTP/2, right and wrong, as their bytes.

/// What a client says first, before its SETTINGS.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Kinds of frames.
pub mod kind {
    #![allow(missing_docs, reason = "their names say it")]
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
}

/// No more of this stream comes from here; of SETTINGS and PING: an answer.
pub const END_STREAM: u8 = 1;
/// No CONTINUATION follows.
pub const END_HEADERS: u8 = 4;
/// The setting of how much an answer may send before it is allowed more.
pub const INITIAL_WINDOW_SIZE: u16 = 4;

/// One frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// SETTINGS.
pub fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (id, value) in values {
        payload.extend(id.to_be_bytes());
        payload.extend(value.to_be_bytes());
    }
    frame(kind::SETTINGS, 0, 0, &payload)
}

/// The beginning of a connection.
pub fn hello(values: &[(u16, u32)]) -> Vec<u8> {
    [PREFACE, &settings(values)].concat()
}

/// WINDOW_UPDATE.
pub fn window(stream: u32, more: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

/// RST_STREAM with CANCEL.
pub fn reset(stream: u32) -> Vec<u8> {
    frame(kind::RST_STREAM, 0, stream, &8u32.to_be_bytes())
}

/// A header as HPACK's literal: not indexed, not compressed.
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        bytes.extend(integer(text.len(), 7, 0));
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// A header that HPACK keeps in its table, under the index 62 until another one is.
pub fn indexed(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = literal(name, value);
    bytes[0] = 0x40;
    bytes
}

/// An integer of HPACK with a prefix of so many bits, the first byte's others set to `first`.
fn integer(value: usize, bits: u32, first: u8) -> Vec<u8> {
    let max = (1usize << bits) - 1;
    if value < max {
        return vec![first | value as u8];
    }
    let mut bytes = vec![first | max as u8];
    let mut rest = value - max;
    while rest >= 128 {
        bytes.push(rest as u8 | 128);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

/// The headers of a request.
pub fn request(method: &str, path: &str, key: &str) -> Vec<u8> {
    let authorization = format!("Bearer {key}");
    let headers = [
        (":method", method),
        (":scheme", "http"),
        (":path", path),
        (":authority", "flotilla"),
        ("authorization", &authorization),
    ];
    headers.iter().flat_map(|(name, value)| literal(name, value)).collect()
}

/// Takes one whole frame off `bytes`: its kind, flags, stream and payload.
pub fn take(bytes: &mut Vec<u8>) -> Option<(u8, u8, u32, Vec<u8>)> {
    let head: [u8; 9] = bytes.get(..9)?.try_into().ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let payload = bytes.get(9..9 + length)?.to_vec();
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    bytes.drain(..9 + length);
    Some((head[3], head[4], stream, payload))
}
