//! Floods of HTTP/2: each costs its sender more than it costs us, holds no memory, and hinders
//! nobody else.

use std::time::Duration;

use fleet_tests::frames::{
    END_HEADERS, END_STREAM, INITIAL_WINDOW_SIZE, frame, hello, indexed, kind, literal, request,
    reset, settings, take, window,
};
use fleet_tests::raw::Raw;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::Answered;

const HASTY: &str = "timeouts: {header_ms: 1500, body_ms: 1500, keep_alive_ms: 1500, \
    write_ms: 1500}\n";
/// A flood is over after this, whoever ends it.
const FLOOD_TIME_MAX: Duration = Duration::from_secs(20);

/// What became of a flood.
#[derive(Debug, Default)]
struct Ended {
    /// The reason that the gateway gave.
    goaway: Option<u32>,
    /// Whether it ended the connection.
    closed: bool,
    /// Bytes that it took.
    taken: usize,
}

impl Ended {
    /// The gateway broke it off, and said that it was too much.
    fn is_refused(&self, reasons: &[u32]) {
        let told = self.goaway.is_some_and(|reason| reasons.contains(&reason));
        assert!(self.closed && told, "{self:?}, not {reasons:?}");
    }
}

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const COMPRESSION_ERROR: u32 = 9;
const CALM: u32 = 11;

/// Writes until everything is said or the gateway takes no more; reads all the while.
async fn flood(answered: &Answered, first: Vec<u8>, parts: impl Iterator<Item = Vec<u8>>) -> Ended {
    let (mut reads, mut writes) = Raw::connect(answered.fleet.client.address()).await.split();
    let mut ended = Ended::default();
    let mut taken = 0;
    let writing = async {
        let mut buffer = first;
        for part in parts {
            buffer.extend(part);
            if buffer.len() > 32 * 1024 {
                if writes.write_all(&buffer).await.is_err() {
                    return;
                }
                taken += buffer.len();
                buffer.clear();
            }
        }
        let _ = writes.write_all(&buffer).await;
        taken += buffer.len();
    };
    let reading = async {
        let (mut said, mut buffer) = (Vec::new(), vec![0; 64 * 1024]);
        while let Ok(bytes @ 1..) = reads.read(&mut buffer).await {
            said.extend(&buffer[..bytes]);
            while let Some((kind, _, _, payload)) = take(&mut said) {
                if kind == kind::GOAWAY {
                    ended.goaway = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
                }
            }
        }
        ended.closed = true;
    };
    let both = async { tokio::join!(writing, reading) };
    let _ = timeout(FLOOD_TIME_MAX, both).await;
    ended.taken = taken;
    ended
}

/// The same without reading a byte; whether the gateway ended it.
async fn flood_unread(
    answered: &Answered,
    first: Vec<u8>,
    parts: impl Iterator<Item = Vec<u8>>,
) -> bool {
    let mut raw = Raw::connect_narrow(answered.fleet.client.address()).await;
    let writing = async {
        raw.send(&first).await;
        for part in parts {
            if !raw.send(&part).await {
                return true;
            }
        }
        false
    };
    timeout(FLOOD_TIME_MAX, writing).await.expect("it is neither taken nor refused")
}

/// A gateway, its size, and the head of a request that it would serve.
async fn start() -> (Answered, f64, Vec<u8>) {
    let answered = Answered::start(HASTY).await;
    answered.works().await;
    let before = answered.fleet.rss_mib();
    let head = request("POST", "/v1/chat/completions", &answered.fleet.key);
    (answered, before, head)
}

async fn is_over(what: &str, answered: &Answered, before: f64, ended: &Ended) {
    let grown = answered.is_unharmed(before).await;
    eprintln!("{what}: {ended:?}, {grown:.1} MiB more");
}

/// Something that is wrong after a request's head, by its stream.
type Wrong = fn(u32) -> Vec<u8>;

