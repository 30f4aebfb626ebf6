//! A response at temperature 0 is the same to the last bit, wherever the cells of its conversation
//! lie and whatever else its node computes.

use fleet_tests::client::Client;
use fleet_tests::process::{Agent, Folder, run};
use fleet_tests::{conversation, demo_model};
use serde_json::{Value, json};

use crate::hostile::idle;

const TURNS: usize = 12;
const SIZES: [&str; 6] = ["--slots", "4", "--saved-prefix-mib", "8", "--model-name", "m"];

/// Windows with soft caps and a key for each head, recurrent states, latents for keys and values,
/// and experts.
const BUILT_OF: [(&str, &str); 15] = [
    ("tiny", "f16"),
    ("tiny-window", "f16"),
    ("tiny-window", "q8_0"),
    ("tiny-hybrid", "f16"),
    ("tiny-hybrid", "q8_0"),
    ("tiny-delta", "q8_0"),
    ("tiny-mla", "f16"),
    ("tiny-mla", "q4_k_m"),
    ("tiny-next-mtp", "q4_0"),
    ("tiny-experts", "f16"),
    ("tiny-experts", "q8_0"),
    ("tiny-experts", "q4_0"),
    ("tiny-experts", "q4_k_m"),
    ("tiny", "q5_k_m"),
    ("tiny", "iq4_xs"),
];

/// The response to a conversation: its text, and how likely its tokens were.
async fn ask(client: &Client, number: usize) -> Value {
    let mut request = conversation(number, TURNS);
    let fields = json!({"max_tokens": 24, "logprobs": true, "top_logprobs": 3, "model": "m"});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let answer = client.chat(&request).await;
    assert_eq!(answer.status, 200, "{:?}", answer.body);
    answer.json()["choices"][0].take()
}

/// Asks for the responses of conversations one after the other, and then some times four at a time
/// in another order.
async fn ask_again(agent: &Agent, conversations: usize, rounds: usize, what: &str) {
    let mut first = Vec::new();
    for number in 0..conversations {
        first.push(ask(&agent.client, number).await);
    }
    for round in 1..=rounds {
        let order = (0..conversations).map(|n| (n * 7 + round * 5) % conversations);
        for some in order.collect::<Vec<_>>().chunks(4) {
            let again = some.iter().map(|number| ask(&agent.client, *number));
            let again = futures_util::future::join_all(again).await;
            for (number, again) in some.iter().zip(again) {
                assert_eq!(again, first[*number], "{what}conversation {number}, round {round}");
            }
        }
    }
    idle(agent).await;
}

#[tokio::test]
async fn a_conversation_gets_the_same_response_wherever_its_cells_lie() {
    let room = [&SIZES[..], &["--kv-cells", "3072"]].concat();
    let agent = Agent::start_with_model(&demo_model(), &room).await;
    ask_again(&agent, 24, 3, "").await;
    assert!(agent.metric("node_kv_evictions_total").await > 0.0, "there was room for all");
}

#[tokio::test]
async fn a_response_does_not_depend_on_the_requests_beside_it_whatever_the_model_is_built_of() {
    let folder = Folder::new();
    let room = [&SIZES[..], &["--kv-cells", "6144"]].concat();
    for (shape, quant) in BUILT_OF {
        let path = folder.path().join("model.gguf");
        let arguments =
            ["synth", "--force", "--shape", shape, "--quant", quant, path.to_str().unwrap()];
        assert_eq!(run("flotilla-agent", &arguments).code, Some(0));
        let agent = Agent::start_with_model(&path, &room).await;
        ask_again(&agent, 5, 2, &format!("{shape}, {quant}, ")).await;
    }
}

/// A response that began on a CPU of one kind continues the same on one of another.
#[tokio::test]
async fn a_response_is_the_same_with_every_set_of_kernels_whatever_the_model_is_built_of() {
    let works = |kernel: &&str| run("flotilla-agent", &["kernel-trial", kernel]).code == Some(0);
    let kernels: Vec<&str> =
        ["amx", "avx512", "sve", "i8mm", "dotprod", "baseline"].into_iter().filter(works).collect();
    if kernels.len() < 2 {
        eprintln!("skipped: this CPU runs only {kernels:?}");
        return;
    }
    let folder = Folder::new();
    for (shape, quant) in BUILT_OF {
        let path = folder.path().join("model.gguf");
        let arguments =
            ["synth", "--force", "--shape", shape, "--quant", quant, path.to_str().unwrap()];
        assert_eq!(run("flotilla-agent", &arguments).code, Some(0));
        let mut first = Vec::new();
        for kernel in &kernels {
            let agent =
                Agent::start_with_model(&path, &[&SIZES[..], &["--kernel", kernel]].concat()).await;
            let some = (0..3).map(|number| ask(&agent.client, number));
            let answers = futures_util::future::join_all(some).await;
            if first.is_empty() {
                first = answers;
            } else {
                assert_eq!(answers, first, "{shape}, {quant}: {kernel} and {}", kernels[0]);
            }
        }
    }
}

/// A vocabulary that is large enough for threads to sample side by side.
#[tokio::test]
async fn responses_that_threads_sample_side_by_side_are_those_that_each_gets_alone() {
    let folder = Folder::new();
    let path = folder.path().join("model.gguf");
    let synth = ["synth", "--shape", "draft-0.1b", "--quant", "q8_0", path.to_str().unwrap()];
    assert_eq!(run("flotilla-agent", &synth).code, Some(0));
    let more = ["--threads", "2", "--slots", "4", "--context-tokens", "512", "--model-name", "m"];
    let agent = Agent::start_with_model(&path, &more).await;
    let of_kind = [
        json!({"temperature": 0, "ignore_eos": true}),
        json!({"seed": 3, "ignore_eos": true}),
        json!({"seed": 4, "temperature": 1.5, "top_k": 0, "frequency_penalty": 1}),
        json!({"seed": 5, "temperature": 1, "response_format": {"type": "json_object"}}),
    ];
    let ask = |number: usize| {
        let mut request = json!({"model": "m", "max_tokens": 12,
            "messages": [{"role": "user", "content": format!("{number} to be or not to be")}]});
        let fields = of_kind[number % 4].as_object().unwrap().clone();
        request.as_object_mut().unwrap().extend(fields);
        let agent = &agent;
        async move {
            let answer = agent.client.chat(&request).await;
            assert_eq!(answer.status, 200, "{:?}", answer.body);
            answer.json()["choices"].take()
        }
    };
    let mut alone = Vec::new();
    for number in 0..8 {
        alone.push(ask(number).await);
    }
    let together = futures_util::future::join_all((0..8).map(ask)).await;
    assert_eq!(together, alone);
}
