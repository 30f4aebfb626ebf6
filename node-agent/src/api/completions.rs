//! `POST /v1/completions`

use std::sync::Arc;

use hyper::Response;
use inference_core::request::{GenerateRequest, Prompt, Tenant};
use inference_protocol::openai::{self, CompletionRequest, SamplingFields};

use super::sampling::{self, invalid};
use super::{Caller, Node, Wanted, answer, check_model, random};
use crate::error::Error;
use crate::generate::Shape;
use crate::respond::Body;

/// Goes on with a text.
pub async fn complete(
    node: &Arc<Node>,
    caller: Caller,
    body: &[u8],
) -> Result<Response<Body>, Error> {
    let completion: CompletionRequest = openai::parse(body)?;
    check_model(node, &completion.model)?;
    let fields: SamplingFields = openai::parse(body)?;
    answer(node, caller, Shape::Text, read(completion, fields)?).await
}

fn read(completion: CompletionRequest, fields: SamplingFields) -> Result<Wanted, Error> {
    refuse_unsupported(&completion)?;
    let checked = sampling::check(fields, random() as u64)?;
    Ok(Wanted {
        request: GenerateRequest {
            tenant: Tenant::default(),
            prompt: read_prompt(completion.prompt)?,
            sampling: checked.sampling,
            // OpenAI's default for this endpoint.
            max_tokens: checked.max_tokens.or(Some(16)),
            stop: checked.stop,
        },
        stream: completion.stream.unwrap_or(false),
        include_usage: completion.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
    })
}

fn refuse_unsupported(completion: &CompletionRequest) -> Result<(), Error> {
    if completion.suffix.as_ref().is_some_and(|s| !s.is_empty()) {
        return Err(invalid("suffix", "suffix must be absent with this engine"));
    }
    if completion.echo == Some(true) {
        return Err(invalid("echo", "echo must be false with this engine"));
    }
    if completion.logprobs.is_some() {
        return Err(invalid("logprobs", "logprobs must be absent with this engine"));
    }
    if completion.best_of.is_some_and(|n| n != 1) {
        return Err(invalid("best_of", "best_of must be 1 with this engine"));
    }
    Ok(())
}

fn read_prompt(prompt: openai::Prompt) -> Result<Prompt, Error> {
    match prompt {
        openai::Prompt::Text(text) => Ok(Prompt::Text(text)),
        openai::Prompt::Tokens(tokens) => Ok(Prompt::Tokens(tokens)),
        openai::Prompt::Texts(mut texts) => match (texts.pop(), texts.is_empty()) {
            (Some(text), true) => Ok(Prompt::Text(text)),
            _ => Err(invalid("prompt", "prompt must hold exactly one text")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_json(json: &str) -> Result<Wanted, Error> {
        read(openai::parse(json.as_bytes()).unwrap(), openai::parse(json.as_bytes()).unwrap())
    }

    #[test]
    fn a_prompt_is_a_text_a_list_of_one_or_tokens() {
        let prompt = |p: &str| {
            read_json(&format!(r#"{{"model":"m","prompt":{p}}}"#)).map(|w| w.request.prompt)
        };
        assert_eq!(prompt(r#""a""#).ok(), Some(Prompt::Text("a".into())));
        assert_eq!(prompt(r#"["a"]"#).ok(), Some(Prompt::Text("a".into())));
        assert_eq!(prompt("[1,2]").ok(), Some(Prompt::Tokens(vec![1, 2])));
        assert_eq!(prompt(r#"["a","b"]"#).err().unwrap().param().as_deref(), Some("prompt"));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (field, param) in [
            (r#""suffix":"x""#, "suffix"),
            (r#""echo":true"#, "echo"),
            (r#""logprobs":1"#, "logprobs"),
            (r#""best_of":2"#, "best_of"),
        ] {
            let json = format!(r#"{{"model":"m","prompt":"x",{field}}}"#);
            assert_eq!(read_json(&json).err().unwrap().param().as_deref(), Some(param));
        }
    }
}
