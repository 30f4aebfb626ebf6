//! Requests of one peer, and when their tokens came.

use std::cell::Cell;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::peers::Peer;

/// When the tokens of a response came.
#[derive(Debug, Clone)]
pub struct Timing {
    start: Instant,
    chunks: Vec<Instant>,
    tokens: u64,
    /// Whether the response was complete.
    pub is_complete: bool,
}

impl Timing {
    /// Time to the first token, in seconds; infinite if none came.
    pub fn first_token(&self) -> f64 {
        let first = self.chunks.first();
        first.map_or(f64::INFINITY, |first| (*first - self.start).as_secs_f64())
    }

    /// Times between tokens, in seconds.
    pub fn gaps(&self) -> impl Iterator<Item = f64> {
        self.chunks.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64())
    }

    /// Number of generated tokens.
    pub fn tokens(&self) -> f64 {
        self.tokens as f64
    }
}

/// Text of about that many tokens that no other request begins with. In models of random weights
/// (`flotilla-agent synth`), each letter is a token.
pub fn text(salt: u64, tokens: usize) -> String {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut letter = |i: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(salt);
        if i % 8 == 7 { ' ' } else { char::from(b'a' + (state >> 59) as u8 % 16) }
    };
    format!("{salt} {}", (0..tokens).map(&mut letter).collect::<String>())
}

/// One message of a user.
pub fn user(text: impl Into<String>) -> Value {
    json!([{"role": "user", "content": text.into()}])
}

/// Waits until several responses have begun.
pub struct Begun {
    responses: usize,
    tokens: usize,
    count: Cell<usize>,
    all: Notify,
}

impl Begun {
    /// As many responses, each with as many tokens.
    pub fn new(responses: usize, tokens: usize) -> Self {
        Self { responses, tokens, count: Cell::new(0), all: Notify::new() }
    }

    /// Records that a response has so many tokens.
    pub fn record(&self, tokens: usize) {
        self.count.set(self.count.get() + usize::from(tokens == self.tokens));
        if self.count.get() == self.responses {
            self.all.notify_one();
        }
    }

    /// Waits; at most half a minute, because a server may serve fewer at a time.
    pub async fn wait(&self) {
        let _ = tokio::time::timeout(Duration::from_secs(30), self.all.notified()).await;
    }
}

/// Streams a response of `tokens` tokens, and calls `record` with the number of those that have
/// arrived.
pub async fn ask(peer: &Peer, messages: Value, tokens: u32, record: impl Fn(usize)) -> Timing {
    let start = Instant::now();
    let mut timing = Timing { start, chunks: Vec::new(), tokens: 0, is_complete: false };
    let request = peer.request(messages, tokens);
    let Ok(mut stream) = peer.client.try_stream(&request).await else { return timing };
    while stream.next_chunk().await {
        timing.chunks.push(Instant::now());
        record(timing.chunks.len());
    }
    let told = &stream.transcript;
    let usage = told.usage.as_ref().and_then(|usage| usage["completion_tokens"].as_u64());
    timing.tokens = usage.unwrap_or(timing.chunks.len() as u64);
    timing.is_complete = told.done && told.errors.is_empty() && told.finish.is_some();
    timing
}

/// Several at once, and how long they took together.
pub async fn ask_all(
    peer: &Peer,
    messages: impl IntoIterator<Item = Value>,
    tokens: u32,
) -> (Vec<Timing>, Duration) {
    let start = Instant::now();
    let all = messages.into_iter().map(|messages| ask(peer, messages, tokens, |_| ()));
    let all = join_all(all).await;
    (all, start.elapsed())
}
