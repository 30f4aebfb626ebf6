//! `POST /v1/embeddings` and `POST /v1/rerank`: computes embeddings of texts, or scores of
//! documents.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Response;
use inference_core::types::request::{EmbedInput, EmbedRequest, Event, Failure};
use inference_protocol::openai::{
    Document, Embedding, Embeddings, EmbeddingsRequest, Endpoint, Prompt, PromptEntry, PromptUsage,
    Ranked, RawObject, RerankRequest, Reranked, Usage, Vector, to_json,
};
use inference_protocol::resume::Resume;
use serde::Deserialize;

use super::sampling::{invalid, refuse_unsupported};
use super::{Caller, check_model};
use crate::serve::metrics::Record;
use crate::serve::node::Node;
use crate::types::error::Error;
use crate::types::response::{self, Body};

/// Maximum inputs per request; the same as OpenAI's limit.
const INPUTS_MAX: usize = 2048;

fn to_inputs(prompt: Prompt) -> Vec<EmbedInput> {
    match prompt {
        Prompt::Text(text) => vec![EmbedInput::Text(text)],
        Prompt::Texts(all) => all.into_iter().map(EmbedInput::Text).collect(),
        Prompt::Tokens(tokens) => vec![EmbedInput::Tokens(tokens)],
        Prompt::Lists(all) => all.into_iter().map(EmbedInput::Tokens).collect(),
        Prompt::Mixed(all) => all.into_iter().map(one_of_several).collect(),
    }
}

fn one_of_several(entry: PromptEntry) -> EmbedInput {
    match entry {
        PromptEntry::Text(text) => EmbedInput::Text(text),
        PromptEntry::Tokens(tokens) => EmbedInput::Tokens(tokens),
    }
}

fn read<'a, T: Deserialize<'a>>(endpoint: Endpoint, body: &'a [u8]) -> Result<T, Error> {
    let body = RawObject::parse(body)?;
    let request = body.read()?;
    refuse_unsupported(endpoint, &body)?;
    Ok(request)
}

/// Handles an embeddings request.
pub(super) async fn embed(
    node: &Arc<Node>,
    caller: Caller,
    resume: Option<Resume>,
    body: &[u8],
) -> Result<Response<Body>, Error> {
    let request: EmbeddingsRequest = read(Endpoint::Embeddings, body)?;
    check_model(node, Resume::model(&resume, request.model.as_deref()))?;
    let base64 = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => {
            return Err(invalid("encoding_format", "encoding_format must be float or base64"));
        }
    };
    let inputs = check_count("input", to_inputs(request.input))?;
    let mut record = node.metrics.record("embeddings");
    let computed = compute(node, caller, inputs, &resume, &mut record).await;
    let computed = computed.map_err(|error| in_list(error, &resume));
    let (mut vectors, tokens) = record.check(computed)?;
    record.check(shorten(&mut vectors, request.dimensions))?;
    record.record_usage(Usage::new(tokens, 0, 0));
    record.succeed();
    let embedding = |(index, values): (u32, Vec<f32>)| {
        let embedding = match base64 {
            true => Vector::Base64(to_base64(&values)),
            false => Vector::Floats(values),
        };
        Embedding { object: "embedding", index, embedding }
    };
    Ok(response::json(to_json(&Embeddings {
        object: "list",
        data: (0..).zip(vectors).map(embedding).collect(),
        model: &node.model,
        usage: PromptUsage::new(tokens),
    })))
}

