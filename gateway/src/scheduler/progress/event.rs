//! PURE. Reads events and whole responses of external endpoints, which have no resume marks: text,
//! usage, error.

use std::fmt;

use inference_protocol::resume::Usage;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::scheduler::usage::TEXT_BYTES_PER_TOKEN;

/// What an event contains.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// Estimated tokens: one per four bytes of text, and at least one if there is text.
    pub tokens: u64,
    /// The reported usage.
    pub usage: Option<Usage>,
    /// True if it has no choices: only the usage, or nothing that we know.
    pub has_no_choices: bool,
    /// True if it is an error.
    pub is_error: bool,
}

impl Event {
    /// Reads the payload of an event, or a whole response.
    pub(crate) fn read(payload: &[u8]) -> Self {
        let Ok(read) = serde_json::from_slice::<EventFields>(payload) else {
            // Unreadable, but it counts as output.
            return Self { tokens: 1, ..Self::default() };
        };
        let choices = read.choices.unwrap_or_default();
        let text_bytes = choices.iter().map(|choice| choice.0).sum::<u64>();
        Self {
            tokens: text_bytes.div_ceil(TEXT_BYTES_PER_TOKEN),
            usage: read.usage.and_then(Tokens::usage),
            has_no_choices: choices.is_empty(),
            is_error: read.error.is_some(),
        }
    }
}

#[derive(Deserialize)]
struct EventFields {
    #[serde(default)]
    choices: Option<Vec<TextBytes>>,
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Tokens {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    total_tokens: Option<u64>,
}

impl Tokens {
    fn usage(self) -> Option<Usage> {
        let completion = self.completion_tokens.unwrap_or(0);
        let rest = self.total_tokens.map(|total| total.saturating_sub(completion));
        let prompt = rest.or(self.prompt_tokens)?;
        Some(Usage { prompt, completion, cached: 0 })
    }
}

/// Keys of a choice whose strings were generated.
const TEXTS: [&str; 7] =
    ["content", "text", "reasoning_content", "reasoning", "refusal", "arguments", "name"];

/// Bytes of generated text in a choice.
struct TextBytes(u64);

impl<'de> Deserialize<'de> for TextBytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Texts { counts: false }).map(Self)
    }
}

/// Sums the lengths of strings in a value. `counts`: strings at this level count, too.
#[derive(Clone, Copy)]
struct Texts {
    counts: bool,
}

impl<'de> serde::de::DeserializeSeed<'de> for Texts {
    type Value = u64;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u64, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Texts {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<u64, E> {
        Ok(if self.counts { text.len() as u64 } else { 0 })
    }

    fn visit_unit<E>(self) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_bool<E>(self, _: bool) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_u64<E>(self, _: u64) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_i64<E>(self, _: i64) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_f64<E>(self, _: f64) -> Result<u64, E> {
        Ok(0)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<u64, A::Error> {
        let mut sum = 0;
        while let Some(bytes) = list.next_element_seed(self)? {
            sum += bytes;
        }
        Ok(sum)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<u64, A::Error> {
        let mut sum = 0;
        while let Some(key) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            if key == "logprobs" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            sum += map.next_value_seed(Self { counts: TEXTS.contains(&&*key) })?;
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(payload: &str) -> u64 {
        Event::read(payload.as_bytes()).tokens
    }

    #[test]
    fn text_is_counted_wherever_a_choice_holds_it() {
        let chunk = |delta: &str| format!(r#"{{"id":"long","choices":[{{"delta":{delta}}}]}}"#);
        assert_eq!(tokens(&chunk(r#"{"role":"assistant","content":""}"#)), 0);
        assert_eq!(tokens(&chunk(r#"{"content":"a"}"#)), 1);
        assert_eq!(tokens(&chunk(r#"{"content":"12345678","reasoning_content":"1234"}"#)), 3);
        let call = r#"{"tool_calls":[{"id":"x","function":{"name":"ab","arguments":"cd"}}]}"#;
        assert_eq!(tokens(&chunk(call)), 1);
        assert_eq!(tokens(r#"{"choices":[{"text":"12345"},{"text":"123"}]}"#), 2);
        assert_eq!(tokens(r#"{"choices":[{"message":{"content":[{"text":"1234"}]}}]}"#), 1);
        let logprobs = r#"{"choices":[{"logprobs":{"content":[{"token":"a"}]},"delta":{}}]}"#;
        assert_eq!(tokens(logprobs), 0);
        assert_eq!(tokens("no JSON"), 1);
    }

    #[test]
    fn usage_is_found_however_its_json_is_spaced() {
        let told = Some(Usage { prompt: 10, completion: 2, cached: 0 });
        for usage in [
            r#"{"usage":{"total_tokens":12,"completion_tokens":2}}"#,
            "{ \"usage\" : {\"prompt_tokens\": 10, \"completion_tokens\": 2} }",
            "{\"choices\":[],\r\n\t\"usage\"\n:\t{\n\"total_tokens\" : 12,\"completion_tokens\":2}}",
        ] {
            assert_eq!(Event::read(usage.as_bytes()).usage, told, "{usage}");
        }
        for none in [r#"{"usage": null}"#, r#"{"usage":{}}"#, r#"{"text":"\"usage\": {"}"#] {
            assert_eq!(Event::read(none.as_bytes()).usage, None, "{none}");
        }
    }

    #[test]
    fn an_error_is_told_from_an_answer() {
        assert!(Event::read(br#"{ "error": {"message":"x"}}"#).is_error);
        assert!(!Event::read(br#"{"error":null,"choices":[]}"#).is_error);
        assert!(!Event::read(br#"{"choices":[{"delta":{"content":"error"}}]}"#).is_error);
    }
}
