//! What is measured of one server of a model, one function for each row of the table.

use futures_util::future::{join, join_all};
use serde_json::json;

use crate::load::{Begun, Timing, ask, ask_all, text, user};
use crate::peers::{Peer, Process};
use crate::{median, quantile};

/// Requests that decode side by side.
pub const SLOTS: usize = 16;

/// Tokens per second of `clients` requests with prompts of 60 tokens.
pub async fn decode(peer: &Peer, salt: u64, clients: usize) -> f64 {
    let prompts = (0..clients as u64).map(|i| user(text(salt * 100 + i, 60)));
    let (all, took) = ask_all(peer, prompts, 64).await;
    all.iter().map(Timing::tokens).sum::<f64>() / took.as_secs_f64()
}

/// The same for four requests, while another program keeps each core busy.
pub async fn decode_beside_others(peer: &Peer, salt: u64) -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let _busy: Vec<Process> = (0..cores).map(|_| Process::busy()).collect();
    decode(peer, salt, 4).await
}

/// Time to the first token of a prompt, in seconds.
pub async fn long_prompt(peer: &Peer, salt: u64, tokens: usize) -> f64 {
    // A model of random weights may begin with tokens that have no text.
    ask(peer, user(text(salt, tokens)), 8, |_| ()).await.first_token()
}

/// Four responses, while two prompts of 1,000 tokens arrive: their tokens per second together, and
/// the 99th percentile of the time between two tokens, in milliseconds.
pub async fn beside_long_prompts(peer: &Peer, salt: u64) -> [f64; 2] {
    let begun = Begun::new(4, 4);
    let chats = (0..4)
        .map(|i| ask(peer, user(text(salt * 100 + i, 60)), 96, |tokens| begun.record(tokens)));
    let long = async {
        begun.wait().await;
        let prompts = (4..6).map(|i| user(text(salt * 100 + i, 1000)));
        ask_all(peer, prompts, 2).await
    };
    let start = std::time::Instant::now();
    let chats = async { (join_all(chats).await, start.elapsed()) };
    let ((chats, took), _) = join(chats, long).await;
    let tokens = chats.iter().map(Timing::tokens).sum::<f64>();
    let gaps = chats.iter().flat_map(|chat| chat.gaps().map(|gap| gap * 1000.0)).collect();
    [tokens / took.as_secs_f64(), quantile(gaps, 0.99)]
}

/// Requests that share a system prompt.
const SHARING: u64 = 8;

/// Median time to the first token, in seconds, of eight requests that share a system prompt of 400
/// tokens, which one request has sent before.
pub async fn shared_prompt(peer: &Peer, salt: u64) -> f64 {
    let system = text(salt, 400);
    let asking = |i: u64| {
        let question = text(salt * 100 + i, 10);
        json!([{"role": "system", "content": system}, {"role": "user", "content": question}])
    };
    ask(peer, asking(99), 2, |_| ()).await;
    let (all, _) = ask_all(peer, (0..SHARING).map(asking), 16).await;
    median(all.iter().map(Timing::first_token).collect())
}
