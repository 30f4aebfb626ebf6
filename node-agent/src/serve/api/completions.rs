//! `POST /v1/completions`

use std::sync::Arc;

use hyper::Response;
use inference_core::types::request::{InfillFile, Prompt, QueryResult, TextQuery, Token};
use inference_protocol::openai::{
    self, CompletionRequest, Endpoint, ExtraFile, PromptEntry, RawObject, SamplingFields,
    TEXT_CHOICES_MAX,
};
use inference_protocol::resume::Resume;

use super::generate::{self, CheckedRequest, InputPrompt, Origin};
use super::sampling::{self, Absent, invalid};
use super::tools::OfferedTools;
use super::{Caller, check_model, constraint};
use crate::serve::node::Node;
use crate::serve::stream::{Shape, receive_result};
use crate::types::error::Error;
use crate::types::response::Body;

/// OpenAI's default for this endpoint.
const MAX_TOKENS_DEFAULT: u32 = 16;
/// Most files of `input_extra`: each costs at least a call of the tokenizer.
const EXTRA_FILES_MAX: usize = 256;

/// Handles a text completion request.
pub(super) async fn complete(
    node: &Arc<Node>,
    caller: Caller,
    resume: Option<Resume>,
    body: &[u8],
) -> Result<Response<Body>, Error> {
    let (mut checked, origin, echo) = read(node, resume, &RawObject::parse(body)?)?;
    if echo {
        for input in &mut checked.prompts {
            input.echo = Some(text_of(node, caller, &input.prompt).await?);
        }
    }
    generate::generate(node, caller, checked, origin).await
}

/// True in the result if the response starts with the prompt.
fn read(
    node: &Node,
    resume: Option<Resume>,
    body: &RawObject<'_>,
) -> Result<(CheckedRequest, Origin, bool), Error> {
    let completion: CompletionRequest = body.read()?;
    check_model(node, Resume::model(&resume, completion.model.as_deref()))?;
    let echo = completion.echo == Some(true);
    let origin = Origin::new(resume);
    let max_tokens = Some(MAX_TOKENS_DEFAULT);
    let absent = Absent { seed: origin.seed(), max_tokens, sampling: node.sampling_defaults() };
    Ok((check(completion, &absent, body)?, origin, echo))
}

fn check(
    completion: CompletionRequest,
    absent: &Absent,
    body: &RawObject<'_>,
) -> Result<CheckedRequest, Error> {
    sampling::refuse_unsupported(Endpoint::Completions, body)?;
    let echo = completion.echo == Some(true);
    let mut fields: SamplingFields = body.read()?;
    // No token: evaluation harnesses want only the logprobs of an echo, and editors want a prompt
    // in the cache before they need it.
    let is_empty = fields.max_tokens == Some(0);
    fields.max_tokens = fields.max_tokens.filter(|_| !is_empty);
    let mut parameters = sampling::check(fields, absent)?;
    if is_empty {
        parameters.options.max_tokens = Some(0);
    }
    if completion.best_of.is_some_and(|best_of| best_of != parameters.n) {
        return Err(invalid("best_of", "best_of must be the same as n with this engine"));
    }
    let gap = Gap::of(completion.suffix, completion.input_extra)?;
    if echo && gap.is_some() {
        return Err(invalid("echo", "echo cannot be used with suffix"));
    }
    let count = completion.logprobs.map(|n| sampling::top_logprobs("logprobs", n));
    parameters.options.logprobs = count.transpose()?;
    parameters.options.prompt_logprobs = echo && completion.logprobs.is_some();
    let constraint = constraint::from_fields(body.read()?)?;
    generate::check_can_end(constraint.is_some(), parameters.options.sampling.ignore_end)?;
    let prompts = read_prompts(completion.prompt, gap)?;
    if prompts.len() * parameters.n as usize > TEXT_CHOICES_MAX as usize {
        let message = format!("prompts times n must be at most {TEXT_CHOICES_MAX}");
        return Err(invalid("prompt", &message));
    }
    Ok(CheckedRequest {
        shape: Shape::Text,
        prompts: prompts.into_iter().map(|prompt| InputPrompt { prompt, echo: None }).collect(),
        parameters,
        constraint,
        tools: OfferedTools::default(),
        is_output_split: false,
        is_streamed: completion.stream.unwrap_or(false),
        include_usage: completion.stream_options.and_then(|o| o.include_usage).unwrap_or(false),
    })
}

