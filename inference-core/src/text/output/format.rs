//! PURE. How model families write reasoning and calls, and which family a chat template belongs to.
//! [`Format::detect`] tries the rules in order, from what only one family writes to what several
//! do.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::delimiters::delimiter_table;

/// Delimiters of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReasoningDelimiters {
    /// Opening delimiter.
    pub open: &'static str,
    /// Closing delimiter.
    pub close: &'static str,
}

/// Model families by their notation of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum CallFormat {
    /// `<tool_call>{"name": .., "arguments": {..}}</tool_call>`: Hermes, Qwen 2.5 and 3.
    Hermes,
    /// `<tool_call><function=name><parameter=key>value`: Qwen3-Coder, Qwen 3.5, Nemotron 3.
    QwenXml,
    /// Like [`Self::QwenXml`], with other tags around it: Seed-OSS.
    Seed,
    /// `<tool_call>name<arg_key>key</arg_key><arg_value>value</arg_value>`: GLM 4.5 and later.
    Glm,
    /// `<invoke name="name"><parameter name="key">value`: MiniMax M2.
    MiniMax,
    /// `<function=name>{..}</function>`: Functionary 3.1.
    Functionary,
    /// `{"name": .., "parameters": {..}}`, optionally after `<|python_tag|>`: Llama 3.
    Llama,
    /// `[TOOL_CALLS][{..}]`: Mistral until 2025.
    MistralArray,
    /// `[TOOL_CALLS]name[ARGS]{..}`: Mistral since then.
    Mistral,
    /// `<｜tool▁calls▁begin｜>` and so on, arguments in a code fence: DeepSeek V3, R1.
    DeepSeek,
    /// Like [`Self::DeepSeek`], without the fence: DeepSeek V3.1.
    DeepSeekPlain,
    /// `<|tool_calls_section_begin|>` and so on: Kimi K2.
    Kimi,
    /// `<|tool_call|>` before an object or an array: Granite 3, Phi-4-mini.
    Pipes,
    /// `functools[{..}]`: Phi-4-mini with its older template.
    Functools,
    /// `<tool_calls>[{..}]</tool_calls>`: Apriel.
    ToolCalls,
    /// `<TOOLCALL>[{..}]</TOOLCALL>`: Nemotron Nano 2.
    ToolCallUpper,
    /// `<|START_ACTION|>[{"tool_name": .., "parameters": {..}}]<|END_ACTION|>`: Command R7B, A.
    Cohere,
    /// `Action:` and a JSON array in a code fence: Command R.
    CommandR,
    /// `<|tool_call>call:name{key:<|"|>value<|"|>}<tool_call|>`: Gemma 4.
    Gemma,
    /// `<|tool_call_start|>[name(key="value")]<|tool_call_end|>`: LFM2.
    Lfm,
    /// `[name(key="value")]`: Llama 4.
    Pythonic,
    /// Channels (harmony): gpt-oss.
    Harmony,
    /// JSON or Python in a code fence labeled as such: Gemma 3 and others that were instructed to.
    Fenced,
    /// A JSON object with a name and arguments: templates without tool support.
    Generic,
}

/// How a model family writes reasoning and calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    /// Delimiters of reasoning, if the family has reasoning.
    pub reasoning: Option<ReasoningDelimiters>,
    /// Notation of calls.
    pub calls: CallFormat,
}

/// Where in the assistant's message a response starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ResponseStart {
    /// At the start of the message: reasoning may come first.
    #[default]
    Fresh,
    /// Inside the reasoning.
    Reasoning,
    /// Inside the content, after a header. Only harmony has headers.
    Content,
}

