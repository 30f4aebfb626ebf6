//! PURE. How model families write reasoning and calls, and where a response starts.
//! [`Format::detect`] finds the family that a chat template belongs to.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::call_format::CallFormat;
use super::call_ids::CallIds;
use super::delimiters::delimiter_table;

/// Delimiters of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningDelimiters {
    /// Opening delimiter.
    pub open: &'static str,
    /// Closing delimiter.
    pub close: &'static str,
}

/// How a model family writes reasoning and calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    /// Delimiters of reasoning, if the family has reasoning.
    pub reasoning: Option<ReasoningDelimiters>,
    /// Notation of calls.
    pub calls: CallFormat,
    /// Format of the IDs of calls.
    pub ids: CallIds,
}

/// Where in the assistant's message a response starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ResponseStart {
    /// At the start of the message: reasoning may come first.
    #[default]
    Fresh,
    /// Inside the reasoning.
    Reasoning,
    /// Inside the content, after a header. Only harmony has headers.
    Content,
}

/// What Apriel writes before its reasoning, or finds in its prompt.
const APRIEL: &str = "Here are my reasoning steps:";

/// Text that a template must contain, and the delimiters. Templates often contain only the closing
/// delimiter, where they cut the reasoning of earlier turns.
const REASONING: [(&str, ReasoningDelimiters); 18] = [
    ("mm:think>", tags("<mm:think>", "</mm:think>")),
    ("<|open|>", tags("<|open|>think<|sep|>", "<|close|>think<|sep|>")),
    ("<|tools_prefix|>", tags("<|inner_prefix|>", "<|inner_suffix|>")),
    ("<|tool_call:begin|>", tags("<|think|>", "<|end|>")),
    ("think:opensource", tags("<think:opensource>", "</think:opensource>")),
    (APRIEL, tags(APRIEL, "[BEGIN FINAL RESPONSE]")),
    ("[BEGIN FINAL RESPONSE]", tags(APRIEL, "[BEGIN FINAL RESPONSE]")),
    ("<|channel>", tags("<|channel>thought", "<channel|>")),
    ("seed:think", tags("<seed:think>", "</seed:think>")),
    ("[THINK]", tags("[THINK]", "[/THINK]")),
    ("<|START_THINKING|>", tags("<|START_THINKING|>", "<|END_THINKING|>")),
    ("<reasoning>", tags("<reasoning>", "</reasoning>")),
    ("Here is my thought process:", tags("Here is my thought process:", "Here is my response:")),
    ("<thinking>", tags("<thinking>", "</thinking>")),
    ("<thought>", tags("<thought>", "</thought>")),
    ("◁think▷", tags("◁think▷", "◁/think▷")),
    ("</think>", tags("<think>", "</think>")),
    ("<think>", tags("<think>", "</think>")),
];

const fn tags(open: &'static str, close: &'static str) -> ReasoningDelimiters {
    ReasoningDelimiters { open, close }
}

impl ReasoningDelimiters {
    /// Those of all families.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        REASONING.iter().map(|(_, delimiters)| *delimiters)
    }

    fn detect(source: &str) -> Option<Self> {
        let rule = REASONING.iter().find(|(sign, _)| source.contains(sign));
        rule.map(|(_, reasoning)| *reasoning)
    }
}

/// As its opening delimiter.
impl Serialize for ReasoningDelimiters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.open)
    }
}

impl<'de> Deserialize<'de> for ReasoningDelimiters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let open = String::deserialize(deserializer)?;
        let known = REASONING.iter().find(|(_, reasoning)| reasoning.open == open);
        known.map(|(_, reasoning)| *reasoning).ok_or_else(|| D::Error::custom("unknown mark"))
    }
}

impl Format {
    /// Detects the format that the chat template `source` uses.
    pub fn detect(source: &str) -> Self {
        let calls = CallFormat::detect(source);
        let reasoning =
            if calls == CallFormat::Harmony { None } else { ReasoningDelimiters::detect(source) };
        Self { reasoning, calls, ids: CallIds::detect(source) }
    }

    /// True if the family writes its reasoning apart from its responses.
    pub fn reasons(&self) -> bool {
        self.reasoning.is_some() || self.calls == CallFormat::Harmony
    }

    /// True if the rendered `prompt` ends inside reasoning, so that the response starts there.
    pub(crate) fn starts_in_reasoning(&self, prompt: &str) -> bool {
        self.reasoning.is_some_and(|t| prompt.trim_end().ends_with(t.open))
    }

    /// Where the response to the rendered `prompt` starts.
    pub(crate) fn response_start(&self, prompt: &str) -> ResponseStart {
        let last = |delimiter: &str| prompt.rfind(delimiter);
        let outside = ["<|start|>", "<|end|>", "<|return|>", "<|call|>"].map(last);
        let is_harmony = self.calls == CallFormat::Harmony;
        if self.starts_in_reasoning(prompt) {
            ResponseStart::Reasoning
        } else if is_harmony && last("<|message|>") > outside.into_iter().max().flatten() {
            ResponseStart::Content
        } else {
            ResponseStart::Fresh
        }
    }

    /// Delimiters of calls and reasoning. Those that are control tokens, which ordinary responses
    /// hide, must be visible to a [`super::Parser`].
    pub(crate) fn visible_tokens(&self) -> Vec<&'static str> {
        let table = delimiter_table(self.calls);
        let mut all: Vec<&str> = table.opens.iter().map(|o| o.text).collect();
        all.retain(|delimiter| delimiter.len() > 1);
        all.extend(table.after.iter().chain(table.drops).chain(table.inner));
        if let Some(reasoning) = self.reasoning {
            all.extend([reasoning.open, reasoning.close]);
            // A token, followed by the channel's name.
            all.extend(reasoning.open.strip_suffix("thought"));
        }
        all
    }
}