/// What follows and surrounds a gap that the response fills.
struct Gap {
    suffix: String,
    files: Vec<InfillFile>,
}

impl Gap {
    /// `None` if the response continues the prompt.
    fn of(suffix: Option<String>, extra: Option<Vec<ExtraFile>>) -> Result<Option<Self>, Error> {
        if extra.as_ref().is_some_and(|files| files.len() > EXTRA_FILES_MAX) {
            let message = format!("input_extra takes at most {EXTRA_FILES_MAX} files");
            return Err(invalid("input_extra", &message));
        }
        let suffix = suffix.unwrap_or_default();
        if suffix.is_empty() && extra.is_none() {
            return Ok(None);
        }
        let file = |ExtraFile { filename, text }| InfillFile {
            name: filename.unwrap_or_else(|| "tmp".into()),
            text,
        };
        Ok(Some(Self { suffix, files: extra.unwrap_or_default().into_iter().map(file).collect() }))
    }
}

fn read_prompts(prompt: openai::Prompt, gap: Option<Gap>) -> Result<Vec<Prompt>, Error> {
    let prompts: Vec<Prompt> = match prompt {
        openai::Prompt::Text(text) => vec![Prompt::Text(text)],
        openai::Prompt::Tokens(tokens) if !tokens.is_empty() => vec![Prompt::Tokens(tokens)],
        openai::Prompt::Tokens(_) => Vec::new(),
        openai::Prompt::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
        openai::Prompt::Lists(lists) => lists.into_iter().map(Prompt::Tokens).collect(),
        openai::Prompt::Mixed(entries) => entries.into_iter().map(one_of_several).collect(),
    };
    if prompts.is_empty() {
        return Err(invalid("prompt", "prompt must hold at least one text"));
    }
    let Some(Gap { suffix, files }) = gap else { return Ok(prompts) };
    if prompts.len() > 1 && !files.is_empty() {
        return Err(invalid("input_extra", "input_extra cannot be used with several prompts"));
    }
    let infill = |prompt| match prompt {
        Prompt::Text(prefix) => {
            Ok(Prompt::Infill { prefix, suffix: suffix.clone(), files: files.clone() })
        }
        _ => Err(invalid("suffix", "suffix needs a prompt that is text")),
    };
    prompts.into_iter().map(infill).collect()
}

fn one_of_several(entry: PromptEntry) -> Prompt {
    match entry {
        PromptEntry::Text(text) => Prompt::Text(text),
        PromptEntry::Tokens(tokens) => Prompt::Tokens(tokens),
    }
}

