//! Tests how sequences advance and end.

use super::*;

fn sequence(max_tokens: Option<u32>, stop: &[&str]) -> Sequence {
    let job = Job {
        id: 1,
        tenant: Tenant(0),
        tokens: vec![1, 2],
        resumed_len: 0,
        options: Options {
            max_tokens,
            stop: stop.iter().map(|s| s.to_string()).collect(),
            ..Options::GREEDY
        },
        visible: Vec::new(),
        grammar: None,
        in_reasoning: false,
        resolved: Default::default(),
        cancel: CancelFlag::default(),
    };
    Sequence::new(job, 0, 8)
}

fn sampled(piece: &[u8], is_end: bool) -> Sampled<'_> {
    Sampled { token: 9, piece, is_end, logprob: None, now: None }
}

fn advance(sequence: &mut Sequence, piece: &[u8]) -> (String, Option<FinishReason>) {
    let a = sequence.advance(sampled(piece, false));
    (a.chunk.unwrap_or_default().text, a.finished)
}

#[test]
fn max_tokens_and_the_context_end_with_length() {
    let mut s = sequence(Some(2), &[]);
    assert_eq!(advance(&mut s, b"a"), ("a".into(), None));
    assert_eq!(advance(&mut s, b"b"), ("b".into(), Some(FinishReason::Length)));
    let mut s = sequence(None, &[]);
    let finished: Vec<_> = (0..6).map(|_| advance(&mut s, b"x").1).collect();
    assert_eq!(finished.iter().filter(|e| e.is_some()).count(), 1);
    assert_eq!(finished[5], Some(FinishReason::Length));
}

#[test]
fn a_stop_string_wins_over_the_length_and_is_not_shown() {
    let mut s = sequence(Some(2), &["x", "b"]);
    advance(&mut s, b"a");
    assert_eq!(advance(&mut s, b"b"), (String::new(), Some(FinishReason::StopString(1))));
}

#[test]
fn what_was_held_back_is_shown_at_the_end() {
    let mut s = sequence(Some(3), &["bcd"]);
    assert_eq!(advance(&mut s, b"ab"), ("a".into(), None));
    assert_eq!(advance(&mut s, b"c"), (String::new(), None));
    assert_eq!(advance(&mut s, b""), ("bc".into(), Some(FinishReason::Length)));
}

#[test]
fn half_a_character_is_left_out_at_the_length_and_replaced_at_the_models_end() {
    let mut s = sequence(Some(2), &[]);
    assert_eq!(advance(&mut s, b"a\xe3"), ("a".into(), None));
    assert_eq!(advance(&mut s, b"\x81"), (String::new(), Some(FinishReason::Length)));
    let mut s = sequence(None, &[]);
    advance(&mut s, b"a\xe3");
    assert_eq!(s.advance(sampled(b"<end>", true)).chunk.unwrap().text, "\u{fffd}");
}

#[test]
fn an_ending_token_has_no_text() {
    let end = sequence(None, &[]).advance(sampled(b"<end>", true));
    assert_eq!(end, Advance { chunk: None, finished: Some(FinishReason::Stop) });
}
