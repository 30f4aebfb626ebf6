//! Tests of what ends a response early or late, and of prompts that use no cached prefix.

use super::resume::respond;
use super::*;
use crate::types::request::Sampling;

fn text(prompt: &str, options: &Options, constrained: bool) -> (String, u32) {
    let transcript = respond(prompt, options, constrained, &[]);
    assert_eq!(transcript.reason, Some(FinishReason::Stop));
    (transcript.texts().concat(), transcript.completion_tokens)
}

#[test]
fn a_response_that_would_end_continues_until_its_least_tokens() {
    let sampling = Sampling { min_tokens: 5, ..Sampling::GREEDY };
    let options = Options { sampling, ..Options::GREEDY };
    assert_eq!(text("ab\0", &Options::GREEDY, false), ("ab".into(), 3));
    // The model would end after each repetition of the prompt.
    assert_eq!(text("ab\0", &options, false), ("ab\0ab".into(), 6));
}

#[test]
fn a_grammar_continues_too_and_ends_where_it_must() {
    let of = |min_tokens| {
        let sampling = Sampling { min_tokens, ..Sampling::GREEDY };
        let options = Options { sampling, ..Options::GREEDY };
        text("abcde\0", &options, true).1
    };
    // Five to forty letters, and the token that ends them. The model would end after each six.
    assert_eq!((of(0), of(20), of(1000)), (6, 24, 41));
}

#[test]
fn a_stop_token_ends_the_response_without_its_text() {
    let options = Options { stop_tokens: vec![u32::from(b'c')], ..Options::GREEDY };
    assert_eq!(text("abcd\0", &options, false), ("ab".into(), 3));
}

#[test]
fn a_prompt_that_wants_no_cache_is_computed_again() {
    let mut bench = Bench::on(FakeModel::new(1, 128, 16));
    let prompt = "a prompt of some length\0";
    for (id, uses_cache, expected) in [(1, true, 0), (2, true, 23), (3, false, 0), (4, true, 23)] {
        let options = Options { uses_cache, ..Options::GREEDY };
        bench.submit_with((Tenant(0), id), prompt, options);
        bench.run();
        let Event::Finished { cached_tokens, .. } = bench.last(id) else { panic!() };
        assert_eq!(*cached_tokens, expected, "request {id}");
    }
}
