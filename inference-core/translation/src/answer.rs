//! What a node or an external endpoint answers: chat and text completions, whole and in chunks.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Visitor};
use serde_json::value::RawValue;
use serde_json::{Error, Map, Value};

use crate::conversation::Call;

/// A response, or what is known of it so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    /// Reasoning before the text.
    pub(crate) reasoning: String,
    /// The text.
    pub(crate) text: String,
    /// Tool calls.
    pub(crate) calls: Vec<Call>,
    /// Log probabilities of the text's tokens, as the endpoint wrote them.
    pub(crate) logprobs: Vec<Box<RawValue>>,
    /// Why the response ended; `None` before its end.
    pub(crate) finish: Option<Finish>,
    /// Token counts.
    pub(crate) usage: Option<Usage>,
    /// The stop string that ended the response, if the endpoint says so.
    pub(crate) stop: Option<String>,
    /// The tier that served the request.
    pub(crate) service_tier: Option<String>,
    /// The name of the model.
    pub(crate) model: Option<String>,
    /// How long it took, if the endpoint says so.
    pub(crate) timings: Option<Timings>,
    /// The same as the endpoint wrote it.
    pub(crate) written_timings: Option<Box<RawValue>>,
    /// Log probabilities of a text completion's tokens.
    pub(crate) text_tokens: Vec<TextToken>,
}

/// How long a response took by llama-server's `timings`, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub(crate) struct Timings {
    /// Reading the prompt.
    pub(crate) prompt_ms: f64,
    /// Generating.
    pub(crate) predicted_ms: f64,
}

impl Timings {
    /// `None` if it is another engine's, with other fields.
    fn read(timings: &RawValue) -> Option<Self> {
        serde_json::from_str(timings.get()).ok()
    }
}

/// Why a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model or a stop string ended it.
    Stop,
    /// It reached its token limit.
    Length,
    /// The model calls tools.
    ToolCalls,
    /// A filter of an external endpoint stopped it.
    ContentFilter,
}

impl Finish {
    /// By its name in chat completions. Engines have more names; what they mean is an end.
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "length" | "max_tokens" => Self::Length,
            "tool_calls" | "function_call" => Self::ToolCalls,
            "content_filter" => Self::ContentFilter,
            _ => Self::Stop,
        }
    }
}

/// Token counts of a response.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "ChatUsage")]
pub(crate) struct Usage {
    /// Tokens of the prompt.
    pub(crate) prompt: u64,
    /// Of these, from the prefix cache.
    pub(crate) cached: u64,
    /// Generated tokens.
    pub(crate) completion: u64,
    /// Of these, reasoning; 0 if the endpoint does not say.
    pub(crate) reasoning: u64,
}

impl Usage {
    /// All tokens.
    pub(crate) fn total(&self) -> u64 {
        self.prompt.saturating_add(self.completion)
    }
}

#[derive(Deserialize)]
struct ChatUsage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct CompletionDetails {
    reasoning_tokens: Option<u64>,
}

impl From<ChatUsage> for Usage {
    fn from(usage: ChatUsage) -> Self {
        let prompt = usage.prompt_tokens.unwrap_or_default();
        let cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
        let completion = usage.completion_tokens.unwrap_or_default();
        let reasoning = usage.completion_tokens_details.and_then(|d| d.reasoning_tokens);
        Self {
            prompt,
            cached: cached.unwrap_or_default().min(prompt),
            completion,
            reasoning: reasoning.unwrap_or_default().min(completion),
        }
    }
}

