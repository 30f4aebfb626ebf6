//! Tests of choices.

use super::*;

/// A choice of a model whose prompt ends inside reasoning.
fn reasoning() -> Choice {
    let format = Format::detect("{{ '<think>' }}{{ '</think>' }}");
    let mut choice =
        Choice::new(0, Reading::Parted { format, tools: ToolSet::default(), calls_max: 0 });
    take(&mut choice, Event::Started { prompt_tokens: 7, in_reasoning: true });
    choice
}

fn take(choice: &mut Choice, event: Event) {
    assert!(choice.take(Some(event)).is_ok());
}

fn chunk(text: &str, tokens: &[Token]) -> TextChunk {
    TextChunk { text: text.into(), tokens: tokens.into(), ..TextChunk::default() }
}

fn finished(reason: FinishReason, completion_tokens: u32, tokens: &[Token]) -> Event {
    let times = ResponseTimes::default();
    Event::Finished { reason, completion_tokens, cached_tokens: 0, tokens: tokens.into(), times }
}

#[test]
fn tokens_of_reasoning_are_counted_up_to_the_one_that_ends_it() {
    let mut choice = reasoning();
    for (text, tokens, counted) in
        [("Let me", &[1, 2][..], 2), (" see.</think>", &[3], 3), ("Hi", &[4], 3)]
    {
        take(&mut choice, Event::Text(chunk(text, tokens)));
        assert_eq!(choice.reasoning_tokens, counted, "after {text}");
    }
    take(&mut choice, finished(FinishReason::Stop, 5, &[5]));
    assert_eq!((choice.reasoning_tokens, choice.completion_tokens), (3, 5));
}

#[test]
fn tokens_of_reasoning_on_another_node_and_of_reasoning_without_an_end_are_counted() {
    let mut choice = reasoning();
    let replayed = vec![chunk("Let me", &[1, 2]), chunk(" see", &[3])];
    take(&mut choice, Event::Replayed(replayed));
    while let Some((shown, tokens)) = choice.replayed.pop_front() {
        choice.read(shown, tokens);
    }
    take(&mut choice, Event::Text(chunk(" what", &[4])));
    take(&mut choice, finished(FinishReason::Length, 5, &[5]));
    assert_eq!((choice.reasoning_tokens, choice.completion_tokens), (5, 5));
    assert_eq!(choice.generated_tokens, 2);
}

#[test]
fn a_response_whose_text_is_not_parsed_has_no_reasoning() {
    let mut choice = Choice::new(0, Reading::Plain);
    take(&mut choice, Event::Started { prompt_tokens: 7, in_reasoning: true });
    take(&mut choice, Event::Text(chunk("Let me</think>", &[1, 2])));
    assert_eq!(choice.reasoning_tokens, 0);
}
