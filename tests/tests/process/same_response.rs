//! A response at temperature 0 is the same to the last bit, wherever the cells of its conversation lie
//! and whatever else its node computes.

use fleet_tests::client::Client;
use fleet_tests::process::Agent;
use fleet_tests::{conversation, demo_model};
use serde_json::{Value, json};

use crate::hostile::idle;

/// More conversations than the KV cache holds.
const CONVERSATIONS: usize = 24;
const TURNS: usize = 12;
const ROOM: [&str; 6] = ["--slots", "4", "--kv-cells", "3072", "--saved-prefix-mib", "8"];

/// The response to a conversation: its text, and how likely its tokens were.
async fn ask(client: &Client, number: usize) -> Value {
    let mut request = conversation(number, TURNS);
    let fields = json!({"max_tokens": 24, "logprobs": true, "top_logprobs": 3, "model": "m"});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let answer = client.chat(&request).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["choices"][0].take()
}

#[tokio::test]
async fn a_conversation_gets_the_same_response_wherever_its_cells_lie() {
    let named = [&ROOM[..], &["--model-name", "m"]].concat();
    let agent = Agent::start_with_model(&demo_model(), &named).await;
    let mut first = Vec::new();
    for number in 0..CONVERSATIONS {
        first.push(ask(&agent.client, number).await);
    }
    for round in 1..4 {
        // Four at a time, in another order.
        let order: Vec<usize> =
            (0..CONVERSATIONS).map(|n| (n * 7 + round * 5) % CONVERSATIONS).collect();
        for some in order.chunks(4) {
            let again = some.iter().map(|number| ask(&agent.client, *number));
            let again = futures_util::future::join_all(again).await;
            for (number, again) in some.iter().zip(again) {
                assert_eq!(again, first[*number], "conversation {number} in round {round}");
            }
        }
    }
    assert!(agent.metric("node_kv_evictions_total").await > 0.0, "there was room for all");
    idle(&agent).await;
}