/// A chunk of a stream, or a whole response.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Option<Vec<Choice<'a>>>,
    /// Token counts, at the end.
    #[serde(default)]
    pub(crate) usage: Option<Usage>,
    #[serde(borrow, default)]
    model: Option<Text<'a>>,
    #[serde(borrow, default)]
    service_tier: Option<Text<'a>>,
    /// How long the response took, or took so far, as the endpoint wrote it.
    #[serde(borrow, default)]
    pub(crate) timings: Option<&'a RawValue>,
    /// How much of the prompt is computed, as the endpoint wrote it.
    #[serde(borrow, default)]
    pub(crate) prompt_progress: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Choice<'a> {
    #[serde(default)]
    index: u64,
    /// New parts, or all of a whole response.
    #[serde(borrow, default, alias = "message")]
    delta: Option<Delta<'a>>,
    /// The same of a text completion.
    #[serde(borrow, default)]
    text: Option<Text<'a>>,
    #[serde(borrow, default)]
    logprobs: Option<Logprobs<'a>>,
    #[serde(borrow, default)]
    finish_reason: Option<Text<'a>>,
    #[serde(borrow, default)]
    stop_reason: Option<&'a RawValue>,
}

/// New parts of a message, or a whole one.
#[derive(Debug, Default, Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default)]
    content: Option<Text<'a>>,
    #[serde(borrow, default)]
    reasoning_content: Option<Text<'a>>,
    // vLLM's and OpenRouter's newer name.
    #[serde(borrow, default)]
    reasoning: Option<Text<'a>>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<CallDelta<'a>>>,
}

#[derive(Debug, Deserialize)]
struct CallDelta<'a> {
    #[serde(default)]
    index: Option<u64>,
    #[serde(borrow, default)]
    id: Option<Text<'a>>,
    #[serde(borrow, default)]
    function: Option<FunctionDelta<'a>>,
}

#[derive(Debug, Default, Deserialize)]
struct FunctionDelta<'a> {
    #[serde(borrow, default)]
    name: Option<Text<'a>>,
    #[serde(borrow, default)]
    arguments: Option<Text<'a>>,
}

#[derive(Debug, Deserialize)]
struct Logprobs<'a> {
    #[serde(borrow, default)]
    content: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    tokens: Option<Vec<Text<'a>>>,
    #[serde(default)]
    token_logprobs: Option<Vec<Option<f64>>>,
    #[serde(default)]
    top_logprobs: Option<Vec<Option<Map<String, Value>>>>,
}

/// The log probability of a token of a text completion.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TextToken {
    /// Its text.
    pub(crate) text: String,
    /// Its log probability.
    pub(crate) logprob: f64,
    /// The most likely tokens at its place, with theirs.
    pub(crate) likeliest: Vec<(String, f64)>,
}

impl Logprobs<'_> {
    /// The lists of a text completion, token by token.
    fn text_tokens(&self) -> Vec<TextToken> {
        let chosen = self.tokens.iter().flatten().zip(self.token_logprobs.iter().flatten());
        let token = |(index, (text, logprob)): (usize, (&Text<'_>, &Option<f64>))| {
            let likeliest = self.top_logprobs.as_ref().and_then(|all| all.get(index)?.as_ref());
            let likeliest = likeliest.into_iter().flatten();
            let likeliest =
                likeliest.filter_map(|(text, value)| Some((text.clone(), value.as_f64()?)));
            Some(TextToken {
                text: text.0.to_string(),
                logprob: (*logprob)?,
                likeliest: likeliest.collect(),
            })
        };
        chosen.enumerate().filter_map(token).collect()
    }
}

