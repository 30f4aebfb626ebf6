//! What is measured of two nodes behind one endpoint.

use futures_util::future::{join, join_all};
use serde_json::json;
use tokio::sync::Notify;

use crate::load::{Begun, Timing, ask, text, user};
use crate::peers::Peer;

/// Of eight responses, how many are complete although one of two nodes is killed (-9) when each has
/// ten tokens.
pub async fn killed(peer: &mut Peer, salt: u64) -> f64 {
    let begun = Begun::new(8, 10);
    let node = peer.take_node();
    let peer = &*peer;
    let chats = (0..8)
        .map(|i| ask(peer, user(text(salt * 100 + i, 20)), 96, |tokens| begun.record(tokens)));
    let kill = async {
        begun.wait().await;
        drop(node);
    };
    let (chats, ()) = join(join_all(chats), kill).await;
    chats.iter().filter(|chat| chat.is_complete && chat.tokens() >= 96.0).count() as f64
}

/// In this order eight conversations continue: one that takes turns between two nodes meets the
/// node of the first turn half of the time.
const SECOND_TURNS: [usize; 8] = [0, 1, 2, 3, 5, 4, 7, 6];

/// Mean time to the first token, in seconds, of the second turn of eight conversations whose first
/// message has 800 tokens.
pub async fn second_turn(peer: &Peer, salt: u64) -> f64 {
    let mut conversations = Vec::new();
    for i in 0..SECOND_TURNS.len() as u64 {
        let first = user(text(salt * 100 + i, 800));
        ask(peer, first.clone(), 8, |_| ()).await;
        conversations.push(first);
    }
    let mut sum = 0.0;
    for i in SECOND_TURNS {
        let second = [
            conversations[i][0].clone(),
            json!({"role": "assistant", "content": "I see."}),
            json!({"role": "user", "content": "Continue."}),
        ];
        sum += ask(peer, json!(second), 2, |_| ()).await.first_token();
    }
    sum / SECOND_TURNS.len() as f64
}

/// Two users: one sends 24 requests at once, the other sends one when the first of these has begun.
/// Time to the first token of the other, in seconds, and how many of all 25 are complete.
pub async fn two_users(peer: &Peer, salt: u64) -> [f64; 2] {
    let begun = Notify::new();
    let started = |_| begun.notify_one();
    let many = (0..24).map(|i| ask(peer, user(text(salt * 100 + i, 60)), 48, started));
    let other = async {
        begun.notified().await;
        ask(&peer.of_second_user(), user(text(salt * 100 + 24, 60)), 8, |_| ()).await
    };
    let (many, other) = join(join_all(many), other).await;
    let complete = many.iter().chain([&other]).filter(|one: &&Timing| one.is_complete).count();
    [other.first_token(), complete as f64]
}
