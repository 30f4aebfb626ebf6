//! Ids. Callers pass in the randomness, so that everything that creates an id stays pure.

use std::fmt::Write;

/// Maximum length in bytes of an id from outside (a node's name, a client's request id).
pub const ID_BYTES_MAX: usize = 64;
/// Longest name of a model, in bytes.
pub const MODEL_NAME_BYTES_MAX: usize = 128;

/// A request id: `req_` and 32 hex digits.
///
/// ```
/// let id = inference_protocol::ids::request_id(0xab);
/// assert_eq!(id, "req_000000000000000000000000000000ab");
/// ```
pub fn request_id(random: u128) -> String {
    let mut id = String::with_capacity(36);
    // Writing to a string cannot fail.
    let _ = write!(id, "req_{random:032x}");
    id
}

/// An OpenAI-style chat completion id; `hex` are 32 random digits.
pub fn chat_completion_id(hex: &str) -> String {
    format!("chatcmpl-{hex}")
}

/// An OpenAI-style text completion id; `hex` are 32 random digits.
pub fn completion_id(hex: &str) -> String {
    format!("cmpl-{hex}")
}

/// True if `id` is safe in logs, metric labels and headers: 1 to [`ID_BYTES_MAX`] bytes of letters,
/// digits, `.`, `_` and `-`.
///
/// ```
/// use inference_protocol::ids::is_plain_id;
///
/// assert!(is_plain_id("node-1.example_com"));
/// assert!(!is_plain_id("two words"));
/// ```
pub fn is_plain_id(id: &str) -> bool {
    !id.is_empty()
        && id.len() <= ID_BYTES_MAX
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_ids_are_short_and_harmless() {
        assert!(is_plain_id("node-1.example_com"));
        assert!(!is_plain_id(""));
        assert!(!is_plain_id("a b"));
        assert!(!is_plain_id("a\nb"));
        assert!(!is_plain_id(&"x".repeat(ID_BYTES_MAX + 1)));
    }
}
