//! PURE. IDs of tool calls. Some chat templates refuse IDs in another format than their model's
//! own: those of Mistral, which take 9 letters and digits. Others print them, so that the model
//! sees them: those of Kimi, whose model numbers the calls of each function.

use serde::{Deserialize, Serialize};

/// Length of Mistral's IDs.
const MISTRAL_BYTES: usize = 9;
/// Shortest and longest ID of a model that is likely to be unique in a conversation.
const WRITTEN_BYTES: std::ops::RangeInclusive<usize> = MISTRAL_BYTES..=64;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The format of call IDs that a chat template requires.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallIds {
    /// Any; ours are `call_` and 24 hexadecimal digits, as at OpenAI.
    #[default]
    Any,
    /// 9 letters and digits.
    Mistral,
    /// `functions.name:index`.
    Kimi,
}

impl CallIds {
    /// Detects the format that the chat template `source` requires.
    pub(crate) fn detect(source: &str) -> Self {
        let has = |delimiter: &str| source.contains(delimiter);
        if has("<|tool_calls_section_begin|>") || has("<|tool_call_begin|>") {
            Self::Kimi
        } else if has("[TOOL_CALLS]") {
            Self::Mistral
        } else {
            Self::Any
        }
    }

    /// True if the template takes `id` for a call of the function `name`.
    pub fn accepts(self, id: &str, name: &str) -> bool {
        match self {
            Self::Any => !id.is_empty(),
            Self::Mistral => id.len() == MISTRAL_BYTES && is_alphanumeric(id),
            Self::Kimi => kimi_name(id) == Some(name),
        }
    }

    /// The ID of a call of `name`, the call with this index. `random` differs for each call, and
    /// decides the ID: the same call has the same ID on every node.
    pub fn generate(self, name: &str, index: usize, random: &[u8]) -> String {
        match self {
            Self::Any => {
                let hex: String = random.iter().take(12).map(|b| format!("{b:02x}")).collect();
                format!("call_{hex}")
            }
            Self::Mistral => {
                let letter = |b: &u8| char::from(ALPHABET[usize::from(*b) % ALPHABET.len()]);
                random.iter().cycle().take(MISTRAL_BYTES).map(letter).collect()
            }
            Self::Kimi => format!("functions.{name}:{index}"),
        }
    }
}

/// `written` as an ID, if it is likely to be unique in a conversation: `0` is not.
pub(super) fn unique_id(written: &str) -> Option<String> {
    let long = WRITTEN_BYTES.contains(&written.len()) && is_alphanumeric(written);
    (long || kimi_name(written).is_some()).then(|| written.to_string())
}

/// The function that an ID in Kimi's format names.
pub(super) fn kimi_name(id: &str) -> Option<&str> {
    let (name, index) = id.strip_prefix("functions.")?.rsplit_once(':')?;
    let is_index = !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit());
    is_index.then_some(name)
}

fn is_alphanumeric(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_ids_have_the_format_that_the_template_requires() {
        let random: Vec<u8> = (0..32).map(|i| i * 7).collect();
        let cases = [
            (CallIds::Any, "call_00070e151c232a31383f464d"),
            (CallIds::Mistral, "07ELSZgnu"),
            (CallIds::Kimi, "functions.get_weather:2"),
        ];
        for (ids, expected) in cases {
            let id = ids.generate("get_weather", 2, &random);
            assert_eq!(id, expected);
            assert!(ids.accepts(&id, "get_weather"));
        }
        assert!(!CallIds::Mistral.accepts("call_0007", "f"));
        assert!(!CallIds::Mistral.accepts("abcdef1234", "f"));
        assert!(!CallIds::Kimi.accepts("functions.g:0", "f"));
        assert!(!CallIds::Kimi.accepts("call_0007", "f"));
    }

    #[test]
    fn ids_that_repeat_in_every_response_are_not_kept() {
        for (written, kept) in [
            ("abcdef123", true),
            ("a1b2c3d4e5", true),
            ("functions.f:0", true),
            ("0", false),
            ("functions.f:", false),
            ("two words", false),
            ("", false),
        ] {
            assert_eq!(unique_id(written).is_some(), kept, "{written}");
        }
    }
}
