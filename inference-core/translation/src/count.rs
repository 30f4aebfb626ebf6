//! `POST /v1/messages/count_tokens` and `POST /v1/responses/input_tokens`: how many tokens a prompt
//! has.

use inference_protocol::openai::ErrorDetail;
use serde::{Deserialize, Serialize};

use crate::answer::{Answer, Chunk};
use crate::json;
use crate::writer::{Format, Unreadable};

/// Passes a node's count on. It has no stream.
#[derive(Debug)]
pub(crate) struct Writer {
    object: Option<&'static str>,
}

impl Writer {
    /// For Anthropic's clients.
    pub(crate) const MESSAGES: Self = Self { object: None };
    /// For OpenAI's clients.
    pub(crate) const RESPONSES: Self = Self { object: Some("response.input_tokens") };

    fn write(&self, input_tokens: u64) -> Vec<u8> {
        json::bytes(&Count { object: self.object, input_tokens })
    }
}

/// What a node answers, and what the client gets.
#[derive(Serialize, Deserialize)]
struct Count {
    #[serde(skip_deserializing, skip_serializing_if = "Option::is_none")]
    object: Option<&'static str>,
    input_tokens: u64,
}

impl Format for Writer {
    fn chunk(&mut self, _: &Chunk<'_>, _: &mut Vec<u8>) {}

    fn end(&mut self, _: &mut Vec<u8>) {}

    fn fail(&mut self, _: u16, _: &ErrorDetail, _: &mut Vec<u8>) {}

    fn whole(&mut self, answer: Answer) -> Vec<u8> {
        self.write(answer.usage.unwrap_or_default().prompt)
    }

    fn translate(&mut self, body: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let count: Count = serde_json::from_slice(body).map_err(|_| Unreadable)?;
        Ok(self.write(count.input_tokens))
    }
}

#[cfg(test)]
mod tests {
    use crate::writer::translated;
    use crate::{ClientApi, Origin};

    #[test]
    fn a_prompt_is_counted_without_a_limit_for_its_response() {
        let body = br#"{"model":"m","messages":[{"role":"user","content":"Hi"}]}"#;
        let origin = Origin { random: 0, now: 0 };
        let mut translated = translated(ClientApi::CountTokens, body, origin).unwrap();
        assert!(translated.body.starts_with(br#"{"model":"m","messages":[{"role":"user","#));
        let counted = br#"{"object":"response.input_tokens","input_tokens":7}"#;
        assert_eq!(translated.writer.whole(counted).unwrap(), br#"{"input_tokens":7}"#);
        assert!(translated.writer.whole(b"{}").is_err());
    }

    #[test]
    fn a_request_is_counted() {
        let body = br#"{"model":"m","input":"Hi","instructions":"Be brief."}"#;
        let origin = Origin { random: 0, now: 0 };
        let mut translated = translated(ClientApi::InputTokens, body, origin).unwrap();
        assert!(translated.body.starts_with(br#"{"model":"m","messages":[{"role":"system","#));
        let counted = br#"{"object":"response.input_tokens","input_tokens":7}"#;
        assert_eq!(translated.writer.whole(counted).unwrap(), counted);
        assert!(translated.writer.whole(b"{}").is_err());
    }
}
