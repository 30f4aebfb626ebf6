//! What is measured of two nodes behind one endpoint.

use std::cell::RefCell;

use futures_util::future::{join, join_all};
use serde_json::json;
use tokio::sync::Notify;

use crate::load::{Timing, ask, user, words};
use crate::median;
use crate::peers::Peer;

/// Of eight responses, how many are complete although one of two nodes is killed (-9) when each has
/// ten tokens.
pub async fn killed(peer: &mut Peer, salt: u64) -> f64 {
    let (begun, all_begun) = (RefCell::new(0), Notify::new());
    let node = peer.take_node();
    let started = |tokens| {
        *begun.borrow_mut() += usize::from(tokens == 10);
        if *begun.borrow() == 8 {
            all_begun.notify_one();
        }
    };
    let peer = &*peer;
    let chats = (0..8).map(|i| ask(peer, user(words(salt * 100 + i, 20)), 96, started));
    let kill = async {
        let wait = std::time::Duration::from_secs(30);
        let _ = tokio::time::timeout(wait, all_begun.notified()).await;
        drop(node);
    };
    let (chats, ()) = join(join_all(chats), kill).await;
    chats.iter().filter(|chat| chat.is_complete && chat.tokens() >= 96.0).count() as f64
}

/// Median time to the first token, in seconds, of the second turn of six conversations whose first
/// message has 600 words.
pub async fn second_turn(peer: &Peer, salt: u64) -> f64 {
    let mut conversations = Vec::new();
    for i in 0..6 {
        let first = user(words(salt * 100 + i, 600));
        ask(peer, first.clone(), 8, |_| ()).await;
        conversations.push(first);
    }
    let mut times = Vec::new();
    for first in conversations {
        let second = [
            first[0].clone(),
            json!({"role": "assistant", "content": "I see."}),
            json!({"role": "user", "content": "Continue."}),
        ];
        times.push(ask(peer, json!(second), 2, |_| ()).await.first_token());
    }
    median(times)
}

/// Two users: one sends 24 requests at once, the other sends one when the first of these has begun.
/// Time to the first token of the other, in seconds, and how many of all 25 are complete.
pub async fn two_users(peer: &Peer, salt: u64) -> [f64; 2] {
    let begun = Notify::new();
    let started = |_| begun.notify_one();
    let many = (0..24).map(|i| ask(peer, user(words(salt * 100 + i, 60)), 48, started));
    let other = async {
        begun.notified().await;
        ask(&peer.of_second_user(), user(words(salt * 100 + 24, 60)), 8, |_| ()).await
    };
    let (many, other) = join(join_all(many), other).await;
    let complete = many.iter().chain([&other]).filter(|one: &&Timing| one.is_complete).count();
    [other.first_token(), complete as f64]
}
