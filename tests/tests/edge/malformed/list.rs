//! Malformed requests by hand, and what must become of each.

/// One of them.
pub struct Case {
    /// What is wrong.
    pub name: &'static str,
    /// All that is sent.
    pub bytes: Vec<u8>,
    expected: Expected,
}

/// What must become of it.
#[derive(Clone, Copy)]
enum Expected {
    /// One response, with one of these statuses, and nothing after it.
    Refused(&'static [u16]),
    /// This, or a closed connection without a word.
    RefusedOrCut(&'static [u16]),
    /// No word.
    Cut,
}
use Expected::{Cut, Refused, RefusedOrCut};

impl Case {
    /// Whether the statuses of all responses are what is expected.
    pub fn fits(&self, statuses: &[u16]) -> bool {
        match (self.expected, statuses) {
            (Refused(some) | RefusedOrCut(some), [one]) => some.contains(one),
            (RefusedOrCut(_) | Cut, []) => true,
            _ => false,
        }
    }
}

const BAD: Expected = RefusedOrCut(&[400]);
/// What a request that must not be looked at would answer.
const SMUGGLED: &str = "GET /v1/models HTTP/1.1\r\nhost: x\r\nx-request-id: x-smuggled\r\n\r\n";

fn case(name: &'static str, expected: Expected, bytes: impl Into<Vec<u8>>) -> Case {
    Case { name, bytes: bytes.into(), expected }
}

/// All of them.
pub fn cases(key: &str) -> Vec<Case> {
    let mut all = first_lines();
    all.extend(headers());
    all.extend(lengths(key));
    all.extend(chunks(key));
    all.extend(sizes());
    all.extend(partial(key));
    all
}

fn first_lines() -> Vec<Case> {
    let rest = "host: x\r\n\r\n";
    let line = |name, expected, line: &str| case(name, expected, format!("{line}\r\n{rest}"));
    vec![
        line("no version", BAD, "GET /livez"),
        line("HTTP/0.9", BAD, "GET /livez HTTP/0.9"),
        line("HTTP/1.2", BAD, "GET /livez HTTP/1.2"),
        line("HTTP/2.0 as text", BAD, "GET /livez HTTP/2.0"),
        line("HTTP/9", BAD, "GET /livez HTTP/9"),
        line("a lower-case version", BAD, "GET /livez http/1.1"),
        line("a version with a space", BAD, "GET /livez HTTP/1. 1"),
        line("another protocol", BAD, "GET /livez ICAP/1.1"),
        line("no target", BAD, "GET  HTTP/1.1"),
        line("two spaces", BAD, "GET  /livez HTTP/1.1"),
        line("tabs", BAD, "GET\t/livez\tHTTP/1.1"),
        line("a space in the target", BAD, "GET /li vez HTTP/1.1"),
        line("no method", BAD, " /livez HTTP/1.1"),
        line("a method with a colon", BAD, "GE:T /livez HTTP/1.1"),
        line("NUL in the method", BAD, "GE\0T /livez HTTP/1.1"),
        line("NUL in the target", BAD, "GET /li\0vez HTTP/1.1"),
        line("a bare CR in the line", BAD, "GET /livez\rHTTP/1.1"),
        line("a control character", BAD, "GET /\x01 HTTP/1.1"),
        line("nothing but a word", BAD, "HELLO"),
        line("an unknown method", Refused(&[405]), "BREW /v1/chat/completions HTTP/1.1"),
        line("a target of another kind", RefusedOrCut(&[400, 404]), "GET livez HTTP/1.1"),
        line("CONNECT", RefusedOrCut(&[400, 404, 405]), "CONNECT evil.example:443 HTTP/1.1"),
        line("TRACE", Refused(&[405]), "TRACE /v1/models HTTP/1.1"),
        line("OPTIONS *", Refused(&[404, 405]), "OPTIONS * HTTP/1.1"),
        line("another host", Refused(&[404]), "GET http://169.254.169.254/latest HTTP/1.1"),
        line("dots", Refused(&[401]), "GET /v1/models/../../metrics HTTP/1.1"),
        line("encoded dots", Refused(&[404]), "GET /%2e%2e/%2e%2e/etc/passwd HTTP/1.1"),
        case("TLS where none is spoken", BAD, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        case("a response", BAD, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
        case("another protocol's greeting", BAD, "EHLO flotilla\r\nMAIL FROM:<a@b.c>\r\n\r\n"),
        case("Redis", BAD, "*1\r\n$8\r\nFLUSHALL\r\n\r\n"),
        case("almost the preface", BAD, "PRI * HTTP/2.0\r\n\r\nSM\r\n\rX"),
        case("only line ends", RefusedOrCut(&[400]), "\r\n".repeat(500)),
        case("zeros", BAD, vec![0; 5000]),
        case("0xff", BAD, vec![255; 5000]),
    ]
}

fn headers() -> Vec<Case> {
    let with = |name, expected, header: &str| {
        case(name, expected, format!("GET /v1/nothing HTTP/1.1\r\nhost: x\r\n{header}\r\n\r\n"))
    };
    vec![
        with("obs-fold", BAD, "a: b\r\n c"),
        with("obs-fold at once", BAD, "a:\r\n\tb"),
        with("a space before the colon", BAD, "content-length : 0"),
        with("a header that begins with a space", BAD, " a: b"),
        with("no colon", BAD, "nonsense"),
        with("no name", BAD, ": b"),
        with("NUL in a name", BAD, "a\0b: c"),
        with("NUL in a value", BAD, "a: b\0c"),
        with("a bare CR in a value", BAD, "a: b\rc: d"),
        with("a name with brackets", BAD, "a(b): c"),
        with("a name of UTF-8", BAD, "\u{e4}: c"),
        with("a control character", BAD, "a: b\x01"),
        case("bare line feeds", RefusedOrCut(&[404]), "GET /v1/nothing HTTP/1.1\nhost: x\n\n"),
        case("a bare CR after the head", BAD, "GET /v1/nothing HTTP/1.1\r\nhost: x\r\n\rX"),
    ]
}

fn post(key: &str, headers: &str, body: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n\
         {headers}\r\n\r\n{body}"
    )
}

fn lengths(key: &str) -> Vec<Case> {
    let with = |name, expected, headers: &str, body: &str| {
        case(name, expected, post(key, headers, &format!("{body}{SMUGGLED}")))
    };
    vec![
        with("a negative length", BAD, "content-length: -1", ""),
        with("a length with a plus", BAD, "content-length: +5", "{}{}{"),
        with("a length in hex", BAD, "content-length: 0x5", "{}{}{"),
        with("a length with a point", BAD, "content-length: 5.0", "{}{}{"),
        with("no length", BAD, "content-length:", ""),
        with("a length beyond 64 bits", BAD, "content-length: 18446744073709551616", ""),
        with("all of 64 bits", RefusedOrCut(&[400, 413, 431]), &max_length(), ""),
        with("two lengths", BAD, "content-length: 2\r\ncontent-length: 3", "{}"),
        with("two lengths in one", BAD, "content-length: 2, 3", "{}"),
        with("a length of another alphabet", BAD, "content-length: \u{664}", ""),
        with(
            "length and chunks",
            RefusedOrCut(&[400]),
            "content-length: 4\r\ntransfer-encoding: chunked",
            "0\r\n\r\n",
        ),
        with(
            "chunks and length",
            RefusedOrCut(&[400]),
            "transfer-encoding: chunked\r\ncontent-length: 5",
            "0\r\n\r\n",
        ),
        case(
            "chunks in HTTP/1.0",
            RefusedOrCut(&[400, 411]),
            post(key, "transfer-encoding: chunked", &format!("0\r\n\r\n{SMUGGLED}"))
                .replace("HTTP/1.1\r\nhost: x\r\nauth", "HTTP/1.0\r\nhost: x\r\nauth"),
        ),
    ]
}

fn max_length() -> String {
    format!("content-length: {}", u64::MAX)
}

fn chunks(key: &str) -> Vec<Case> {
    let coded = |name, coding: &str| {
        let headers = format!("transfer-encoding: {coding}");
        case(name, BAD, post(key, &headers, &format!("0\r\n\r\n{SMUGGLED}")))
    };
    let body = |name, body: &str| {
        let body = format!("{body}{SMUGGLED}");
        case(name, RefusedOrCut(&[400, 408]), post(key, "transfer-encoding: chunked", &body))
    };
    vec![
        coded("an unknown coding", "xchunked"),
        coded("identity", "identity"),
        coded("gzip last", "chunked, gzip"),
        coded("chunked twice", "chunked, chunked, x"),
        coded("a vertical tab", "\x0bchunked"),
        coded("quoted", "\"chunked\""),
        body("a size that is no number", "zz\r\n{}\r\n0\r\n\r\n"),
        body("a negative size", "-2\r\n{}\r\n0\r\n\r\n"),
        body("a size with 0x", "0x2\r\n{}\r\n0\r\n\r\n"),
        body("a size beyond 64 bits", "ffffffffffffffff1\r\n{}\r\n0\r\n\r\n"),
        body("all of 64 bits", "ffffffffffffffff\r\n{}\r\n0\r\n\r\n"),
        body("no size", "\r\n{}\r\n0\r\n\r\n"),
        body("no line end after a chunk", "2\r\n{}0\r\n\r\n"),
        body("a bare line feed after a size", "2\n{}\r\n0\r\n\r\n"),
        body("a size with spaces inside", "1 2\r\n{}\r\n0\r\n\r\n"),
        body("a line feed in an extension", "2;a=\n\r\n{}\r\n0\r\n\r\n"),
        body("an extension without end", &format!("2;{}\r\n{{}}\r\n", "a".repeat(100_000))),
        body("trailers without end", &format!("0\r\n{}", "a: b\r\n".repeat(50_000))),
    ]
}

fn sizes() -> Vec<Case> {
    const TOO_LARGE: Expected = RefusedOrCut(&[400, 414, 431]);
    let head = "GET /v1/nothing HTTP/1.1\r\nhost: x\r\n";
    let many: String = (0..10_000).map(|i| format!("h{i}: v\r\n")).collect();
    vec![
        case("10,000 headers", TOO_LARGE, format!("{head}{many}\r\n")),
        case("101 headers", TOO_LARGE, format!("{head}{}\r\n", "a: b\r\n".repeat(101))),
        case("a huge value", TOO_LARGE, format!("{head}a: {}\r\n\r\n", "x".repeat(1_000_000))),
        case("a huge name", TOO_LARGE, format!("{head}{}: b\r\n\r\n", "x".repeat(1_000_000))),
        case("a huge target", TOO_LARGE, format!("GET /{} HTTP/1.1\r\n", "x".repeat(1_000_000))),
        case("a huge method", TOO_LARGE, "X".repeat(1_000_000)),
        case("a huge cookie", TOO_LARGE, format!("{head}cookie: {}", "a=b; ".repeat(100_000))),
    ]
}

fn partial(key: &str) -> Vec<Case> {
    let late = "content-length: 1000";
    vec![
        case("nothing", Cut, ""),
        case("a letter", Cut, "G"),
        case("half a head", Cut, "GET /livez HTTP/1.1\r\nhost: fl"),
        case("a head without its end", Cut, "GET /livez HTTP/1.1\r\nhost: x\r\n"),
        case("half a body", Refused(&[408]), post(key, late, "{\"model\":")),
        case("no body", Refused(&[408]), post(key, late, "")),
        case(
            "half a chunk",
            Refused(&[408]),
            post(key, "transfer-encoding: chunked", "ff\r\n{\"mod"),
        ),
        case("a stranger's half body", Refused(&[401]), post("-", late, "{")),
        // It is waited for a little, since it may be on its way.
        case("a body that is announced too large", Refused(&[413]), {
            post(key, "content-length: 99999999", "{")
        }),
    ]
}