/// A new part of a response.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part<'a> {
    /// More reasoning.
    Reasoning(&'a str),
    /// More text, with the log probabilities of its tokens.
    Text(&'a str, &'a [&'a RawValue]),
    /// A tool call begins; calls follow each other.
    Call { id: &'a str, name: &'a str },
    /// More arguments of the last call.
    Arguments(&'a str),
}

impl Answer {
    /// Reads a whole chat or text completion.
    pub(crate) fn read(body: &[u8]) -> Result<Self, Error> {
        let whole = Chunk::read(body)?;
        if whole.choice().is_none_or(|choice| choice.delta.is_none() && choice.text.is_none()) {
            return Err(Error::custom("it has neither a message nor a text"));
        }
        let mut answer = Self {
            finish: Some(whole.finish().unwrap_or(Finish::Stop)),
            usage: whole.usage,
            stop: whole.stop(),
            service_tier: whole.service_tier().map(Into::into),
            model: whole.model().map(Into::into),
            timings: whole.timings(),
            written_timings: whole.timings.map(RawValue::to_owned),
            text_tokens: whole.text_tokens(),
            ..Self::default()
        };
        whole.parts(0, &mut |part| answer.add(part));
        Ok(answer)
    }

    /// Adds a new part.
    pub(crate) fn add(&mut self, part: Part<'_>) {
        match part {
            Part::Reasoning(text) => self.reasoning.push_str(text),
            Part::Text(text, logprobs) => {
                self.text.push_str(text);
                self.logprobs.extend(logprobs.iter().map(|token| (*token).to_owned()));
            }
            Part::Call { id, name } => {
                let (id, name) = (id.into(), name.into());
                self.calls.push(Call { id, name, arguments: String::new() });
            }
            Part::Arguments(text) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(text);
                }
            }
        }
    }
}

impl<'a> Chunk<'a> {
    /// Reads a chunk.
    pub(crate) fn read(payload: &'a [u8]) -> Result<Self, Error> {
        serde_json::from_slice(payload)
    }

    /// Calls `take` for each new part. `calls`: how many calls there are already.
    pub(crate) fn parts(&self, calls: usize, take: &mut dyn FnMut(Part<'_>)) {
        if let Some(choice) = self.choice()
            && let Some(delta) = &choice.delta
        {
            delta.parts(choice.logprobs.as_ref(), calls, take);
        }
        let text = self.choice().and_then(|choice| choice.text.as_ref());
        if let Some(text) = text.filter(|text| !text.0.is_empty()) {
            take(Part::Text(&text.0, &[]));
        }
    }

    /// Log probabilities of new tokens of a text completion.
    pub(crate) fn text_tokens(&self) -> Vec<TextToken> {
        let logprobs = self.choice().and_then(|choice| choice.logprobs.as_ref());
        logprobs.map(Logprobs::text_tokens).unwrap_or_default()
    }

    /// Why the response ended, in its last chunk.
    pub(crate) fn finish(&self) -> Option<Finish> {
        self.choice()?.finish_reason.as_ref().map(|reason| Finish::named(&reason.0))
    }

    /// The stop string that ended the response.
    pub(crate) fn stop(&self) -> Option<String> {
        self.choice()?.stop_reason.and_then(stop_string)
    }

    /// The name of the model.
    pub(crate) fn model(&self) -> Option<&str> {
        self.model.as_ref().map(|model| &*model.0)
    }

    /// The tier that served the request.
    pub(crate) fn service_tier(&self) -> Option<&str> {
        self.service_tier.as_ref().map(|tier| &*tier.0)
    }

    /// How long the response took, in its last chunk.
    pub(crate) fn timings(&self) -> Option<Timings> {
        self.timings.and_then(Timings::read)
    }

    fn choice(&self) -> Option<&Choice<'a>> {
        self.choices.as_ref()?.iter().find(|choice| choice.index == 0)
    }
}

impl Delta<'_> {
    fn parts(
        &self,
        logprobs: Option<&Logprobs<'_>>,
        mut calls: usize,
        take: &mut dyn FnMut(Part<'_>),
    ) {
        let filled = |text: &'_ Option<Text<'_>>| text.as_ref().is_some_and(|t| !t.0.is_empty());
        let reasoning = [&self.reasoning_content, &self.reasoning];
        if let Some(Some(text)) = reasoning.into_iter().find(|text| filled(text)) {
            take(Part::Reasoning(&text.0));
        }
        let tokens = logprobs.and_then(|logprobs| logprobs.content.as_deref()).unwrap_or_default();
        let content = self.content.as_ref().map_or("", |text| &text.0);
        if !content.is_empty() {
            take(Part::Text(content, tokens));
        }
        for call in self.tool_calls.iter().flatten() {
            let function = call.function.as_ref();
            let text = |text: Option<&Option<Text<'_>>>| {
                text.and_then(Option::as_ref).map(|text| text.0.to_string()).unwrap_or_default()
            };
            let name = text(function.map(|function| &function.name));
            // Some engines repeat the name with every part; a call has one index.
            let is_new = call.index.map_or(!name.is_empty(), |index| index as usize >= calls);
            if is_new {
                calls += 1;
                take(Part::Call { id: &text(Some(&call.id)), name: &name });
            }
            let arguments = function.and_then(|function| function.arguments.as_ref());
            if let Some(arguments) = arguments.filter(|text| !text.0.is_empty()) {
                take(Part::Arguments(&arguments.0));
            }
        }
    }
}

