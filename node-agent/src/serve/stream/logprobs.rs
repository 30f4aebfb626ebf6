//! Logprobs in OpenAI's two formats.

use inference_core::types::request::{LikelyToken, TokenLogprob};
use inference_protocol::openai::{self, ChatLogprobs, ChatToken, TextLogprobs};
use serde_json::{Map, Value};

/// For chat completions.
pub(crate) fn of_chat(tokens: &[TokenLogprob]) -> ChatLogprobs {
    let content = tokens.iter().map(|t| ChatToken {
        chosen: likely(&t.chosen),
        top_logprobs: t.likeliest.iter().map(likely).collect(),
    });
    ChatLogprobs { content: content.collect(), refusal: None }
}

fn likely(token: &LikelyToken) -> openai::LikelyToken {
    openai::LikelyToken { token: text(token), logprob: token.logprob, bytes: token.bytes.clone() }
}

/// For text completions. `offset` is the number of characters of the response before these.
pub(crate) fn of_text(tokens: &[TokenLogprob], offset: usize) -> TextLogprobs {
    let mut lists = TextLogprobs::default();
    append(&mut lists, tokens, offset);
    lists
}

/// Appends more tokens, which begin at `offset`.
pub(crate) fn append(lists: &mut TextLogprobs, tokens: &[TokenLogprob], mut offset: usize) {
    for token in tokens {
        push(lists, token, offset);
        offset += text(&token.chosen).chars().count();
    }
}

fn push(lists: &mut TextLogprobs, token: &TokenLogprob, offset: usize) {
    lists.text_offset.push(offset);
    lists.tokens.push(text(&token.chosen));
    lists.token_logprobs.push(Some(token.chosen.logprob));
    let all = token.likeliest.iter().chain([&token.chosen]);
    let entry = |t: &LikelyToken| (text(t), number(t.logprob));
    lists.top_logprobs.push(Some(all.map(entry).collect::<Map<_, _>>()));
}

/// The number with the same digits as the token's own logprob: evaluation harnesses compare the two
/// for equality, and a `Value` would write the digits of a 64-bit number.
fn number(logprob: f32) -> Value {
    logprob.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// Tokens of an echoed prompt in one chunk of a stream, at most: an event has a limit.
const PART_TOKENS: usize = 64;

/// For the tokens of an echoed prompt. The first one has no logprob, because nothing precedes it.
pub(crate) fn of_prompt(tokens: &[TokenLogprob], echo: &str) -> TextLogprobs {
    let mut lists = TextLogprobs::default();
    of_prompt_parts(tokens, echo).into_iter().filter_map(|(_, part)| part).for_each(|part| {
        lists.text_offset.extend(part.text_offset);
        lists.tokens.extend(part.tokens);
        lists.token_logprobs.extend(part.token_logprobs);
        lists.top_logprobs.extend(part.top_logprobs);
    });
    lists
}

/// The echoed prompt in parts with the logprobs of their tokens, or in one without.
pub(crate) fn of_prompt_parts<'e>(
    tokens: &[TokenLogprob],
    echo: &'e str,
) -> Vec<(&'e str, Option<TextLogprobs>)> {
    if tokens.is_empty() {
        return vec![(echo, None)];
    }
    let mut starts = starts(tokens, echo).into_iter().peekable();
    let (mut chars, mut counted, mut parts) = (0, 0, Vec::new());
    for (number, part) in tokens.chunks(PART_TOKENS).enumerate() {
        let (mut lists, mut from) = (TextLogprobs::default(), echo.len());
        for (token, start) in part.iter().zip(starts.by_ref()) {
            chars += echo[counted..start].chars().count();
            counted = start;
            from = from.min(start);
            push(&mut lists, token, chars);
        }
        if number == 0 {
            from = 0;
            lists.token_logprobs[0] = None;
            lists.top_logprobs[0] = None;
        }
        let end = starts.peek().copied().unwrap_or(echo.len());
        parts.push((&echo[from..end], Some(lists)));
    }
    parts
}

/// Where each token starts in the text of its prompt, in bytes. What a tokenizer adds in front (a
/// beginning token, a space) is no part of the text.
fn starts(tokens: &[TokenLogprob], echo: &str) -> Vec<usize> {
    let mut at = 0;
    let mut start = |token: &TokenLogprob| {
        let (begin, bytes) = (echo.floor_char_boundary(at), &token.chosen.bytes[..]);
        let rest = &echo.as_bytes()[at..];
        let bare = bytes.strip_prefix(b" ").filter(|_| at == 0).unwrap_or(bytes);
        let shown = [bytes, bare].into_iter().find(|shown| rest.starts_with(shown));
        at += shown.map_or(0, <[u8]>::len);
        begin
    };
    tokens.iter().map(&mut start).collect()
}

fn text(token: &LikelyToken) -> String {
    String::from_utf8_lossy(&token.bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(pieces: &[&[u8]]) -> Vec<TokenLogprob> {
        let token = |(id, piece): (usize, &&[u8])| {
            let chosen = LikelyToken { token: id as u32, bytes: piece.to_vec(), logprob: -1.0 };
            TokenLogprob { likeliest: vec![chosen.clone()], chosen }
        };
        pieces.iter().enumerate().map(token).collect()
    }

    #[test]
    fn offsets_are_those_of_the_text_whatever_the_tokenizer_adds() {
        let offsets = |pieces: &[&[u8]], echo| of_prompt(&tokens(pieces), echo).text_offset;
        assert_eq!(offsets(&[b"a", b" b", b"c"], "a bc"), [0, 1, 3]);
        assert_eq!(offsets(&[b"<s>", b" a", b" b"], "a b"), [0, 0, 1], "nothing of it is there");
        assert_eq!(offsets(&[b"<s>", b" b"], "<s> b"), [0, 3], "the client wrote it");
        let halves: &[&[u8]] = &["ü".as_bytes(), b"\xe2\x82", b"\xac", b"x"];
        assert_eq!(offsets(halves, "ü€x"), [0, 1, 1, 2]);
    }

    #[test]
    fn a_logprob_has_the_same_digits_in_both_lists() {
        for logprob in [-3.056_303e-6, -0.1, -9999.0, 0.0, -17.871_67] {
            let mut all = tokens(&[b"a", b"b"]);
            all[1].chosen.logprob = logprob;
            all[1].likeliest[0].logprob = logprob;
            let json = serde_json::to_value(of_text(&all, 0)).unwrap();
            let text = serde_json::to_string(&of_text(&all, 0)).unwrap();
            let read: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(read["token_logprobs"][1], read["top_logprobs"][1]["b"], "{json}");
        }
    }

    #[test]
    fn the_first_token_has_no_logprob_and_parts_add_up_to_the_whole() {
        let echo = "ab".repeat(100);
        let tokens = tokens(&[&b"ab"[..]; 100]);
        let parts = of_prompt_parts(&tokens, &echo);
        assert_eq!(parts.iter().map(|(text, _)| *text).collect::<String>(), echo);
        assert_eq!(parts.len(), 2);
        let whole = of_prompt(&tokens, &echo);
        assert_eq!((whole.token_logprobs[0], whole.token_logprobs[64]), (None, Some(-1.0)));
        assert_eq!((whole.top_logprobs[0].is_none(), whole.text_offset[99]), (true, 198));
        assert_eq!(whole.tokens.len(), 100);
        assert_eq!(of_prompt_parts(&[], "x").len(), 1);
    }
}
