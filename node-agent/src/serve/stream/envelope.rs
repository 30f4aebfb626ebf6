//! Turns new parts of a response into JSON of either format, whole or in chunks.

use inference_core::text::output::{CallIds, OutputPart, ParsedCall, ParsedMessage, join_parts};
use inference_core::types::request::TokenLogprob;
use inference_protocol::openai::{
    ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, Completion, CompletionChoice, Delta,
    FunctionCall, FunctionDelta, PromptProgress, ResponseMessage, Timings, ToolCall, ToolCallDelta,
    Usage, to_json,
};
use sha2::{Digest, Sha256};

use super::choice::{Choice, ChoiceDelta};
use super::logprobs;

/// Format of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `chat.completion`
    Chat,
    /// `text_completion`
    Text,
}

/// Which parts of a response have timings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimingsMode {
    Off,
    /// A whole response, or the last chunk of each choice of a stream.
    AtEnd,
    /// As before, and all chunks with new parts.
    EveryChunk,
}

/// Fields that all parts of a response repeat.
#[derive(Debug, Clone)]
pub(crate) struct Envelope {
    pub shape: Shape,
    /// `chatcmpl-...` or `cmpl-...`
    pub id: String,
    /// Unix time in seconds.
    pub created: u64,
    pub model: String,
    pub service_tier: Option<String>,
    /// Short hash of model file and version.
    pub fingerprint: String,
    /// True if a stream ends with the usage.
    pub include_usage: bool,
    /// Format of the IDs of calls.
    pub call_ids: CallIds,
    /// Of a whole response with several choices, the first one's.
    pub timings: TimingsMode,
}

impl Envelope {
    /// The whole response, from all parts of each choice.
    pub(crate) fn whole(
        &self,
        choices: &[Choice],
        delta: Vec<Vec<ChoiceDelta>>,
        usage: Usage,
    ) -> String {
        let timings = choices.first().and_then(|choice| self.timings(choice, true));
        let all =
            choices.iter().zip(delta).map(|(choice, delta)| (choice, Whole::of(choice, delta)));
        match self.shape {
            Shape::Chat => to_json(&ChatCompletion {
                id: &self.id,
                object: "chat.completion",
                created: self.created,
                model: &self.model,
                service_tier: self.service_tier.as_deref(),
                system_fingerprint: Some(&self.fingerprint),
                choices: all.map(|(choice, whole)| self.chat_choice(choice, whole)).collect(),
                usage,
                timings,
            }),
            Shape::Text => {
                let all: Vec<_> = all.collect();
                let choices = all.iter().map(|(choice, whole)| whole.text_choice(choice));
                let whole = self.completion(choices.collect(), Some(usage));
                to_json(&Completion { timings, ..whole })
            }
        }
    }

    /// The timings of a part of a response, if it has them.
    fn timings(&self, choice: &Choice, is_end: bool) -> Option<Timings> {
        let has_timings = match self.timings {
            TimingsMode::Off => false,
            TimingsMode::AtEnd => is_end,
            TimingsMode::EveryChunk => true,
        };
        has_timings.then(|| choice.timings())
    }

    fn chat_choice(&self, choice: &Choice, whole: Whole) -> ChatChoice {
        let ParsedMessage { content, reasoning, calls } = whole.message;
        let calls = calls.into_iter().enumerate();
        let tool_calls: Vec<ToolCall> = calls
            .map(|(i, ParsedCall { name, id, arguments })| {
                let id = self.call_id((choice.index, i), &name, id.as_deref());
                let function = FunctionCall { name, arguments };
                ToolCall { id, kind: "function", function }
            })
            .collect();
        // A response without any text has empty content; one with only tool calls has none.
        let content = content.or_else(|| tool_calls.is_empty().then(String::new));
        ChatChoice {
            index: choice.index,
            message: ResponseMessage {
                role: "assistant",
                content,
                refusal: None,
                reasoning_content: reasoning,
                tool_calls,
            },
            logprobs: choice.wants_logprobs.then(|| logprobs::of_chat(&whole.logprobs)),
            finish_reason: whole.finish,
            stop_reason: whole.stop_reason,
        }
    }

    /// The chunks before the first token: a chat's role, an echoed prompt.
    pub(crate) fn opening(&self, choice: &Choice) -> Vec<String> {
        match self.shape {
            Shape::Chat => {
                let delta =
                    Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
                let choice = ChatChunkChoice { delta, ..ChatChunkChoice::empty(choice.index) };
                vec![to_json(&self.chat_completion_chunk(vec![choice], None))]
            }
            Shape::Text => choice.echo.as_deref().map_or(Vec::new(), |echo| {
                let parts = logprobs::of_prompt_parts(&choice.prompt_logprobs, echo);
                let chunk = |(text, logprobs)| {
                    let choice = CompletionChoice::new(choice.index, text);
                    to_json(&self.completion(vec![CompletionChoice { logprobs, ..choice }], None))
                };
                parts.into_iter().map(chunk).collect()
            }),
        }
    }