/// Base64 of little-endian 32-bit floats.
fn to_base64(values: &[f32]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

/// Shortens embeddings to their first dimensions, and scales them to the length 1 again. It is for
/// models that were trained to put what matters most first (Matryoshka representation learning,
/// arXiv:2205.13147); the file does not say whether a model was.
fn shorten(vectors: &mut [Vec<f32>], dimensions: Option<usize>) -> Result<(), Error> {
    let Some(wanted) = dimensions else { return Ok(()) };
    let has = vectors.first().map_or(0, Vec::len);
    if !(1..=has).contains(&wanted) {
        let message = format!("dimensions must be 1 to {has} with this model, not {wanted}");
        return Err(invalid("dimensions", &message));
    }
    for vector in vectors.iter_mut().filter(|vector| vector.len() > wanted) {
        vector.truncate(wanted);
        let length = vector.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        if length > 0.0 {
            vector.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
        }
    }
    Ok(())
}

/// Scores how well documents answer a query, and sorts them, best first.
pub(super) async fn rerank(
    node: &Arc<Node>,
    caller: Caller,
    resume: Option<Resume>,
    body: &[u8],
) -> Result<Response<Body>, Error> {
    let request: RerankRequest = read(Endpoint::Rerank, body)?;
    check_model(node, Resume::model(&resume, request.model.as_deref()))?;
    if request.top_n == Some(0) {
        return Err(invalid("top_n", "top_n must be at least 1"));
    }
    let text = |document| match document {
        Document::Text(text) | Document::Object { text } => text,
    };
    let documents: Vec<String> = request.documents.into_iter().map(text).collect();
    let pair = |document: &String| EmbedInput::Pair {
        query: request.query.clone(),
        document: document.clone(),
    };
    let inputs = check_count("documents", documents.iter().map(pair).collect())?;
    let mut record = node.metrics.record("rerank");
    let computed = compute(node, caller, inputs, &resume, &mut record).await;
    let computed = computed.map_err(|error| in_list(error, &resume));
    let (scores, tokens) = record.check(computed)?;
    record.record_usage(Usage::new(tokens, 0, 0));
    record.succeed();
    let with_documents = request.return_documents == Some(true);
    let mut results: Vec<Ranked> = scores
        .iter()
        .zip(documents)
        .enumerate()
        .map(|(index, (score, document))| Ranked {
            index,
            relevance_score: score.first().copied().unwrap_or(0.0),
            document: with_documents.then(|| serde_json::json!({"text": document})),
        })
        .collect();
    results.sort_by(|a, b| b.relevance_score.total_cmp(&a.relevance_score));
    results.truncate(request.top_n.unwrap_or(usize::MAX));
    let usage = PromptUsage::new(tokens);
    Ok(response::json(to_json(&Reranked { object: "list", model: &node.model, results, usage })))
}

/// The error with the index in the client's list, of which the body's may be a part.
fn in_list(error: Error, resume: &Option<Resume>) -> Error {
    match error {
        Error::Engine(Failure::InputTooLong { index, tokens, tokens_max }) => {
            let index = Resume::entry(resume, index);
            Error::Engine(Failure::InputTooLong { index, tokens, tokens_max })
        }
        other => other,
    }
}

fn check_count(param: &'static str, inputs: Vec<EmbedInput>) -> Result<Vec<EmbedInput>, Error> {
    if inputs.is_empty() || inputs.len() > INPUTS_MAX {
        let message = format!("{param} must hold 1 to {INPUTS_MAX} entries");
        return Err(invalid(param, &message));
    }
    Ok(inputs)
}

/// Computes the embedding or score of each input; also returns the total tokens.
async fn compute(
    node: &Node,
    caller: Caller,
    inputs: Vec<EmbedInput>,
    resume: &Option<Resume>,
    record: &mut Record,
) -> Result<(Vec<Vec<f32>>, u32), Error> {
    let mut vectors = vec![Vec::new(); inputs.len()];
    let usage_max = resume.as_ref().and_then(|resume| resume.usage_max);
    let request = EmbedRequest { tenant: caller.tenant, inputs, usage_max };
    let mut generation = node.engine.embed(request, caller.via)?;
    let mut tokens = 0;
    loop {
        match generation.next().await {
            Some(Event::Started { prompt_tokens, .. }) => {
                record.record_start();
                tokens = prompt_tokens;
            }
            Some(Event::Embedded { index, values }) => {
                record.record_text();
                if let Some(vector) = vectors.get_mut(index as usize) {
                    *vector = values;
                }
            }
            Some(Event::Finished { .. }) => return Ok((vectors, tokens)),
            Some(Event::Failed(failure)) => return Err(failure.into()),
            Some(Event::Cancelled) | None => return Err(Error::EngineLost),
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_embedding_has_the_direction_of_its_first_dimensions() {
        let mut vectors = vec![vec![0.6, 0.0, 0.8], vec![0.0, 0.0, 1.0]];
        shorten(&mut vectors, Some(2)).unwrap();
        assert_eq!(vectors, [[1.0, 0.0], [0.0, 0.0]]);
        let mut whole = vec![vec![0.6, 0.0, 0.8]];
        shorten(&mut whole, Some(3)).unwrap();
        shorten(&mut whole, None).unwrap();
        assert_eq!(whole, [[0.6, 0.0, 0.8]]);
        for wrong in [0, 4] {
            assert!(shorten(&mut whole, Some(wrong)).is_err());
        }
    }
}
