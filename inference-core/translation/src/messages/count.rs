//! `POST /v1/messages/count_tokens`: how many tokens a prompt has.

use inference_protocol::openai::ErrorDetail;
use serde::{Deserialize, Serialize};

use crate::answer::{Answer, Chunk};
use crate::json;
use crate::writer::{Format, Unreadable};

/// Passes the count on. It has no stream.
#[derive(Debug)]
pub(crate) struct Writer;

/// What a node answers, and what the client gets.
#[derive(Serialize, Deserialize)]
struct Count {
    input_tokens: u64,
}

impl Format for Writer {
    fn chunk(&mut self, _: &Chunk<'_>, _: &mut Vec<u8>) {}

    fn end(&mut self, _: &mut Vec<u8>) {}

    fn fail(&mut self, _: u16, _: &ErrorDetail, _: &mut Vec<u8>) {}

    fn whole(&mut self, answer: Answer) -> Vec<u8> {
        json::bytes(&Count { input_tokens: answer.usage.unwrap_or_default().prompt })
    }

    fn translate(&mut self, body: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let count: Count = serde_json::from_slice(body).map_err(|_| Unreadable)?;
        Ok(json::bytes(&count))
    }
}

#[cfg(test)]
mod tests {
    use crate::{ClientApi, Origin, translate};

    #[test]
    fn a_prompt_is_counted_without_a_limit_for_its_response() {
        let body = br#"{"model":"m","messages":[{"role":"user","content":"Hi"}]}"#;
        let origin = Origin { random: 0, now: 0 };
        let mut translated = translate(ClientApi::CountTokens, body, origin).unwrap();
        assert!(translated.body.starts_with(br#"{"model":"m","messages":[{"role":"user","#));
        let counted = br#"{"object":"response.input_tokens","input_tokens":7}"#;
        assert_eq!(translated.writer.whole(counted).unwrap(), br#"{"input_tokens":7}"#);
        assert!(translated.writer.whole(b"{}").is_err());
    }
}
