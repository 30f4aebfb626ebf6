//! Tests the logprobs of a prompt's tokens.

use super::*;
use crate::types::request::FinishReason;

/// The tokens of the prompt with their logprobs, as they were emitted.
fn told(bench: &Bench, id: RequestId) -> Vec<(Token, f32)> {
    let list = |event: &Event| match event {
        Event::PromptLogprobs(list) => Some(list.clone()),
        _ => None,
    };
    let all = bench.events[&id].iter().filter_map(list).flatten();
    all.map(|told| (told.chosen.token, told.chosen.logprob)).collect()
}

fn scoring(max_tokens: u32) -> Options {
    let (logprobs, max_tokens) = (Some(2), Some(max_tokens));
    Options { prompt_logprobs: true, logprobs, max_tokens, ..Options::GREEDY }
}

fn bytes(text: &str) -> Vec<Token> {
    text.bytes().map(Token::from).collect()
}

#[test]
fn every_token_is_told_once_and_the_one_that_the_model_expects_is_the_likeliest() {
    // The model expects the first token again and again while a prompt has no end.
    let prompt = format!("aab{}", "a".repeat(40));
    let mut bench = Bench::new(2, 8);
    // The prompt is cached, which must not matter.
    bench.submit(1, &prompt);
    bench.run();
    bench.submit_with((Tenant(0), 2), &prompt, scoring(0));
    bench.run();
    let told = told(&bench, 2);
    assert_eq!(told.iter().map(|(token, _)| *token).collect::<Vec<_>>(), bytes(&prompt));
    assert!(told[1].1 > told[2].1, "b is unexpected: {told:?}");
    assert_eq!(told[1].1, told[40].1);
    assert_eq!(bench.cached(2), 0);
    let finished = matches!(
        bench.last(2),
        Event::Finished { reason: FinishReason::Length, completion_tokens: 0, .. }
    );
    assert!(finished && bench.text(2).is_empty(), "{:?}", bench.last(2));
}

#[test]
fn no_batch_needs_more_logits_than_there_is_room_for_and_others_go_on() {
    let mut bench = Bench::on(FakeModel::new(3, 64, 16).with_kept(2));
    bench.submit(1, "xyz\0");
    bench.submit_with((Tenant(0), 2), &"b".repeat(50), scoring(1));
    bench.submit_with((Tenant(0), 3), &"c".repeat(50), scoring(1));
    bench.run();
    for (id, letter) in [(2, "b"), (3, "c")] {
        let tokens: Vec<Token> = told(&bench, id).iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, bytes(&letter.repeat(50)));
        assert_eq!(bench.text(id), letter);
    }
    assert_eq!(bench.text(1), "xyz");
    let most =
        bench.engine.model.batches.iter().map(|rows| rows.iter().filter(|r| r.logits).count());
    assert_eq!(most.max(), Some(5), "as many as there are sequence ids");
}

#[test]
fn a_preempted_prompt_goes_on_where_its_logprobs_end() {
    // Both together have too few cells.
    let mut bench = Bench::on(FakeModel::with_cells(2, 64, 8, 70));
    bench.submit_with(
        (Tenant(0), 1),
        &"a".repeat(40),
        Options { max_tokens: Some(20), ..scoring(20) },
    );
    bench.submit_with((Tenant(1), 2), &"b".repeat(40), scoring(9));
    bench.run();
    for (id, letter) in [(1, "a"), (2, "b")] {
        let tokens: Vec<Token> = told(&bench, id).iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, bytes(&letter.repeat(40)));
    }
}
