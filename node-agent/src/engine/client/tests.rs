//! Tests requests whose engine works, dies, or is slow.

use std::time::Duration;

use inference_core::text::output::Format;
use inference_core::types::request::{
    FinishReason, Options, Prompt, ResponseTimes, Sibling, TextChunk,
};

use super::*;

fn request() -> GenerateRequest {
    GenerateRequest {
        tenant: Tenant(7),
        prompt: Prompt::Text("x".into()),
        options: Options::GREEDY,
        constraint: None,
        calls: None,
        show_delimiters: false,
        resume_tokens: Vec::new(),
        now: 0,
        siblings: Vec::new(),
    }
}

fn submit(client: &EngineClient, via: Via) -> Generation {
    client.submit(request(), via).unwrap().remove(0)
}

fn ready() -> EngineClient {
    let client = EngineClient::default();
    client.set_ready(EngineFacts::made_up(Format::detect("")));
    client
}

const OVER_1: Via = Via { link: 1, digest: None };

const FINISHED: Event = Event::Finished {
    reason: FinishReason::Stop,
    completion_tokens: 1,
    cached_tokens: 0,
    tokens: Vec::new(),
    times: ResponseTimes {
        prefill: Duration::ZERO,
        decode: Duration::ZERO,
        drafted: 0,
        accepted: 0,
    },
};

#[tokio::test]
async fn a_dropped_generation_is_cancelled_and_in_flight_until_the_engine_says_so() {
    let client = ready();
    let generation = submit(&client, OVER_1);
    assert!(matches!(client.next_commands().await[..], [Command::Submit(1, _)]));
    drop(generation);
    assert_eq!(client.next_commands().await, [Command::Cancel(1)]);
    assert_eq!(client.figures().in_flight, 1);
    client.deliver(1, Event::Cancelled);
    assert_eq!(client.figures().in_flight, 0);
}

#[tokio::test]
async fn several_answers_are_one_command_and_are_cancelled_one_by_one() {
    let client = ready();
    let sibling = Sibling { seed: 1, resume_tokens: Vec::new() };
    let asked = GenerateRequest { siblings: vec![sibling; 2], ..request() };
    let mut all = client.submit(asked, OVER_1).unwrap();
    assert!(matches!(client.next_commands().await[..], [Command::Submit(1, _)]));
    assert_eq!((all.len(), client.figures().in_flight), (3, 3));
    drop(all.remove(1));
    assert_eq!(client.next_commands().await, [Command::Cancel(2)]);
    client.deliver(3, FINISHED);
    assert_eq!(all[1].next().await, Some(FINISHED));
    let next = submit(&client, OVER_1);
    assert!(matches!(client.next_commands().await[..], [Command::Submit(4, _)]));
    drop(next);
}

#[tokio::test]
async fn a_finished_generation_sends_no_cancel() {
    let client = ready();
    let mut generation = submit(&client, OVER_1);
    client.deliver(1, FINISHED);
    assert_eq!(generation.next().await, Some(FINISHED));
    drop(generation);
    assert!(matches!(client.next_commands().await[..], [Command::Submit(1, _)]));
    assert_eq!(client.figures().in_flight, 0);
}

#[tokio::test]
async fn a_death_ends_every_generation_and_refuses_new_ones_until_ready() {
    let client = ready();
    let mut generation = submit(&client, OVER_1);
    client.set_dead();
    assert_eq!(generation.next().await, None);
    assert_eq!(client.submit(request(), OVER_1).err(), Some(NotAccepted::Restarting));
    assert_eq!((client.figures().in_flight, client.figures().restarts), (0, 1));
}

#[tokio::test]
async fn a_client_that_never_reads_is_cancelled() {
    let client = ready();
    let _stuck = submit(&client, OVER_1);
    client.next_commands().await;
    for _ in 0..=EVENTS_MAX {
        client.deliver(1, Event::Text(TextChunk::default()));
    }
    assert_eq!(client.next_commands().await, [Command::Cancel(1)]);
}

#[test]
fn a_request_that_is_meant_for_other_weights_is_not_taken() {
    let client = ready();
    let meant = |digit: &str| {
        let digest = Some(digit.repeat(64).parse().unwrap());
        client.submit(request(), Via { digest, ..OVER_1 })
    };
    assert!(meant("0").is_ok());
    assert_eq!(meant("1").err(), Some(NotAccepted::OtherWeights));
    client.set_dead();
    assert_eq!(meant("1").err(), Some(NotAccepted::Restarting));
}

#[test]
fn load_is_counted_by_link() {
    let client = ready();
    let _one = submit(&client, OVER_1);
    let _two = submit(&client, Via { link: 2, ..OVER_1 });
    assert_eq!(client.in_flight_elsewhere(2), 1);
    assert_eq!(client.in_flight_elsewhere(3), 2);
}

#[test]
fn draining_is_final() {
    let client = ready();
    client.drain();
    client.set_dead();
    assert_eq!(client.state(), EngineState::Draining);
    assert_eq!(client.submit(request(), OVER_1).err(), Some(NotAccepted::Draining));
    assert_eq!(client.state().ready().err(), Some(NotAccepted::Draining));
}