/// The prompt's text, for an echo.
async fn text_of(node: &Arc<Node>, caller: Caller, prompt: &Prompt) -> Result<String, Error> {
    let tokens: Vec<Token> = match prompt {
        Prompt::Text(text) => return Ok(text.clone()),
        Prompt::Tokens(tokens) => tokens.clone(),
        Prompt::Chat(_) | Prompt::Infill { .. } => return Ok(String::new()),
    };
    let question = node.engine.query(caller.tenant, TextQuery::Detokenize(tokens), caller.via)?;
    match receive_result(question).await? {
        QueryResult::Text(text) => Ok(text),
        QueryResult::Tokens(..) | QueryResult::Texts(_) => Ok(String::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_json(json: &str) -> Result<CheckedRequest, Error> {
        let body = RawObject::parse(json.as_bytes())?;
        check(body.read()?, &Absent::default(), &body)
    }

    #[test]
    fn prompts_are_texts_or_tokens() {
        let prompts = |p: &str| {
            let checked = read_json(&format!(r#"{{"model":"m","prompt":{p}}}"#));
            checked.map(|c| c.prompts.into_iter().map(|input| input.prompt).collect::<Vec<_>>())
        };
        let text = |t: &str| Prompt::Text(t.into());
        assert_eq!(prompts(r#""a""#).unwrap(), [text("a")]);
        assert_eq!(prompts(r#"["a","b"]"#).unwrap(), [text("a"), text("b")]);
        assert_eq!(prompts("[1,2]").unwrap(), [Prompt::Tokens(vec![1, 2])]);
        assert_eq!(prompts("[[1],[2]]").unwrap().len(), 2);
        let mixed = [text("a"), Prompt::Tokens(vec![1, 2])];
        assert_eq!(prompts(r#"["a",[1,2]]"#).unwrap(), mixed);
        let said = prompts(r#"{"a":1}"#).err().unwrap().to_string();
        assert!(said.contains("'prompt': expected a string, a list of token ids"), "{said}");
        assert_eq!(prompts("[]").err().unwrap().param().as_deref(), Some("prompt"));
    }

    #[test]
    fn an_echo_may_have_logprobs_and_no_token_at_all() {
        let options = |fields: &str| {
            let json = format!(r#"{{"model":"m","prompt":"x",{fields}}}"#);
            read_json(&json).unwrap().parameters.options
        };
        let scored = options(r#""echo":true,"logprobs":1,"max_tokens":0"#);
        assert_eq!((scored.max_tokens, scored.prompt_logprobs), (Some(0), true));
        assert!(!options(r#""echo":true"#).prompt_logprobs);
        assert!(!options(r#""logprobs":1"#).prompt_logprobs);
        assert_eq!(options(r#""max_tokens":0"#).max_tokens, Some(0));
    }

    #[test]
    fn a_suffix_makes_a_gap() {
        let checked = read_json(r#"{"model":"m","prompt":"a","suffix":"b"}"#).unwrap();
        let (prefix, suffix) = ("a".to_string(), "b".to_string());
        let gap = Prompt::Infill { prefix, suffix, files: Vec::new() };
        assert_eq!(checked.prompts[0].prompt, gap);
        let checked = read_json(r#"{"model":"m","prompt":"a","suffix":""}"#).unwrap();
        assert_eq!(checked.prompts[0].prompt, Prompt::Text("a".into()));
    }

    #[test]
    fn other_files_make_a_gap_without_a_suffix_too() {
        let gap = |files: &str| {
            let json = format!(r#"{{"model":"m","prompt":"a","input_extra":{files}}}"#);
            read_json(&json).unwrap().prompts.remove(0).prompt
        };
        let expected = |files| Prompt::Infill { prefix: "a".into(), suffix: String::new(), files };
        assert_eq!(gap("[]"), expected(Vec::new()));
        let file = InfillFile { name: "tmp".into(), text: "b".into() };
        assert_eq!(gap(r#"[{"text":"b"}]"#), expected(vec![file]));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (fields, param) in [
            (r#""prompt":"x","best_of":2"#, "best_of"),
            (r#""prompt":"x","tools":[{"type":"function"}]"#, "tools"),
            (r#""prompt":"x","max_completion_tokens":5"#, "max_completion_tokens"),
            (r#""prompt":"x","logprobs":21"#, "logprobs"),
            (r#""prompt":"x","max_tokens":-2"#, "max_tokens"),
            (r#""prompt":["x","y"],"input_extra":[{"text":"z"}]"#, "input_extra"),
            (r#""prompt":"x","input_extra":[{"filename":"z"}]"#, "input_extra[0]"),
            (r#""prompt":"x","echo":true,"suffix":"y""#, "echo"),
            (r#""prompt":[1],"suffix":"y""#, "suffix"),
            (r#""prompt":["a","b","c","d","e","f","g","h","i"],"n":15"#, "prompt"),
        ] {
            let json = format!(r#"{{"model":"m",{fields}}}"#);
            assert_eq!(read_json(&json).err().unwrap().param().as_deref(), Some(param));
        }
        assert!(read_json(r#"{"model":"m","prompt":"x","best_of":2,"n":2}"#).is_ok());
    }
}