/// Clients' streams have odd numbers.
fn streams() -> impl Iterator<Item = u32> {
    (0..).map(|turn| turn * 2 + 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_opened_and_reset_end_the_connection() {
    let (answered, before, head) = start().await;
    let body = br#"{"model":"flotilla-demo","messages":[]}"#;
    let open = |stream| frame(kind::HEADERS, END_HEADERS, stream, &head);
    let pairs = streams().take(50_000).map(|stream| [open(stream), reset(stream)].concat());
    let ended = flood(&answered, hello(&[]), pairs).await;
    is_over("rapid reset", &answered, before, &ended).await;
    ended.is_refused(&[CALM]);
    let whole = streams().take(20_000).map(|stream| {
        [open(stream), frame(kind::DATA, END_STREAM, stream, body), reset(stream)].concat()
    });
    let ended = flood(&answered, hello(&[]), whole).await;
    is_over("rapid reset of whole requests", &answered, before, &ended).await;
    ended.is_refused(&[CALM]);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_the_gateway_must_reset_end_the_connection() {
    let (answered, before, head) = start().await;
    let open = |stream| frame(kind::HEADERS, END_HEADERS, stream, &head);
    let wrong: [(&str, Wrong); 4] = [
        ("an increment of zero", |stream| window(stream, 0)),
        ("a window that overflows", |stream| window(stream, 0x7fff_ffff)),
        ("a priority of itself", |stream| {
            frame(kind::PRIORITY, 0, stream, &[&stream.to_be_bytes()[..], &[1]].concat())
        }),
        ("data after the end", |stream| {
            let last = frame(kind::DATA, END_STREAM, stream, b"{}");
            [last.clone(), last].concat()
        }),
    ];
    for (what, wrong) in wrong {
        let pairs = streams().take(20_000).map(|stream| [open(stream), wrong(stream)].concat());
        let ended = flood(&answered, hello(&[]), pairs).await;
        is_over(what, &answered, before, &ended).await;
        ended.is_refused(&[CALM, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, 5]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_without_end_are_cut_short() {
    let (answered, before, head) = start().await;
    let begin = [hello(&[]), frame(kind::HEADERS, 0, 1, &head)].concat();
    for (what, payload) in [
        ("CONTINUATION flood", literal("a", "b")),
        ("empty CONTINUATIONs", Vec::new()),
        ("full CONTINUATIONs", literal("a", &"x".repeat(16_000))),
    ] {
        let more = std::iter::repeat_n(frame(kind::CONTINUATION, 0, 1, &payload), 200_000);
        let ended = flood(&answered, begin.clone(), more).await;
        is_over(what, &answered, before, &ended).await;
        ended.is_refused(&[CALM, PROTOCOL_ERROR, COMPRESSION_ERROR]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn small_headers_that_become_huge_are_refused() {
    let (answered, before, head) = start().await;
    // One entry of the table, named again and again by a byte: 4 KB each.
    let large = indexed("x", &"y".repeat(3_900));
    let bomb = [head.clone(), large, vec![0xbe; 11_000]].concat();
    let bombs = streams().take(2_000).map(|stream| {
        let flags = END_HEADERS | END_STREAM;
        frame(kind::HEADERS, flags, stream, &bomb)
    });
    let ended = flood(&answered, hello(&[]), bombs).await;
    is_over("HPACK bomb", &answered, before, &ended).await;
    ended.is_refused(&[CALM, PROTOCOL_ERROR, COMPRESSION_ERROR]);
    // Many that count little: each has its price.
    let many = [head, literal("a", "b").repeat(3_000)].concat();
    let lists = streams().take(2_000).map(|stream| {
        let flags = END_HEADERS | END_STREAM;
        frame(kind::HEADERS, flags, stream, &many)
    });
    let ended = flood(&answered, hello(&[]), lists).await;
    is_over("lists of 3,000 headers", &answered, before, &ended).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_that_only_want_an_answer_end_the_connection() {
    let (answered, before, head) = start().await;
    let ping = frame(kind::PING, 0, 0, b"flotilla");
    let frames = [
        ("PING flood", ping.clone()),
        ("SETTINGS flood", settings(&[(INITIAL_WINDOW_SIZE, 100)])),
        ("empty SETTINGS", settings(&[])),
        ("frames of no kind", frame(0xbb, 0, 0, &[0; 100])),
        ("increments of one", window(0, 1)),
        ("PRIORITY flood", frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 3, 9])),
    ];
    for (what, one) in frames {
        let many = std::iter::repeat_n(one.clone(), 600_000);
        let ended = flood(&answered, hello(&[]), many).await;
        is_over(what, &answered, before, &ended).await;
        assert!(ended.closed && ended.taken < 16 << 20, "{what}: {ended:?}");
        let many = std::iter::repeat_n(one.repeat(1000), 4_000);
        assert!(flood_unread(&answered, hello(&[]), many).await, "{what}, unread");
    }
    assert!(answered.closed("noise").await >= 1.0);
    // Beside a request that waits for its body, until that is over.
    let begin = [hello(&[]), frame(kind::HEADERS, END_HEADERS, 1, &head)].concat();
    let ended = flood(&answered, begin, std::iter::repeat_n(ping, 300_000)).await;
    is_over("PING flood beside a request", &answered, before, &ended).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_is_nothing_and_windows_that_overflow_end_the_connection() {
    let (answered, before, head) = start().await;
    let begin = [hello(&[]), frame(kind::HEADERS, END_HEADERS, 1, &head)].concat();
    let padded = [&[200u8][..], &[0; 200]].concat();
    for (what, one) in [
        ("empty DATA", frame(kind::DATA, 0, 1, b"")),
        ("DATA that is only padding", frame(kind::DATA, 8, 1, &padded)),
        ("DATA of a byte", frame(kind::DATA, 0, 1, b" ")),
    ] {
        let ended = flood(&answered, begin.clone(), std::iter::repeat_n(one, 400_000)).await;
        is_over(what, &answered, before, &ended).await;
        assert!(ended.closed, "{what}: {ended:?}");
    }
    let overflow = std::iter::repeat_n(window(0, 0x7fff_ffff), 2);
    let ended = flood(&answered, hello(&[]), overflow).await;
    is_over("a window that overflows", &answered, before, &ended).await;
    ended.is_refused(&[FLOW_CONTROL_ERROR]);
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_beyond_the_limit_are_refused_and_unread_answers_are_cut() {
    let (answered, before, head) = start().await;
    let open =
        streams().take(30_000).map(|stream| frame(kind::HEADERS, END_HEADERS, stream, &head));
    let ended = flood(&answered, hello(&[]), open).await;
    is_over("30,000 open streams", &answered, before, &ended).await;
    assert!(ended.closed, "{ended:?}");
    // No window for any answer: they wait here, and not for long.
    let ask = request("GET", "/health", "-");
    let flags = END_HEADERS | END_STREAM;
    let closed_window = hello(&[(INITIAL_WINDOW_SIZE, 0)]);
    let asks = streams().take(200).map(|stream| frame(kind::HEADERS, flags, stream, &ask));
    let ended = flood(&answered, closed_window, asks).await;
    is_over("200 answers without a window", &answered, before, &ended).await;
    assert!(ended.closed, "{ended:?}");
    assert!(answered.closed("stalled").await >= 200.0);
    // A window that opens by a byte.
    let dribble = hello(&[(INITIAL_WINDOW_SIZE, 1)]);
    let asks = streams().take(100).map(|stream| frame(kind::HEADERS, flags, stream, &ask));
    let ended = flood(&answered, dribble, asks).await;
    is_over("100 answers with a byte of window", &answered, before, &ended).await;
    assert!(ended.closed, "{ended:?}");
}