    /// A chunk that only tells how much of the prompt is computed.
    pub(crate) fn prefill_chunk(&self, choice: &Choice, progress: PromptProgress) -> String {
        let (index, prompt_progress) = (choice.index, Some(progress));
        match self.shape {
            Shape::Chat => {
                let choice = ChatChunkChoice::empty(index);
                let chunk = self.chat_completion_chunk(vec![choice], None);
                to_json(&ChatChunk { prompt_progress, ..chunk })
            }
            Shape::Text => {
                let chunk = self.completion(vec![CompletionChoice::new(index, "")], None);
                to_json(&Completion { prompt_progress, ..chunk })
            }
        }
    }

    /// The chunks for new parts. Logprobs come with the first of them.
    pub(crate) fn chunks(&self, choice: &Choice, delta: &ChoiceDelta) -> Vec<String> {
        match self.shape {
            Shape::Chat => self.chat_chunks(choice, delta),
            Shape::Text => vec![self.text_chunk(choice, delta)],
        }
    }

    fn chat_chunks(&self, choice: &Choice, delta: &ChoiceDelta) -> Vec<String> {
        let mut tokens = Some(delta.logprobs.as_slice()).filter(|t| !t.is_empty());
        let mut chunks = Vec::new();
        for part in &delta.parts {
            let id;
            let part_delta = match part {
                OutputPart::Content(text) => Delta { content: Some(text), ..Delta::default() },
                OutputPart::Reasoning(text) => {
                    Delta { reasoning_content: Some(text), ..Delta::default() }
                }
                OutputPart::CallStart { index, name, id: written } => {
                    id = self.call_id((choice.index, *index), name, written.as_deref());
                    let function = FunctionDelta { name: Some(name), arguments: "" };
                    let call = ToolCallDelta {
                        index: *index,
                        id: Some(&id),
                        kind: Some("function"),
                        function,
                    };
                    Delta { tool_calls: Some([call]), ..Delta::default() }
                }
                OutputPart::CallArguments { index, fragment } => {
                    let function = FunctionDelta { name: None, arguments: fragment };
                    let call = ToolCallDelta { index: *index, id: None, kind: None, function };
                    Delta { tool_calls: Some([call]), ..Delta::default() }
                }
            };
            chunks.push(self.chat_chunk(choice, part_delta, tokens.take(), None));
        }
        if delta.finish.is_some() {
            chunks.push(self.chat_chunk(choice, Delta::default(), tokens, Some(delta)));
        }
        chunks
    }

    fn chat_chunk(
        &self,
        choice: &Choice,
        delta: Delta<'_>,
        tokens: Option<&[TokenLogprob]>,
        end: Option<&ChoiceDelta>,
    ) -> String {
        let logprobs = tokens.filter(|_| choice.wants_logprobs).map(logprobs::of_chat);
        let choice_chunk = ChatChunkChoice {
            index: choice.index,
            delta,
            logprobs,
            finish_reason: end.and_then(|end| end.finish),
            stop_reason: end.and_then(|end| end.stop_reason.as_deref()),
        };
        let timings = self.timings(choice, end.is_some());
        let chunk = self.chat_completion_chunk(vec![choice_chunk], None);
        to_json(&ChatChunk { timings, ..chunk })
    }

    fn text_chunk(&self, choice: &Choice, delta: &ChoiceDelta) -> String {
        let text: String = delta.parts.iter().map(text_of).collect();
        let has_logprobs = choice.wants_logprobs && !delta.logprobs.is_empty();
        let logprobs = has_logprobs.then(|| logprobs::of_text(&delta.logprobs, delta.offset));
        let timings = self.timings(choice, delta.finish.is_some());
        let choice = CompletionChoice {
            text: &text,
            index: choice.index,
            logprobs,
            finish_reason: delta.finish,
            stop_reason: delta.stop_reason.as_deref(),
        };
        to_json(&Completion { timings, ..self.completion(vec![choice], None) })
    }

    /// The last chunk, with the usage and no choice.
    pub(crate) fn usage_chunk(&self, usage: Usage) -> String {
        match self.shape {
            Shape::Chat => to_json(&self.chat_completion_chunk(Vec::new(), Some(usage))),
            Shape::Text => to_json(&self.completion(Vec::new(), Some(usage))),
        }
    }

