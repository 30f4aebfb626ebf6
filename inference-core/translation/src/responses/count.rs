//! `POST /v1/responses/input_tokens`: how many tokens a request has.

use inference_protocol::openai::ErrorDetail;
use serde::{Deserialize, Serialize};

use crate::answer::{Answer, Chunk};
use crate::json;
use crate::writer::{Format, Unreadable};

/// Passes the count on. It has no stream.
#[derive(Debug)]
pub(crate) struct Writer;

/// What a node answers; the client gets the same.
#[derive(Deserialize)]
struct Count {
    input_tokens: u64,
}

#[derive(Serialize)]
struct InputTokens {
    object: &'static str,
    input_tokens: u64,
}

fn write(input_tokens: u64) -> Vec<u8> {
    json::bytes(&InputTokens { object: "response.input_tokens", input_tokens })
}

impl Format for Writer {
    fn chunk(&mut self, _: &Chunk<'_>, _: &mut Vec<u8>) {}

    fn end(&mut self, _: &mut Vec<u8>) {}

    fn fail(&mut self, _: u16, _: &ErrorDetail, _: &mut Vec<u8>) {}

    fn whole(&mut self, answer: Answer) -> Vec<u8> {
        write(answer.usage.unwrap_or_default().prompt)
    }

    fn translate(&mut self, body: &[u8]) -> Result<Vec<u8>, Unreadable> {
        let count: Count = serde_json::from_slice(body).map_err(|_| Unreadable)?;
        Ok(write(count.input_tokens))
    }
}

#[cfg(test)]
mod tests {
    use crate::{ClientApi, Origin, translate};

    #[test]
    fn a_request_is_counted() {
        let body = br#"{"model":"m","input":"Hi","instructions":"Be brief."}"#;
        let origin = Origin { random: 0, now: 0 };
        let mut translated = translate(ClientApi::InputTokens, body, origin).unwrap();
        assert!(translated.body.starts_with(br#"{"model":"m","messages":[{"role":"system","#));
        let counted = br#"{"object":"response.input_tokens","input_tokens":7}"#;
        assert_eq!(translated.writer.whole(counted).unwrap(), counted);
        assert!(translated.writer.whole(b"{}").is_err());
    }
}