impl CallFormat {
    /// All notations.
    pub const ALL: [Self; 24] = [
        Self::Hermes,
        Self::QwenXml,
        Self::Seed,
        Self::Glm,
        Self::MiniMax,
        Self::Functionary,
        Self::Llama,
        Self::MistralArray,
        Self::Mistral,
        Self::DeepSeek,
        Self::DeepSeekPlain,
        Self::Kimi,
        Self::Pipes,
        Self::Functools,
        Self::ToolCalls,
        Self::ToolCallUpper,
        Self::Cohere,
        Self::CommandR,
        Self::Gemma,
        Self::Lfm,
        Self::Pythonic,
        Self::Harmony,
        Self::Fenced,
        Self::Generic,
    ];

    /// Detects the notation that a chat template uses.
    fn detect(source: &str) -> Self {
        let has = |delimiter: &str| source.contains(delimiter);
        let rules = [
            (has("<|channel|>") && has("<|message|>"), Self::Harmony),
            (has("<｜tool▁calls▁begin｜>") && has("```json"), Self::DeepSeek),
            (has("<｜tool▁calls▁begin｜>"), Self::DeepSeekPlain),
            (has("<|tool_call_begin|>") || has("<|im_middle|>"), Self::Kimi),
            (has("[TOOL_CALLS]") && has("[ARGS]"), Self::Mistral),
            (has("[TOOL_CALLS]"), Self::MistralArray),
            (has("<|START_ACTION|>"), Self::Cohere),
            (has("<|CHATBOT_TOKEN|>") && has("Action:"), Self::CommandR),
            (has("<|tool_call>call:"), Self::Gemma),
            (has("<|tool_call_start|>"), Self::Lfm),
            (has("func_name1("), Self::Pythonic),
            (has("<seed:tool_call>"), Self::Seed),
            (has("<minimax:tool_call>"), Self::MiniMax),
            (has("<arg_key>"), Self::Glm),
            (has("<function=") && has("<parameter="), Self::QwenXml),
            (has("<function="), Self::Functionary),
            (has("<|python_tag|>"), Self::Llama),
            (has("<|start_header_id|>") && has("\"parameters\": "), Self::Llama),
            (has("<|tool_call|>"), Self::Pipes),
            (has("functools["), Self::Functools),
            (has("<tool_calls>"), Self::ToolCalls),
            (has("<TOOLCALL>"), Self::ToolCallUpper),
            (has("<tool_call>"), Self::Hermes),
            (has("```tool_co") || has("```tool_call"), Self::Fenced),
        ];
        rules.iter().find(|(met, _)| *met).map_or(Self::Generic, |(_, format)| *format)
    }
}

/// Text that a template must contain, and the delimiters. Templates often contain only the closing
/// delimiter, where they cut the reasoning of earlier turns.
const REASONING: [(&str, ReasoningDelimiters); 9] = [
    ("<|channel>", tags("<|channel>thought", "<channel|>")),
    ("seed:think", tags("<seed:think>", "</seed:think>")),
    ("[THINK]", tags("[THINK]", "[/THINK]")),
    ("<|START_THINKING|>", tags("<|START_THINKING|>", "<|END_THINKING|>")),
    ("<reasoning>", tags("<reasoning>", "</reasoning>")),
    ("Here is my thought process:", tags("Here is my thought process:", "Here is my response:")),
    ("<thinking>", tags("<thinking>", "</thinking>")),
    ("</think>", tags("<think>", "</think>")),
    ("<think>", tags("<think>", "</think>")),
];

const fn tags(open: &'static str, close: &'static str) -> ReasoningDelimiters {
    ReasoningDelimiters { open, close }
}

impl ReasoningDelimiters {
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
        Self { reasoning, calls }
    }

    /// True if the rendered `prompt` ends inside reasoning, so that the response starts there.
    pub fn starts_in_reasoning(&self, prompt: &str) -> bool {
        self.reasoning.is_some_and(|t| prompt.trim_end().ends_with(t.open))
    }

    /// Where the response to the rendered `prompt` starts.
    pub fn response_start(&self, prompt: &str) -> ResponseStart {
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
    pub fn visible_tokens(&self) -> Vec<&'static str> {
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