    fn chat_completion_chunk<'a>(
        &'a self,
        choices: Vec<ChatChunkChoice<'a>>,
        usage: Option<Usage>,
    ) -> ChatChunk<'a> {
        ChatChunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: self.created,
            model: &self.model,
            service_tier: self.service_tier.as_deref(),
            system_fingerprint: Some(&self.fingerprint),
            choices,
            usage,
            timings: None,
            prompt_progress: None,
        }
    }

    fn completion<'a>(
        &'a self,
        choices: Vec<CompletionChoice<'a>>,
        usage: Option<Usage>,
    ) -> Completion<'a> {
        Completion {
            id: &self.id,
            object: "text_completion",
            created: self.created,
            model: &self.model,
            system_fingerprint: Some(&self.fingerprint),
            choices,
            usage,
            timings: None,
            prompt_progress: None,
        }
    }

    /// The ID of a call of the function `name`, by its choice and its index: the one that the
    /// model wrote, if the chat template accepts it in the next turn. The same call of the same
    /// response has the same ID on every node.
    fn call_id(&self, (choice, call): (u32, usize), name: &str, written: Option<&str>) -> String {
        match written.filter(|id| self.call_ids.accepts(id, name)) {
            Some(id) => id.to_string(),
            None => {
                let digest = Sha256::digest(format!("{}/{choice}/{call}", self.id));
                self.call_ids.generate(name, call, &digest)
            }
        }
    }
}

fn text_of(part: &OutputPart) -> &str {
    match part {
        OutputPart::Content(text) | OutputPart::Reasoning(text) => text,
        OutputPart::CallStart { .. } | OutputPart::CallArguments { .. } => "",
    }
}

/// All parts of a choice, joined.
#[derive(Debug, Default)]
struct Whole {
    message: ParsedMessage,
    logprobs: Vec<TokenLogprob>,
    finish: &'static str,
    stop_reason: Option<String>,
    /// The text of a text completion, after an echoed prompt.
    text: String,
}

impl Whole {
    fn of(choice: &Choice, all: Vec<ChoiceDelta>) -> Self {
        let (mut logprobs, mut finish, mut parts) = (Vec::new(), "", Vec::new());
        let mut stop_reason = None;
        for delta in all {
            parts.extend(delta.parts);
            logprobs.extend(delta.logprobs);
            finish = delta.finish.unwrap_or(finish);
            stop_reason = delta.stop_reason.or(stop_reason);
        }
        let message = join_parts(parts);
        let echo = choice.echo.as_deref().unwrap_or_default();
        let text = format!("{echo}{}", message.content.as_deref().unwrap_or_default());
        Self { message, logprobs, finish, stop_reason, text }
    }

    fn text_choice(&self, choice: &Choice) -> CompletionChoice<'_> {
        let echo = choice.echo.as_deref().unwrap_or_default();
        let logprobs = || {
            let mut lists = logprobs::of_prompt(&choice.prompt_logprobs, echo);
            logprobs::append(&mut lists, &self.logprobs, echo.chars().count());
            lists
        };
        CompletionChoice {
            text: &self.text,
            index: choice.index,
            logprobs: choice.wants_logprobs.then(logprobs),
            finish_reason: Some(self.finish),
            stop_reason: self.stop_reason.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_the_id_that_its_template_accepts_and_the_same_on_every_node() {
        let id = |call_ids, written| {
            let envelope = Envelope {
                shape: Shape::Chat,
                id: "chatcmpl-1".into(),
                created: 0,
                model: "m".into(),
                service_tier: None,
                fingerprint: "fp_0".into(),
                timings: TimingsMode::Off,
                include_usage: false,
                call_ids,
            };
            envelope.call_id((0, 1), "f", written)
        };
        assert_eq!(id(CallIds::Any, Some("abcdef123")), "abcdef123");
        assert_eq!(id(CallIds::Mistral, Some("abcdef123")), "abcdef123");
        assert_eq!(id(CallIds::Kimi, Some("functions.f:4")), "functions.f:4");
        assert_eq!(id(CallIds::Kimi, Some("abcdef123")), "functions.f:1");
        for ids in [CallIds::Any, CallIds::Mistral, CallIds::Kimi] {
            assert!(ids.accepts(&id(ids, None), "f"));
            assert_eq!(id(ids, None), id(ids, None));
        }
        assert_eq!(id(CallIds::Any, None).len(), "call_".len() + 24);
    }
}