/// vLLM's `stop_reason` is the stop string, the id of a stop token, or null.
fn stop_string(reason: &RawValue) -> Option<String> {
    serde_json::from_str(reason.get()).ok()
}

/// A string that is borrowed unless it has escapes. (serde's `Option<Cow<str>>` never borrows.)
#[derive(Debug)]
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor).map(Self)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(payload: &str, calls: usize) -> Vec<String> {
        let mut all = Vec::new();
        let chunk = Chunk::read(payload.as_bytes()).unwrap();
        chunk.parts(calls, &mut |part| all.push(format!("{part:?}")));
        all
    }

    #[test]
    fn a_chunk_is_read_into_parts() {
        let chunk = r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}"#;
        assert_eq!(parts(chunk, 0), [""; 0]);
        let chunk = r#"{"choices":[{"index":0,"delta":{"content":"a\n"}}],"usage":null}"#;
        assert_eq!(parts(chunk, 0), [r#"Text("a\n", [])"#]);
        let chunk = r#"{"choices":[{"delta":{"reasoning":"hm","content":null}}]}"#;
        assert_eq!(parts(chunk, 0), [r#"Reasoning("hm")"#]);
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,
            "prompt_tokens_details":{"cached_tokens":3},"completion_tokens_details":null}}"#;
        let read = Chunk::read(usage.as_bytes()).unwrap();
        assert_eq!(read.usage, Some(Usage { prompt: 7, cached: 3, completion: 2, reasoning: 0 }));
    }

    #[test]
    fn calls_begin_once_whether_their_name_is_repeated_or_their_index_missing() {
        let call = |fields: &str| {
            format!(r#"{{"choices":[{{"index":0,"delta":{{"tool_calls":[{{{fields}}}]}}}}]}}"#)
        };
        let first = call(r#""index":0,"id":"c","function":{"name":"f","arguments":"{"}"#);
        let expected = [r#"Call { id: "c", name: "f" }"#, r#"Arguments("{")"#];
        assert_eq!(parts(&first, 0), expected);
        let repeated = call(r#""index":0,"function":{"name":"f","arguments":"}"}"#);
        assert_eq!(parts(&repeated, 1), [r#"Arguments("}")"#]);
        let bare = call(r#""id":"d","function":{"name":"g","arguments":"{}"}"#);
        assert_eq!(parts(&bare, 1), [r#"Call { id: "d", name: "g" }"#, r#"Arguments("{}")"#]);
    }

    #[test]
    fn a_whole_completion_is_read_as_its_parts() {
        let body = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":null,
            "reasoning_content":"r","tool_calls":[
            {"id":"c","type":"function","function":{"name":"f","arguments":"{}"}},
            {"id":"d","type":"function","function":{"name":"g","arguments":"[]"}}]},
            "finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
        let answer = Answer::read(body.as_bytes()).unwrap();
        assert_eq!((answer.reasoning.as_str(), answer.text.as_str()), ("r", ""));
        let calls: Vec<_> =
            answer.calls.iter().map(|c| (&*c.id, &*c.name, &*c.arguments)).collect();
        assert_eq!(calls, [("c", "f", "{}"), ("d", "g", "[]")]);
        assert_eq!(answer.finish, Some(Finish::ToolCalls));
    }

    #[test]
    fn what_is_no_completion_is_refused() {
        for payload in
            ["", "7", "[]", r#"{"choices":7}"#, r#"{"choices":[{"delta":{"content":7}}]}"#]
        {
            assert!(Chunk::read(payload.as_bytes()).is_err() || payload == "[]", "{payload}");
        }
        assert!(Answer::read(b"{}").is_err());
    }
}
