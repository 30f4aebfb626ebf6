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
pub(crate) fn of_text(tokens: &[TokenLogprob], mut offset: usize) -> TextLogprobs {
    let mut lists = TextLogprobs::default();
    for token in tokens {
        lists.text_offset.push(offset);
        offset += text(&token.chosen).chars().count();
        lists.tokens.push(text(&token.chosen));
        lists.token_logprobs.push(Some(token.chosen.logprob));
        let all = token.likeliest.iter().chain([&token.chosen]);
        let entry = |t: &LikelyToken| (text(t), Value::from(t.logprob));
        lists.top_logprobs.push(Some(all.map(entry).collect::<Map<_, _>>()));
    }
    lists
}

fn text(token: &LikelyToken) -> String {
    String::from_utf8_lossy(&token.bytes).into_owned()
}
